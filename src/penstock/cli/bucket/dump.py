"""`penstock dump` and `penstock restore`: the changes of a bucket go into a file, and come back."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.base.app import (
    AsJson,
    Panel,
    PasswordFile,
    Url,
    Username,
    app,
    format_examples,
    resolve_address,
)
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.option_parameters import add_options
from penstock.cli.base.show import format_json_line, print_text, warn
from penstock.cli.base.work_display import show_transfer
from penstock.client.connect.address import DEFAULT_URL, Address, ConnectionOptions
from penstock.client.filters.filter_options import FilterOptions
from penstock.options import (
    BOOLEAN,
    list_of,
    nonempty,
    one_of,
    option,
    shared_option,
    whole_number,
)

if TYPE_CHECKING:
    from penstock.client.filters.unreadable_changes import UnreadableChanges
    from penstock.client.streams.stream_choice import ChangeOptions

_FORMATS = one_of("jsonl", "parquet", "arrow")
_FORMAT_HELP = "format of the file"
_FORMAT_SHOWN = "by the suffix: .jsonl, .parquet or .arrow"
_QUIET_HELP = "show no progress and print no summary"


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """The options of `penstock dump`."""

    file_format: str | None = option(_FORMATS, _FORMAT_HELP, default=None, shown=_FORMAT_SHOWN, flag="--format")
    since: str | None = option(
        nonempty("a time", metavar="TIME"),
        "only the changes since this time, such as 2026-11-23T08:00:00Z",
        default=None,
        shown="all",
    )
    vbuckets: tuple[int, ...] | None = option(
        list_of(whole_number(0, 65535)),
        "only this vbucket; can be repeated",
        default=None,
        shown="all",
        flag="--vbucket",
    )
    scope: str | None = shared_option(ConnectionOptions)
    collections: tuple[str, ...] | None = shared_option(ConnectionOptions)
    out_of_order: bool | None = shared_option(ConnectionOptions)
    filter_key: str | None = shared_option(FilterOptions)
    filter_key_exclude: str | None = shared_option(FilterOptions)
    filter_value: str | None = shared_option(FilterOptions)
    keys_only: bool = option(BOOLEAN, "without values; such a file cannot be restored", default=False)
    replace: bool = option(BOOLEAN, "replace an existing file, and start over", default=False)
    quiet: bool = option(BOOLEAN, _QUIET_HELP, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """The options of `penstock restore`."""

    file_format: str | None = option(_FORMATS, _FORMAT_HELP, default=None, shown=_FORMAT_SHOWN, flag="--format")
    force: bool = option(BOOLEAN, "replace newer versions in the bucket too", default=False)
    quiet: bool = option(BOOLEAN, _QUIET_HELP, default=False)


DumpFile = Annotated[Path, typer.Argument(metavar="FILE", help="File of the dump.")]


@app.command(
    rich_help_panel=Panel.DATA,
    epilog=format_examples(
        "penstock dump beer.parquet",
        "penstock dump beer.jsonl --scope inventory --filter-key '^hotel'",
        "penstock dump today.arrow --since 2026-11-23T08:00:00Z --json",
    ),
)
@add_options("chosen", DumpOptions)
def dump(
    file: DumpFile,
    *,
    chosen: dict[str, Any],
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Write the documents and deletions of a bucket into a file, with their metadata.

    The file has one row a change, in the columns of a change, and appears when
    it is complete. It ends at the current end of the bucket. A document that
    changes meanwhile may have several rows; the last one is its newest version.

    If the command was killed, run it again with the same options: it continues
    with FILE.partial at the positions in FILE.positions.

    The exit status is 1 if --filter-value could not read documents. These are
    named, and are not in the file.
    """
    options, started = DumpOptions(**chosen), time.monotonic()
    address = resolve_address(url, username, password)
    rows, is_continued, unreadable = asyncio.run(_dump(address, file, options, as_json=as_json))
    nbytes, seconds = file.stat().st_size, round(time.monotonic() - started, 3)
    if as_json:
        summary = {"file": str(file), "rows": rows, "bytes": nbytes, "seconds": seconds, "continued": is_continued}
        print_text(format_json_line({**summary, "unreadable": asdict(unreadable)}))
    elif not options.quiet:
        continued = ", continued from an earlier run" if is_continued else ""
        print_text(f"{file}: {rows} changes, {nbytes} bytes, {seconds:.1f} s{continued}")
    if unreadable.count:
        warn(unreadable.describe())
        raise typer.Exit(ExitCode.FAILURE)


async def _dump(
    address: Address, path: Path, options: DumpOptions, *, as_json: bool
) -> tuple[int, bool, UnreadableChanges]:
    """Return the number of changes, whether the dump was continued, and the changes that the filter could not read."""
    from penstock.client.bucket import Bucket
    from penstock.client.dumps.bucket_dump import BucketDump, DumpChoice
    from penstock.client.dumps.dump_formats import choose_format
    from penstock.client.streams.time_search import parse_time

    file_format = choose_format(path, options.file_format)
    selected: ChangeOptions = {
        "xattrs": True,
        "values": not options.keys_only,
        "filter_key": options.filter_key,
        "filter_key_exclude": options.filter_key_exclude,
        "filter_value": options.filter_value,
    }
    if options.scope is not None:
        selected["scope"] = options.scope
    if options.collections is not None:
        selected["collections"] = options.collections
    if options.out_of_order is not None:
        selected["out_of_order"] = options.out_of_order
    choice = DumpChoice(
        start="beginning" if options.since is None else parse_time(options.since),
        vbuckets=tuple(sorted(set(options.vbuckets))) if options.vbuckets else None,
        options=selected,
    )
    async with Bucket(address) as bucket:
        dumped = BucketDump(bucket, path, file_format, choice, is_replacing=options.replace)
        async with show_transfer(path.name, lambda: dumped.progress, is_quiet=options.quiet or as_json):
            return await dumped.run(), dumped.is_continued, dumped.unreadable


@app.command(
    rich_help_panel=Panel.DATA,
    epilog=format_examples("penstock restore beer.parquet", "penstock restore beer.jsonl --force --json"),
)
@add_options("chosen", RestoreOptions)
def restore(
    file: DumpFile,
    *,
    chosen: dict[str, Any],
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Write a dump into a bucket, with the metadata of its documents.

    The bucket compares each version with its own and keeps the newer one, so a
    second restore changes nothing. The number of vbuckets may differ. The
    collections of the file must exist.
    """
    asyncio.run(_restore(resolve_address(url, username, password), file, RestoreOptions(**chosen), as_json=as_json))


async def _restore(address: Address, path: Path, options: RestoreOptions, *, as_json: bool) -> None:
    from penstock.client.bucket import Bucket
    from penstock.client.dumps.bucket_restore import BucketRestore
    from penstock.client.dumps.dump_formats import choose_format

    file_format, started = choose_format(path, options.file_format), time.monotonic()
    async with Bucket(address) as bucket:
        restored = BucketRestore(bucket, path, file_format, is_forced=options.force)
        counts = restored.counts
        try:
            async with show_transfer(path.name, lambda: restored.progress, is_quiet=options.quiet or as_json):
                await restored.run()
        finally:
            # Also after a failure: the changes counted here are in the bucket.
            seconds = round(time.monotonic() - started, 3)
            if as_json:
                print_text(format_json_line({**asdict(counts), "seconds": seconds}))
            elif not options.quiet:
                print_text(
                    f"{counts.rows} changes: {counts.written} written, {counts.kept} already there or newer, "
                    f"{counts.missing} deletions of missing documents, {counts.refused} refused, {seconds:.1f} s"
                )
    for refusal in counts.refusals:
        warn(f"refused: {refusal}")
    if counts.refused:
        raise typer.Exit(ExitCode.FAILURE)
