"""The screen of `penstock top`: totals, activity of vbuckets, change streams. It fits into 80 columns and 24 lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.cli.base.show import format_name, format_one_line
from penstock.cli.top.traffic_sample import BucketRates, ConnectionSample, TrafficSample
from penstock.names import make_printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_BARS = " ▁▂▃▄▅▆▇█"
_STRIP_CELLS = 64
_BUSIEST = 5
_LINES_BESIDE_STREAMS = 14  # with the heading of the streams and the line below them
_LEAST_STREAMS = 3
_UNITS = ("", "k", "M", "G", "T", "P")
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NAME_WIDTH = 24
_QUANTILES = ("p50", "p95", "p99")


def format_count(number: float) -> str:
    """Return a number with at most four digits and a unit."""
    for unit in _UNITS:
        if number < 10_000 or unit == _UNITS[-1]:
            break
        number /= 1000
    return f"{number:,.0f}{unit}"


def format_bytes(number: float) -> str:
    """Return bytes with a unit."""
    for unit in _BINARY_UNITS:
        if number < 1024 or unit == _BINARY_UNITS[-1]:
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def make_object(sample: TrafficSample, rates: BucketRates) -> dict[str, Any]:
    """Return the JSON object of a sample. Vbuckets without a change in this time are left out."""
    return {
        "version": sample.version,
        "nodes": sample.nodes,
        **sample.values,
        "vbuckets": dict(sample.states),
        "per_second": {name: round(rate, 1) for name, rate in rates.counts.items()},
        "latencies": None
        if sample.commands is None
        else {
            each.name: {"count": each.count, **dict(zip(_QUANTILES, each.quantiles, strict=True))}
            for each in sample.commands
        },
        "busy_vbuckets": {str(vb): round(rate, 1) for vb, rate in rates.vbuckets.items() if rate},
        "streams": None
        if sample.streams is None
        else [_make_stream_object(each, rates) for each in _sort_streams(sample.streams)],
    }


def _make_stream_object(each: ConnectionSample, rates: BucketRates) -> dict[str, Any]:
    changes, nbytes = rates.streams.get(each.name, (0.0, 0.0))
    return {
        "name": each.name,
        "dialect": each.dialect,
        "role": each.role,
        "user": each.user,
        "peer": each.peer,
        "streams": each.streams,
        "remaining": each.remaining,
        "unsent_bytes": each.unsent,
        "changes_per_second": round(changes, 1),
        "bytes_per_second": round(nbytes, 1),
    }


def _sort_streams(streams: Any) -> list[ConnectionSample]:
    """Return the connections, those that lag most first."""
    return sorted(streams, key=lambda each: (-each.remaining, each.name))


def make_screen(
    address: str, sample: TrafficSample, rates: BucketRates, *, height: int, notice: str = "", is_live: bool = True
) -> RenderableType:
    """Return the screen.

    Args:
        address: the connection string of the bucket.
        sample: the newest sample.
        rates: the rates up to it.
        height: lines of the terminal.
        notice: why there is no newer sample; empty if there is.
        is_live: the screen is repeated, and ends by a key.
    """
    from rich.console import Group
    from rich.text import Text

    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(format_one_line(address.encode(), 200), style="bold")
    head.append(f"  {format_one_line(sample.version.encode(), 40)}, {sample.nodes} node{'s' * (sample.nodes != 1)}")
    lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in _list_lines(sample, rates)]
    foot = [Text(make_printable(notice), style="bold red", no_wrap=True, overflow="ellipsis")] if notice else []
    if is_live:
        foot.append(Text("q or Ctrl-C: end", style="dim"))
    room = max(height - _LINES_BESIDE_STREAMS - len(foot), _LEAST_STREAMS) if is_live else len(sample.streams or ())
    return Group(head, Text(""), *lines, Text(""), _make_streams(sample, rates, room), *foot)


def _list_lines(sample: TrafficSample, rates: BucketRates) -> Iterator[str]:
    values, counts = sample.values, rates.counts
    states = ", ".join(f"{count:,} {state}" for state, count in sample.states.items() if count) or "none"
    yield f"documents  {values.get('documents', 0):,}   vbuckets  {states}"
    yield "   ".join(_list_sizes(values))
    yield "   ".join(f"{name} {format_count(counts.get(name, 0))}/s" for name in ("gets", "sets", "deletes"))
    yield _format_latencies(sample)
    sent, nbytes = counts.get("sent_changes", 0), counts.get("sent_bytes", 0)
    yield f"streams sent {format_count(sent)} changes/s, {format_bytes(nbytes)}/s"
    yield ""
    yield f"changes of vbuckets 0 to {max(rates.vbuckets, default=0)}"
    yield _draw_strip(rates.vbuckets)
    busiest = sorted((rate, vb) for vb, rate in rates.vbuckets.items() if rate)[-_BUSIEST:][::-1]
    yield "busiest  " + (", ".join(f"{vb}: {format_count(rate)}/s" for rate, vb in busiest) or "none changes now")


def _format_latencies(sample: TrafficSample) -> str:
    if sample.commands is None:
        return "latency of 99 %  unknown"
    found = (f"{each.name} {_format_seconds(each.quantiles[-1])}" for each in sample.commands)
    return f"latency of 99 %, 10 minutes  {'   '.join(found) or 'no commands'}"


def _format_seconds(seconds: float) -> str:
    """Return a duration with at most four digits and a unit."""
    micros = round(seconds * 1e6)
    return (
        f"{micros} us" if micros < 10_000 else f"{micros / 1e3:.0f} ms" if micros < 10_000_000 else f"{seconds:.0f} s"
    )


def _list_sizes(values: Mapping[str, int]) -> Iterator[str]:
    quota = values.get("quota_bytes", 0)
    of_quota = f" of {format_bytes(quota)}" if quota else ""
    yield f"memory {format_bytes(values.get('memory_bytes', 0))}{of_quota}"
    if "disk_bytes" in values:
        yield f"disk {format_bytes(values['disk_bytes'])}"
    yield f"not on disk {format_count(values.get('unpersisted', 0))}"
    yield f"connections {values.get('connections', 0):,}"


def _draw_strip(rates: Mapping[int, float]) -> str:
    """Return one line with a bar for each range of vbuckets, in proportion to the busiest range."""
    count = max(rates, default=-1) + 1
    cells = min(count, _STRIP_CELLS)
    sums = [0.0] * cells
    for vbucket, rate in rates.items():
        sums[vbucket * cells // count] += rate
    most = max(sums, default=0.0)
    levels = (0 if not most else -(-each * (len(_BARS) - 1) // most) for each in sums)
    return f"[{''.join(_BARS[int(level)] for level in levels)}]"


def _make_streams(sample: TrafficSample, rates: BucketRates, room: int) -> RenderableType:
    """Return the table of connections, at most `room` of them."""
    from rich.text import Text

    if sample.streams is None:
        return Text("This server does not list its change streams: expected a Penstock node.", style="dim")
    found = _sort_streams(sample.streams)
    table = _make_table()
    for each in found[:room]:
        changes, nbytes = rates.streams.get(each.name, (0.0, 0.0))
        table.add_row(
            Text(format_name(each.name, _NAME_WIDTH)),
            Text(format_name(each.dialect)),
            Text(format_name(each.role)),
            f"{each.streams:,}",
            f"{format_count(changes)}",
            f"{format_bytes(nbytes)}",
            f"{format_count(each.remaining)}",
        )
    left = len(found) - room
    table.caption = f"and {left} more connections, which lag less" if left > 0 else None
    return table


def _make_table() -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, caption_justify="left", header_style="bold")
    table.add_column("connection", no_wrap=True, max_width=_NAME_WIDTH)
    for name in ("dialect", "role"):
        table.add_column(name, no_wrap=True)
    for name in ("streams", "changes/s", "bytes/s", "remaining"):
        table.add_column(name, justify="right", no_wrap=True)
    return table
