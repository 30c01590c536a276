"""`penstock replicate`: keep replica vbuckets on another node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.cli.base.app import (
    AsJson,
    Panel,
    PasswordFile,
    Username,
    app,
    format_examples,
    resolve_address,
)
from penstock.cli.base.interrupt import run_until_signal
from penstock.cli.base.option_parameters import add_options
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.base.work_display import Quiet, show_status
from penstock.client.connect.address import Address
from penstock.options import BOOLEAN, list_of, one_of, option, whole_number
from penstock.wire.codec.constants import Dialect

if TYPE_CHECKING:
    from penstock.client.replication.replication_progress import ReplicationProgress
    from penstock.client.replication.replicator import ReplicationOptions

_SECONDS_BETWEEN_LINES = 1.0
"""Time between two lines of JSON."""

_FromUrl = Annotated[
    str, typer.Option("--from", metavar="URL", help="Connection string of the bucket to copy, at any of its nodes.")
]
_ToUrl = Annotated[str, typer.Option("--to", metavar="URL", help="Connection string of the bucket at the target node.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicateOptions:
    """The options of `penstock replicate`."""

    vbuckets: tuple[int, ...] | None = option(
        list_of(whole_number(0, 65535)), "replicate only this vbucket; can be repeated", default=None, flag="--vbucket"
    )
    protocol: Literal["dcp", "upr", "tap", "auto"] = option(
        one_of("dcp", "upr", "tap", "auto"),
        "dialect of the streams; auto takes DCP if both nodes have it, and else TAP",
        default="auto",
    )
    until: Literal["now", "never"] = option(
        one_of("now", "never"),
        "stop when the target has all changes that exist at the start, or keep following",
        default="never",
    )
    overwrite: bool = option(
        BOOLEAN, "let active vbuckets of the target become replicas, which lose their own changes", default=False
    )


@app.command(
    rich_help_panel=Panel.CLUSTER,
    epilog=format_examples(
        "penstock replicate --from couchbase://10.0.0.1/beer --to couchbase://10.0.0.2/beer",
        "penstock replicate --from $A --to $B --vbucket 7 --until now --json",
    ),
)
@add_options("chosen", ReplicateOptions)
def replicate(
    *,
    chosen: dict[str, Any],
    source: _FromUrl,
    target: _ToUrl,
    username: Username = None,
    password: PasswordFile = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Keep replicas of a bucket's vbuckets on another node.

    The target's vbuckets become replicas. They get the documents, seqnos and
    failover logs of the source, continue where they were, and roll back after a
    failover of the source. The command only passes frames from node to node.

    penstock cluster run keeps all replicas that the cluster map names.

    Runs until SIGINT (Ctrl-C) or SIGTERM, or with --until now until the target
    has all changes that the source has at the start.

    TAP has no seqnos, so each connection over TAP copies all documents again.
    A pair that uses TAP changes to DCP when a connection finds it on both nodes.
    Over UPR the source sends UPR, and the command translates it to DCP for the target.

    With --json, each line is the state at one moment. lag counts the changes that
    the target lacks, nodes has the lag of each source node.
    """
    origin, destination = (resolve_address(url, username, password) for url in (source, target))
    asyncio.run(
        _replicate(origin, destination, _make_options(ReplicateOptions(**chosen)), as_json=as_json, is_quiet=quiet)
    )


def _make_options(chosen: ReplicateOptions) -> ReplicationOptions:
    from penstock.client.replication.replicator import ReplicationOptions

    return ReplicationOptions(
        vbuckets=None if chosen.vbuckets is None else sorted(set(chosen.vbuckets)),
        protocol=None if chosen.protocol == "auto" else Dialect(chosen.protocol),
        overwrite=chosen.overwrite,
        until_caught_up=chosen.until == "now",
    )


async def _replicate(
    source: Address, target: Address, options: ReplicationOptions, *, as_json: bool, is_quiet: bool
) -> None:
    """Replicate until the end or a signal, and print the last progress."""
    from penstock.client.replication.replicator import Replicator

    last: ReplicationProgress | None = None

    async def work(stop: asyncio.Event) -> None:
        async with Replicator(source, target, options) as replicator:
            with _show_progress(as_json=as_json, is_quiet=is_quiet) as show:

                def report(progress: ReplicationProgress) -> None:
                    nonlocal last
                    show(progress)
                    last = progress

                await replicator.run(report)

    try:
        await run_until_signal(work, is_complete=lambda: not options.until_caught_up)
    finally:
        if last is not None:
            print_text(format_json_line(last.to_dict()) if as_json else _format_summary(last))


@contextmanager
def _show_progress(*, as_json: bool, is_quiet: bool) -> Iterator[Callable[[ReplicationProgress], None]]:
    """Yield a function that shows the progress: as lines of JSON, or on a terminal."""
    if as_json:
        yield _make_line_printer()
        return
    with show_status("Connecting; Ctrl-C stops.", is_quiet=is_quiet) as show:
        yield lambda progress: show(_format_state(progress))


def _make_line_printer() -> Callable[[ReplicationProgress], None]:
    due = 0.0

    def print_line(progress: ReplicationProgress) -> None:
        nonlocal due
        if progress.seconds >= due:
            due = progress.seconds + _SECONDS_BETWEEN_LINES
            print_text(format_json_line(progress.to_dict()))

    return print_line


def _format_state(progress: ReplicationProgress) -> str:
    nodes = ", ".join(f"{node}: {lag:,}" for node, lag in progress.nodes.items()) if len(progress.nodes) > 1 else ""
    return f"{_format_summary(progress)}{f' ({nodes})' if nodes else ''}; Ctrl-C stops."


def _format_summary(progress: ReplicationProgress) -> str:
    rate = progress.nbytes / max(progress.seconds, 0.001) / 1e6
    return (
        f"{progress.running} of {progress.vbuckets} vbuckets replicated over {progress.protocol or 'no connection'}, "
        f"{progress.lag:,} changes behind, {progress.nbytes:,} bytes, {rate:,.1f} MB/s, {progress.seconds:.1f} s"
    )
