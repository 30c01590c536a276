"""`penstock pipeline validate` and `plan`: check a pipeline's file, and show the run that it describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.cli.base.app import AsJson, format_examples
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.outputs.pipeline_outputs import PageLine
from penstock.cli.pipeline.arguments import PipelineFile
from penstock.cli.pipeline.group import commands
from penstock.client.dashboard.static_files import PREFIX
from penstock.client.discovery.endpoint import format_endpoint
from penstock.errors import Error, UsageError

if TYPE_CHECKING:
    from penstock.spark.pipeline.definition.definition import PipelineDefinition
    from penstock.spark.pipeline.run.run_plan import PlannedSource
    from penstock.spark.pipeline.state.lake_status import LakeStatus

Execute = Annotated[
    bool,
    typer.Option(
        "--execute", help="Also run the programs that FILE names: its transforms, and the commands of passwords."
    ),
]


@commands.command(
    epilog=format_examples(
        "penstock pipeline validate pipeline.toml", "penstock pipeline validate pipeline.toml --connect"
    )
)
def validate(
    file: PipelineFile,
    *,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect", help="Also connect to the buckets and other systems, and run the programs that FILE names."
        ),
    ] = False,
    execute: Execute = False,
    as_json: AsJson = False,
) -> None:
    """Check a pipeline's file with the checks of a run, as far as they need no other system.

    Checks tables and keys, the files to which they refer, the tables that exist,
    and SQL by Spark's own analyzer, which takes some seconds. Fields are checked if
    the file has a value_schema. Nothing is written, and no program is run that FILE
    names: neither a transform, nor the command of a password. With --connect, all
    that a run would refuse is an error, and so is a system that does not answer.
    The exit code is 2 for an error in the file or a missing collection. It is 1 if
    a bucket or another system cannot be reached.
    """
    from penstock.spark.pipeline.definition.definition import read_definition
    from penstock.spark.pipeline.run.run_plan import validate_definition

    definition = read_definition(file)
    try:
        lines = validate_definition(definition, connect=connect, execute=execute or connect)
    except Error as error:
        kind = UsageError if isinstance(error, UsageError) else Error
        raise kind(f"{file}: {error}") from error
    if as_json:
        names = [source.name for source in definition.sources]
        print_text(
            format_json_line(
                {
                    "file": file,
                    "valid": True,
                    "lake": definition.lake,
                    "format": definition.tables.format,
                    "sources": names,
                    "buckets": lines,
                }
            )
        )
        return
    for line in lines:
        print_text(line)
    sources = ", ".join(str(source.name) for source in definition.sources)
    kept, tables = len(definition.dependents), definition.tables
    print_text(f"{file} is valid: sources {sources}; {kept} dependents; lake {definition.lake}; format {tables.format}")


@commands.command(
    epilog=format_examples("penstock pipeline plan pipeline.toml", "penstock pipeline plan pipeline.toml --json")
)
def plan(file: PipelineFile, *, execute: Execute = False, as_json: AsJson = False) -> None:
    """Show the sources, filters and tables of a run without starting it, and the errors that would end it.

    Makes the checks of a run. So it connects to the buckets and to other systems,
    and logs in. But no program is run that FILE names; the checks that need one are
    listed. Also shows which tables exist, how far they are behind, which sources and
    tables are no longer declared, and the addresses of [metrics] and [dashboard].
    With --json, each line is one source. The exit code is that of the run: 2 or 1
    if it would be refused, and 1 if a sink cannot be reached.
    """
    from penstock.spark.pipeline.definition.definition import read_definition
    from penstock.spark.pipeline.run.run_plan import plan_run as planned
    from penstock.spark.pipeline.state.source_lakes import find_source_lakes
    from penstock.spark.pipeline.state.source_status import read_removed_status

    definition = read_definition(file)
    found, pages = planned(definition, execute=execute), _list_pages(definition)
    for source in found.sources:
        print_text(format_json_line(_make_object(source, pages)) if as_json else _format_plan(source))
    for gone in read_removed_status(find_source_lakes(definition)):
        shown = {"name": gone.source, "lake": gone.to_dict()}
        print_text(format_json_line(shown) if as_json else _format_removed(gone, file))
    if pages and not as_json:
        print_text("\n".join(["pages of the run", *map(_format_page, pages)]))
    if found.refusal is not None:
        raise typer.Exit(ExitCode.WRONG_USAGE if isinstance(found.refusal, UsageError) else ExitCode.FAILURE)
    if any(source.warnings for source in found.sources):
        raise typer.Exit(ExitCode.FAILURE)


def _make_object(source: PlannedSource, pages: Sequence[PageLine]) -> dict[str, Any]:
    shown = asdict(source) | {"pages": pages}
    shown["lake"] = source.status.to_dict()
    shown["refusal"] = None if source.refusal is None else str(source.refusal)
    del shown["status"]
    return shown


def _format_plan(source: PlannedSource) -> str:
    lines = [f"{source.name or 'source'}  {source.bucket}"]
    rows = [(name, value) for name, value in {**source.filters, **source.settings}.items()]
    if source.lag is not None:
        rows.append(("behind", f"{source.lag:,} seqnos"))
    else:
        rows.append(("behind", f"unknown: {source.unreachable or 'the bucket was not asked'}"))
    if source.former_name is not None:
        rows.append(("renamed from", source.former_name))
    rows.append(("state", _describe_state(source.status)))
    if source.refusal is not None:
        rows.append(("a run is refused", str(source.refusal)))
    rows += [("a run will try again", text) for text in source.warnings]
    rows += [("not checked", text) for text in source.unchecked]
    if source.status.left_out is not None:
        rows.append(("without table", source.status.left_out))
    lines += [f"  {name:<24} {text}" for name, text in rows]
    for part in source.parts:
        begins = (
            "paused" if source.status.paused else "new" if part.is_new else "differs" if part.changes else "goes on"
        )
        lines.append(f"  {part.name:<24} {part.kind:<10} {begins:<8} {part.place}   {part.description}".rstrip())
        lines += [f"  {'':<24} retype: {change}" for change in part.changes]
    for gone in source.status.removed:
        lines.append(f"  {gone.name:<24} {gone.kind:<10} removed  no longer declared; its files stay until a reset")
    return "\n".join(lines)


def _list_pages(definition: PipelineDefinition) -> list[PageLine]:
    """Return the pages that a run serves by its file. No login is read."""
    pages: list[PageLine] = []
    if (used := definition.metrics) is not None:
        access: Literal["login", "open"] = "login" if used.has_login else "open"
        pages.append(PageLine(name="metrics", host=used.host, port=used.port, path="/metrics", access=access))
    if (page := definition.dashboard) is not None and page.enabled:
        shown: Literal["login", "token"] = "login" if page.has_login else "token"
        pages.append(PageLine(name="dashboard", host=page.host, port=page.port, path=PREFIX, access=shown))
    return pages


def _format_page(page: PageLine) -> str:
    host, port = page["host"], page["port"]
    place = f"http://{format_endpoint(host, port)}" if port else f"any free port of {host}, "
    access = {"login": "with a login", "token": "with a token that the run prints", "open": "without a login"}
    return f"  {page['name']:<24} {place}{page['path']}   {access[page['access']]}"


def _format_removed(gone: LakeStatus, file: str) -> str:
    lines = [
        f"{gone.source or 'lake'}  {gone.lake}",
        f"  {'removed':<24} no longer declared; a run leaves it alone, and its files stay until"
        f" penstock pipeline reset {file} --source {gone.source} --yes",
        f"  {'state':<24} {_describe_state(gone)}",
    ]
    return "\n".join(lines + [f"  {each.name:<24} {each.kind:<10} removed" for each in gone.removed])


def _describe_state(status: LakeStatus) -> str:
    if status.state == "running":
        return f"running, process {status.pid}"
    if status.paused:
        return "paused"
    return "new" if status.changelog is None else f"{status.changelog.rows or 0:,} rows in the changelog"
