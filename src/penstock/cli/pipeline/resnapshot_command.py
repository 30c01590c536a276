"""`penstock pipeline resnapshot`: read parts of a bucket again while a run continues."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.base.app import AsJson, format_examples
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.base.work_display import Quiet, show_status
from penstock.cli.pipeline.arguments import KEYS_HELP, FileOrLake, OneSource, select_lake
from penstock.cli.pipeline.group import commands
from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


@commands.command(
    epilog=format_examples(
        "penstock pipeline resnapshot ./lake --vbuckets 0-15,40",
        "penstock pipeline resnapshot pipeline.toml --key user-4711",
        "penstock pipeline resnapshot pipeline.toml --collection app.users --collection app.orders --json",
    )
)
def resnapshot(
    where: FileOrLake,
    *,
    vbuckets: Annotated[
        str | None, typer.Option(metavar="RANGES", help="Vbuckets to read again: numbers and ranges.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="Key whose vbucket to read again; can be repeated.")
    ] = None,
    keys: Annotated[str | None, typer.Option("--keys", metavar="FILE", help=KEYS_HELP)] = None,
    collection: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Collection to read again, and no other; needs FILE and no run. Can be repeated."
        ),
    ] = None,
    source: OneSource = None,
    timeout: Annotated[
        float, typer.Option(min=0, max=604800, metavar="SECONDS", help="Maximum time to wait for the run.")
    ] = 600,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Read documents of the bucket again, for tables that lack some of them.

    With --vbuckets, --key and --keys, the smallest part that is read is a vbucket,
    with all collections of the source. A rollback row voids its rows, and the same
    batch has all its documents again. Changes of other programs meanwhile are
    neither lost nor repeated. A run may continue, and the command waits for it.
    Without a run, the next run reads the vbuckets. The exit code is 1 if the run
    does not finish within --timeout.

    With --collection, the command itself reads these collections and adds missing
    changes to the changelog. Documents that the bucket no longer has are
    removed. Other collections stay as they are. Not possible while a run writes the
    tables, and for a source with where or transform.
    """
    from penstock.spark.pipeline.state.resnapshot import request_resnapshot, wait_for_resnapshot

    choose = _make_choice(vbuckets, key, keys, collection)
    if collection:
        _resnapshot_collections(where, collection, source, quiet=quiet, as_json=as_json)
        return
    lake = select_lake(where, source)
    histories = request_resnapshot(lake, choose)
    with show_status(f"Waiting for the run of {lake.path}", is_quiet=quiet or as_json):
        is_done = wait_for_resnapshot(lake, histories, timeout)
    if as_json:
        print_text(format_json_line({"vbuckets": [*histories], "done": is_done}))
        return
    count = f"{len(histories):,} vbucket{'s' * (len(histories) != 1)}"
    print_text(f"{count} read again." if is_done else f"No run writes {lake.path}; the next run reads {count} again.")


def _resnapshot_collections(
    where: str, collections: list[str], source: str | None, *, quiet: bool, as_json: bool
) -> None:
    from penstock.spark.pipeline.definition.definition import is_definition, read_definition
    from penstock.spark.pipeline.maintenance.collection_snapshot import resnapshot_collections

    if not is_definition(where):
        raise UsageError(f"--collection, and {where} does not name the bucket; expected the pipeline's TOML file")
    definition = read_definition(where)
    with show_status(f"Reading collections {', '.join(collections)}", is_quiet=quiet or as_json) as show:
        found = resnapshot_collections(definition, collections, source=source, report=show)
    if as_json:
        print_text(format_json_line(asdict(found)))
        return
    added = f"{found.added:,} document{'s' * (found.added != 1)} added or replaced"
    print_text(f"{', '.join(found.collections)}: {found.documents:,} changes read; {added}, {found.removed:,} removed.")


def _make_choice(
    vbuckets: str | None, key: list[str] | None, keys: str | None, collection: list[str] | None
) -> Callable[[int], Collection[int]]:
    """Return a function from the number of vbuckets of the bucket to the chosen vbuckets.

    Raises:
        UsageError: none of the options is given, or two kinds of them.
    """
    from penstock.client.documents.document import compute_vbucket
    from penstock.spark.pipeline.maintenance.document_selection import read_keys_file
    from penstock.spark.source.source_options import parse_vbuckets

    if sum((vbuckets is not None, bool(key) or keys is not None, bool(collection))) != 1:
        raise UsageError("expected one of --vbuckets, --key or --keys, and --collection")
    if vbuckets is not None:
        chosen = parse_vbuckets("vbuckets", vbuckets)
        return lambda count: chosen
    given = tuple(map(os.fsencode, key or ())) + (read_keys_file(keys) if keys is not None else ())
    return lambda count: {compute_vbucket(each, count) for each in given}
