"""`penstock xdcr`: replicate the changes of a bucket to another bucket."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Username, app, format_examples, resolve_address
from penstock.cli.base.exit_codes import ExitCode
from penstock.cli.base.interrupt import run_until_signal
from penstock.cli.base.option_parameters import add_options
from penstock.cli.base.show import format_json_line, print_text, warn
from penstock.cli.base.work_display import Quiet, show_status
from penstock.client.dumps.json_objects import make_json_object
from penstock.client.xdcr.xdcr_options import XdcrOptions
from penstock.errors import Error, UsageError

if TYPE_CHECKING:
    from penstock.client.documents.window_writer import RefusedRows
    from penstock.client.xdcr.bucket_replication import BucketReplication

_REPORT_SECONDS = 1.0
_SHOWN_EXAMPLES = 10


@app.command(
    rich_help_panel=Panel.DATA,
    epilog=format_examples(
        "penstock xdcr --from couchbase://a/beer --to couchbase://b/beer --state beer.xdcr",
        "penstock xdcr --from couchbase://a/beer --to couchbase://b/beer --until now --json",
        "penstock xdcr --from couchbase://a/beer --to couchbase://b/bars --filter-key '^bar-' --skip-expirations",
        "penstock xdcr --from couchbase://a/trip --to couchbase://b/trip --map shop.hotels=archive.hotels "
        "--filter-value 'stars >= 4 AND EXISTS(address.city)'",
    ),
)
@add_options("chosen", XdcrOptions)
def xdcr(
    *,
    source: Annotated[
        str, typer.Option("--from", metavar="URL", help="Connection string of the bucket to read.", show_default=False)
    ],
    target: Annotated[
        str, typer.Option("--to", metavar="URL", help="Connection string of the bucket to write.", show_default=False)
    ],
    chosen: dict[str, Any],
    refused: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Append refused changes to this file, as JSON lines.", show_default=False),
    ] = None,
    username: Username = None,
    password: PasswordFile = None,
    to_username: Annotated[
        str | None, typer.Option(metavar="NAME", help="User name at the target.", show_default="--username")
    ] = None,
    to_password: Annotated[
        str | None,
        typer.Option(
            "--to-password-file", metavar="FILE", help="Password at the target.", show_default="--password-file"
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Replicate the changes of a bucket to another bucket.

    Documents keep their metadata, and the target resolves conflicts by its own
    rule, which must be the source's too. Run a second command in the other
    direction to replicate two ways.

    A change counts as replicated when the target has it on disk. After that, its
    position is written to the state file. With --state, a replication that was
    killed resumes there.

    Runs until SIGINT (Ctrl-C) or SIGTERM, or with --until now until the target
    has all changes that the source has at the start. The exit status is 1 if the
    target refused changes, or if --filter-value could not read documents. These
    are named. With --json, each line is an object with the numbers so far, one
    per second and one at the end.
    """
    from penstock.client.xdcr.bucket_replication import BucketReplication

    options = XdcrOptions(**chosen)
    addresses = (
        resolve_address(source, username, password),
        resolve_address(target, to_username or username, to_password or password),
    )
    with _open_refused(refused) as on_refused:
        replication = BucketReplication(*addresses, options, on_refused=on_refused)
        asyncio.run(_run_replication(replication, as_json=as_json, is_quiet=quiet, is_endless=options.until != "now"))
    progress = replication.progress
    for word, examples in (("refused", progress.refusals), ("unreadable", progress.unreadable_examples)):
        for text in examples[:_SHOWN_EXAMPLES]:
            warn(f"{word}: {text}")
    if progress.refused or progress.unreadable:
        raise typer.Exit(ExitCode.FAILURE)


@contextmanager
def _open_refused(path: str | None) -> Iterator[Callable[[RefusedRows], None] | None]:
    """Yield a function that appends refused changes to a file; None without a file."""
    if path is None:
        yield None
        return
    try:
        file = Path(path).expanduser().open("a", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}), expected a file") from error
    with file:

        def write_refused(refused: RefusedRows) -> None:
            for row, fault in zip(refused.rows.to_pylist(), refused.faults, strict=True):
                file.write(format_json_line({**make_json_object(row), "status": fault.status, "reason": fault.text}))
                file.write("\n")
            file.flush()
            os.fsync(file.fileno())  # before a checkpoint includes these changes

        yield write_refused


async def _run_replication(replication: BucketReplication, *, as_json: bool, is_quiet: bool, is_endless: bool) -> None:
    """Replicate until the end or a signal, and print the numbers."""
    reporting = asyncio.ensure_future(_report_progress(replication, as_json=as_json, is_quiet=is_quiet))

    async def work(stop: asyncio.Event) -> None:
        await replication.run()

    try:
        await run_until_signal(work, is_complete=lambda: is_endless)
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
        print_text(
            format_json_line({**asdict(replication.progress), "done": True}) if as_json else replication.progress
        )


async def _report_progress(replication: BucketReplication, *, as_json: bool, is_quiet: bool) -> None:
    """Report rate and lag once a second, as JSON on standard output or on a terminal."""
    with show_status("Connecting; Ctrl-C stops.", is_quiet=as_json or is_quiet) as show:
        before, since = 0, time.monotonic()
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            try:
                lag: int | None = await replication.count_lag()
            except (OSError, Error):
                lag = None  # the replication itself reports why a bucket does not answer
            received, now = replication.progress.received, time.monotonic()
            rate, before, since = (received - before) / (now - since), received, now
            if as_json:
                numbers = {**asdict(replication.progress), "rate": round(rate, 1), "lag": lag, "done": False}
                print_text(format_json_line(numbers))
            else:
                behind = "unknown" if lag is None else f"{lag:,}"
                show(f"{replication.progress}; {rate:,.0f}/s, lag {behind}; Ctrl-C stops.")
