"""`penstock tail`: print the changes of a bucket."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from penstock.cli.base.app import (
    AsJson,
    Panel,
    PasswordFile,
    Url,
    Username,
    app,
    format_examples,
    override_options,
    resolve_address,
)
from penstock.cli.base.option_parameters import add_options
from penstock.cli.base.show import format_json_line, format_name, format_one_line, print_text
from penstock.cli.base.work_display import show_status
from penstock.client.connect.address import DEFAULT_URL, Address, Compression, ConnectionOptions, MissingVbuckets
from penstock.client.connect.dropped_frames import EXPECTED_REASONS, describe_drops
from penstock.client.dumps.json_objects import make_json_object
from penstock.client.filters.filter_options import FilterOptions
from penstock.client.signals.web_listener import MetricsFlags, WebListener, read_listener
from penstock.client.topology.missing_vbuckets import format_ranges
from penstock.options import (
    BOOLEAN,
    POSITIVE,
    SECONDS,
    list_of,
    nonempty,
    one_of,
    option,
    read_shared_values,
    shared_option,
    whole_number,
)
from penstock.wire.codec.constants import Dialect

if TYPE_CHECKING:
    from penstock.client.bucket import Bucket
    from penstock.client.signals.consumer_report import ConsumerReport
    from penstock.client.streams.change_stream import ChangeStream
    from penstock.client.streams.stream_choice import FirstStart
    from penstock.wire.columns.schema import Change

_HEADER = f"{'vb':>4} {'seqno':>8} {'event':10} {'key':32} {'cas':>19} {'size':>7} value"
_VALUE_WIDTH = 60
"""Characters of a value that are printed where standard output is no terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions:
    """The options of `penstock tail`."""

    start: Literal["beginning", "now"] = option(
        one_of("beginning", "now"),
        "start at the beginning of the bucket's history, or at its current end",
        default="now",
        flag="--from",
    )
    until: Literal["now", "never"] = option(
        one_of("now", "never"), "stop at the current end of the bucket, or keep following", default="never"
    )
    vbuckets: tuple[int, ...] | None = option(
        list_of(whole_number(0, 65535)), "follow only this vbucket; can be repeated", default=None, flag="--vbucket"
    )
    limit: int | None = option(POSITIVE, "stop after this many changes", default=None)
    protocol: Dialect | None = shared_option(ConnectionOptions)
    missing_vbuckets: MissingVbuckets | None = shared_option(ConnectionOptions)
    mitigate_rollback: bool | None = shared_option(ConnectionOptions)
    compression: Compression | None = shared_option(ConnectionOptions)
    keys_only: bool = option(BOOLEAN, "do not request or print values", default=False)
    since: str | None = option(
        nonempty("a time", metavar="TIME"),
        "start at the first changes of this time, such as 2026-11-23T08:00:00Z, instead of --from",
        default=None,
    )
    out_of_order: bool | None = shared_option(ConnectionOptions)
    scope: str | None = shared_option(ConnectionOptions)
    collections: tuple[str, ...] | None = shared_option(ConnectionOptions)
    filter_key: str | None = shared_option(FilterOptions)
    filter_key_exclude: str | None = shared_option(FilterOptions)
    filter_value: str | None = shared_option(FilterOptions)
    report: float | None = option(
        SECONDS, "print lag, rates and counts on standard error each time after so many seconds", default=None
    )
    quiet: bool = option(BOOLEAN, "show no progress of --until now with redirected output", default=False)
    metrics: str | None = shared_option(MetricsFlags)
    metrics_login: str | None = shared_option(MetricsFlags)


@app.command(
    rich_help_panel=Panel.DATA,
    epilog=format_examples(
        "penstock tail --from beginning --until now",
        "penstock tail --protocol tap --from beginning",
        "penstock tail --since 2026-11-23T08:00:00Z --filter-key '^beer-' --filter-value 'abv > 5'",
        "penstock tail --report 5 --metrics 9464",
        "penstock tail --json | jq -r 'select(.event == \"deletion\").key'",
    ),
)
@add_options("chosen", TailOptions)
def tail(
    *,
    chosen: dict[str, Any],
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the changes of a bucket, one per line.

    Rollbacks are printed as lines: changes of that vbucket above the given seqno
    are void. Events of collections are printed as lines too. A key outside the
    default collection is printed as scope.collection/key.

    --since finds the changes by their times and reads all keys for that. It
    fails if deletions since then were purged, or if the changes have no times.

    --until now reads every vbucket. If no node serves some of them, tail waits
    for them, and then fails or skips them (--missing-vbuckets).

    With --json, each line is an object with the columns of a change. cas and
    vbuuid are strings, because many JSON parsers round large numbers. key and
    value are the exact text; bytes that are not UTF-8 are printed in base64 as
    key_base64 and value_base64. Null columns are omitted.

    --report prints a line on standard error each time and at the end; with
    --json, an object. Documents that --filter-value could not read are named
    there at the end.
    """
    options = TailOptions(**chosen)
    columns = _compute_value_width()
    line: Callable[[Change], str] = (
        (lambda change: _format_json(change, options.keys_only))
        if as_json
        else (lambda change: _format_text(change, 0 if options.keys_only else columns))
    )
    if sys.stdout.isatty() and not as_json:
        print_text(_HEADER.removesuffix(" value") if options.keys_only else _HEADER)
    address = override_options(resolve_address(url, username, password), read_shared_values(options, ConnectionOptions))
    listener = read_listener(options.metrics, options.metrics_login)
    asyncio.run(_print_changes(address, options, listener, line, as_json=as_json))


async def _print_changes(
    address: Address,
    options: TailOptions,
    listener: WebListener | None,
    line: Callable[[Change], str],
    *,
    as_json: bool,
) -> None:
    from penstock.client.bucket import Bucket
    from penstock.client.streams.time_search import parse_time
    from penstock.wire.columns.run_decoder import list_changes

    stop: Literal["now"] | None = "now" if options.until == "now" else None
    vbuckets = sorted(set(options.vbuckets)) if options.vbuckets else None
    start: FirstStart = options.start if options.since is None else parse_time(options.since)
    filters, limit = read_shared_values(options, FilterOptions), options.limit
    # A terminal that shows the changes needs no progress.
    is_hidden = options.quiet or stop is None or sys.stdout.isatty()
    counted, started = 0, time.monotonic()
    async with AsyncExitStack() as stack:
        show = stack.enter_context(show_status("Reading changes", is_quiet=is_hidden))
        bucket = await stack.enter_async_context(Bucket(address))
        stream = await stack.enter_async_context(await bucket.stream(start, stop, vbuckets, **filters))
        try:
            async with _reporting(bucket, stream, options, listener, as_json=as_json):
                async for batch in stream:
                    changes = list_changes(batch)[:limit]
                    counted += len(changes)
                    show(f"{counted:,} changes, {counted / (time.monotonic() - started):,.0f}/s")
                    # One write for each batch; flushed, because a reader of the pipe waits for it.
                    print_text("\n".join(map(line, changes)))
                    if limit is not None:
                        limit -= len(changes)
                        if not limit:
                            return
        finally:
            _report_omissions(stream, as_json=as_json)


@asynccontextmanager
async def _reporting(
    bucket: Bucket, stream: ChangeStream, options: TailOptions, listener: WebListener | None, *, as_json: bool
) -> AsyncIterator[None]:
    """Print reports and serve metrics while the block runs, if the options ask for them."""
    from penstock.client.signals.consumer_reporter import ConsumerReporter, ReportedState
    from penstock.client.signals.served_reports import repeat_reports, serve_reports

    def read_state() -> ReportedState:
        return ReportedState(stream.counts, stream.positions, stream.queued_bytes, stream.missing)

    def show(report: ConsumerReport) -> None:
        text = json.dumps({"report": report.to_dict()}) if as_json else _format_report(report)
        print_text(text, on_stderr=True)

    async with AsyncExitStack() as stack:
        if listener is not None:
            served = ConsumerReporter(bucket, read_state, stream.selection)
            port = await stack.enter_async_context(serve_reports(served, listener))
            assert port is not None
            print_text(f"Metrics: {listener.make_url(port)}", on_stderr=True)
        if options.report is not None:
            reporter = ConsumerReporter(bucket, read_state, stream.selection)
            await stack.enter_async_context(repeat_reports(reporter, show, options.report))
        yield
        if options.report is not None:
            show(await reporter.report())


def _format_report(report: ConsumerReport) -> str:
    counts = report.counts
    lag = f"lag {report.lag_seqnos:,} seqnos in {report.lagging_vbuckets} vbuckets, {report.lag_seconds:.1f} s"
    parts = [
        "caught up" if report.is_caught_up else lag,
        f"{report.changes_per_second:,.0f} changes/s, {report.bytes_per_second / 1e6:,.2f} MB/s",
        f"{report.buffered_bytes:,} bytes buffered",
        f"{counts.rollbacks} rollbacks, {counts.reconnects} reconnects",
    ]
    if report.missing:
        parts.append(f"{len(report.missing)} vbuckets wait for their nodes")
    if counts.last_error:
        parts.append(f"last error: {format_one_line(counts.last_error.encode(), 200)}")
    return f"{datetime.fromtimestamp(report.at):%H:%M:%S} {'; '.join(parts)}"


def _report_omissions(stream: ChangeStream, *, as_json: bool) -> None:
    """Print on standard error which documents, frames and vbuckets of the bucket are not among the lines."""
    unreadable = stream.counts.unreadable
    if unreadable.count and as_json:
        print_text(format_json_line({"unreadable": asdict(unreadable)}), on_stderr=True)
    elif unreadable.count:
        print_text(f"Not shown: {unreadable.describe()}", on_stderr=True)
    dropped = {reason: frames for reason, frames in stream.dropped.items() if reason not in EXPECTED_REASONS}
    if dropped:
        print_text(f"Not shown: {describe_drops(dropped)}", on_stderr=True)
    if missing := stream.missing:
        print_text(f"Not shown: vbuckets {format_ranges(missing, ', ')}, which waited for their nodes", on_stderr=True)


def _format_json(change: Change, keys_only: bool) -> str:
    shown = change._replace(value=None) if keys_only else change
    return format_json_line(make_json_object(shown._asdict()))


def _format_text(change: Change, value_width: int) -> str:
    seqno = "" if change.seqno is None else change.seqno
    start = f"{change.vbucket:4} {seqno:>8} {change.event:10}"
    if change.key is None:
        return f"{start} {_format_event(change)}"
    size = "" if change.value is None else len(change.value)
    key = format_name(change.key)
    if change.collection_id:
        name = ".".join(part for part in (change.scope, change.collection) if part is not None)
        key = f"{name or f'0x{change.collection_id:x}'}/{key}"
    text = f"{start} {key:32} {change.cas or 0:19} {size:>7}"
    return f"{text} {format_one_line(change.value, value_width)}".rstrip() if value_width else text.rstrip()


def _format_event(change: Change) -> str:
    if change.requested_seqno is None:
        names = ".".join(name for name in (change.scope, change.collection) if name is not None)
        return f"{names} {format_one_line(change.value or b'', _VALUE_WIDTH)}".strip()
    return f"back to {change.seqno}, the common point is {change.requested_seqno}; history {change.history}"


def _compute_value_width() -> int:
    if not sys.stdout.isatty():
        return _VALUE_WIDTH
    return max(shutil.get_terminal_size().columns - len(_HEADER) + len("value"), 20)
