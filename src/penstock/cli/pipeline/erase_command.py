"""`penstock pipeline erase`: remove documents from all files of tables, indexes and dead letters."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.base.app import AsJson, format_examples
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.show import format_json_line, format_one_line, print_text, warn
from penstock.cli.base.work_display import Quiet, show_status
from penstock.cli.pipeline.arguments import KEYS_HELP, FileOrLake, find_written_lakes
from penstock.cli.pipeline.group import commands
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.spark.pipeline.maintenance.erasure import ErasureReport
    from penstock.spark.storage.object_path import LakePath

_MOST_NAMED = 20
"""Missing keys that are printed; --json has all."""
_KEY_WIDTH = 250


@commands.command(
    epilog=format_examples(
        "penstock pipeline erase ./lake --key user-4711 --key session-4711",
        'penstock pipeline erase pipeline.toml --where "user.id = 4711" --dry-run',
        "penstock pipeline erase pipeline.toml --keys keys.txt --collection app.users --json",
    )
)
def erase(
    where_lake: FileOrLake,
    *,
    key: Annotated[list[str] | None, typer.Option("--key", metavar="KEY", help="Key; can be repeated.")] = None,
    keys: Annotated[str | None, typer.Option("--keys", metavar="FILE", help=KEYS_HELP)] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where", metavar="SQL", help="Condition on the JSON value; one version of a document must meet it."
        ),
    ] = None,
    collection: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this collection, for example app.users.")
    ] = None,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="Only the tables of this source.")] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Succeed also if a key or the collection is unknown.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count documents and rows.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Erase documents, with all their versions, from the files of tables.

    The changelog keeps an empty row in the place of each version. Current and
    indexes lose the documents, and with FILE also the dead letters of its sinks.
    Replaced files stay until penstock pipeline vacuum --keep-hours 0. Delete the
    documents in the bucket first: its later changes are written again.

    Keys that no document has, and a collection without changes, are reported. Then
    the exit code is 1 after the erasure of the others; --allow-missing makes it 0.

    Not possible while a run writes the tables; stop it first. If the command was
    killed, run it again, with or without keys. --where starts Spark. With --json,
    each line is one source.
    """
    from penstock.spark.pipeline.maintenance.document_selection import DocumentSelection, read_keys_file
    from penstock.spark.pipeline.maintenance.erasure import erase_documents

    lakes = find_written_lakes(where_lake)
    if source is not None and source not in lakes:
        names = ", ".join(str(name) for name in lakes if name is not None) or "no name, there is one source"
        raise UsageError(f"--source is {source!r}, expected {names}")
    given = tuple(map(os.fsencode, key or ())) + (read_keys_file(keys) if keys is not None else ())
    if where is not None and not where.strip():
        raise UsageError(f"--where is {where!r}, expected a condition in SQL such as user.id = 4711")
    missing, is_known = dict.fromkeys(given), False
    for name, lake in lakes.items():
        if source not in (None, name):
            continue
        schema, letters = _find_declared(where_lake, name)
        selection = DocumentSelection(given, where, schema, collection)
        with show_status(f"Erasing documents of {lake.path}", is_quiet=quiet or as_json):
            report = erase_documents(lake, selection, letters, dry_run=dry_run)
        missing = {each: None for each in report.missing_keys if each in missing}
        is_known |= report.has_collection
        if as_json:
            shown = {"missing_keys": [_show_key(each) for each in report.missing_keys]}
            print_text(format_json_line({"source": name, **asdict(report), **shown}))
        else:
            print_text(_format_report(name, report))
    if missing:
        _report_missing([*missing])
    if not is_known:
        warn(f"no change is in the collection {collection!r}")
    if (missing or not is_known) and not allow_missing:
        raise typer.Exit(ExitCode.FAILURE)


def _show_key(key: bytes) -> str:
    return key.decode(errors="backslashreplace")


def _report_missing(keys: list[bytes]) -> None:
    named = ", ".join(format_one_line(key, _KEY_WIDTH) for key in keys[:_MOST_NAMED])
    more = f" and {len(keys) - _MOST_NAMED:,} more" if len(keys) > _MOST_NAMED else ""
    subject = "1 given key" if len(keys) == 1 else f"{len(keys):,} given keys"
    warn(f"no document has {subject}: {named}{more}")


def _find_declared(where: str, source: str | None) -> tuple[str | None, list[LakePath]]:
    """Return the fields of a source's values, and the directories of dead letters; nothing if no file declares it."""
    from penstock.spark.pipeline.definition.definition import is_definition, read_definition
    from penstock.spark.source.source_options import INFERRED

    if not is_definition(where):
        return None, []
    definition = read_definition(where)
    declared = next((each for each in definition.sources if each.name == source), None)
    if declared is None:
        return None, []
    found = (each.find_letter_directory() for each in definition.list_dependents(declared))
    schema = None if declared.value_schema == INFERRED else declared.value_schema
    return schema, [path for path in found if path is not None]


def _format_report(source: str | None, report: ErasureReport) -> str:
    verb = "erased" if report.is_done else "would be erased"
    head = "" if source is None else f"{source}: "
    lines = [f"{head}{report.documents:,} document{'s' * (report.documents != 1)} {verb}"]
    for part in report.parts:
        files = f" in {part.files:,} file{'s' * (part.files != 1)}" if report.is_done else ""
        lines.append(f"  {part.table:<14} {part.rows:,} row{'s' * (part.rows != 1)}{files}")
    if report.existing:
        lines.append(
            f"{report.existing:,} of them still existed in current. Delete them in the bucket:"
            " a later change or a rollback writes them again."
        )
    if report.is_done and any(part.files for part in report.parts):
        lines.append("Replaced files stay on disk until penstock pipeline vacuum --keep-hours 0.")
    return "\n".join(lines)
