"""`penstock pipeline init`: write a pipeline's file for the documents that a bucket has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penstock.cli.base.app import AsJson, PasswordFile, Url, Username, format_examples, resolve_address
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.base.work_display import Quiet, show_status
from penstock.cli.outputs.pipeline_outputs import DraftTableLine
from penstock.cli.pipeline.group import commands
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.errors import UsageError
from penstock.names import format_count

if TYPE_CHECKING:
    from penstock.client.dumps.document_samples import DocumentSamples
    from penstock.spark.pipeline.definition.definition_text import DraftTable

_LAKE = "./lake"


class _Draft(NamedTuple):
    """A table of the new file, and the line about it."""

    table: DraftTable
    line: DraftTableLine


@commands.command(
    epilog=format_examples(
        "penstock pipeline init pipeline.toml --url couchbase://127.0.0.1:11210/beer",
        "penstock pipeline init pipeline.toml --force --json",
    )
)
def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="The new file.")] = Path("pipeline.toml"),
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a pipeline's file with a typed table for each collection that has documents.

    The types of the fields follow from a sample of each collection: at most 5,000
    documents or 16 MiB, spread over vbuckets. Comments in the file name the fields
    whose types may need a change. The file has no password. It has the collections
    that the user may read. Check it with penstock pipeline plan.
    """
    address = resolve_address(url, username, password)
    if file.exists() and not force:
        raise UsageError(f"{file} exists; --force replaces it")
    with show_status("Reading collections", is_quiet=quiet or as_json) as show:
        sample = asyncio.run(_sample(address, lambda count: show(f"Reading collections: {count:,} documents")))
    drafts = _draft_tables(sample)
    options: dict[str, str | list[str]] = {"url": url}
    if username is not None:
        options["username"] = username
    if password is not None:
        options["password_file"] = str(Path(password).absolute())
    if not sample.is_whole:
        options["collections"] = [each.name for each in sample.collections]
    _write_file(file, address.bucket, options, [draft.table for draft in drafts])
    lines = [draft.line for draft in drafts]
    if as_json:
        print_text(format_json_line({"file": str(file), "tables": lines, "denied": [*sample.denied]}))
        return
    for line in lines:
        print_text(_format_line(line))
    for name in sample.denied:
        print_text(f"{name:<24} left out: the user may not read it")
    print_text(f"{file}: {format_count(len(lines), 'table')}. Check it: penstock pipeline plan {file}")


def _format_line(line: DraftTableLine) -> str:
    parts = [_describe_sample(line["sampled"], line["documents"]), format_count(line["fields"], "field")]
    if line["doubts"]:
        parts.append(f"{format_count(len(line['doubts']), 'doubt')}, see the comments")
    return f"{line['name']:<24} {'; '.join(parts)}"


async def _sample(address: Address, report: Callable[[int], None]) -> DocumentSamples:
    from penstock.client.bucket import Bucket
    from penstock.client.dumps.document_samples import SampleLimits, sample_bucket

    async with Bucket(address) as bucket:
        return await sample_bucket(bucket, SampleLimits(), report)


def _draft_tables(sample: DocumentSamples) -> list[_Draft]:
    """Return a table for each collection that has documents."""
    import pyarrow as pa

    from penstock.spark.lake.current.table_shape import DEFAULT_KEY
    from penstock.spark.pipeline.definition.definition_text import DraftTable, choose_table_names
    from penstock.spark.tables.field_doubts import list_doubts
    from penstock.spark.tables.inference import collect_values

    filled = [each for each in sample.collections if each.values]
    drafts = []
    for name, each in zip(choose_table_names([one.name for one in filled]), filled, strict=True):
        values = collect_values(each.values)
        fields, doubts = pa.schema(values.choose_fields()), list_doubts(values)
        if others := len(each.values) - values.counts["object"]:
            doubts.insert(0, f"{others:,} of {len(each.values):,} documents are no JSON objects, and have no fields")
        comments = (f"Types follow from {_describe_sample(len(each.values), each.total)}.", *doubts)
        table = DraftTable(collection=each.name, name=name, fields=fields, key=DEFAULT_KEY, comments=comments)
        line = DraftTableLine(
            collection=each.name,
            name=name,
            sampled=len(each.values),
            documents=each.total,
            fields=len(fields),
            doubts=doubts,
        )
        drafts.append(_Draft(table, line))
    return drafts


def _describe_sample(sampled: int, total: int | None) -> str:
    return f"{sampled:,} of {'an unknown number of' if total is None else format(max(sampled, total), ',')} documents"


def _write_file(file: Path, bucket: str, options: dict[str, str | list[str]], tables: list[DraftTable]) -> None:
    from penstock.client.positions.synced_file import replace_file
    from penstock.spark.pipeline.definition.definition_text import choose_source_name, format_definition

    replace_file(file, format_definition(_LAKE, choose_source_name(bucket), options, tables).encode())
