"""`penstock top`: a live view of a bucket."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Url, Username, app, format_examples, resolve_address
from penstock.cli.base.interrupt import run_until_signal
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.base.work_display import can_redraw
from penstock.client.connect.address import DEFAULT_URL, Address
from penstock.errors import Error

if TYPE_CHECKING:
    from penstock.cli.top.traffic_sample import BucketRates, TrafficSample
    from penstock.client.bucket import Bucket

_MOST_SECONDS = 3600.0


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=format_examples(
        "penstock top",
        "penstock top --interval 1 --url couchbase://10.0.0.1/beer",
        "penstock top --json | jq .per_second",
    ),
)
def top(
    *,
    interval: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.1, max=_MOST_SECONDS, help="Seconds between two samples, and of the rates."
        ),
    ] = 2.0,
    url: Url = DEFAULT_URL,
    username: Username = None,
    password: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a bucket live: documents, sizes, rates, busy vbuckets and change streams.

    The numbers are those of all nodes of the bucket together. q or Ctrl-C ends
    the view. With --json, and if standard output is no terminal, it prints one
    sample with the rates of one interval. Change streams are those that have the
    most changes left to send; only Penstock nodes list them.
    """
    address = resolve_address(url, username, password)
    if as_json or not can_redraw(sys.stdout):
        asyncio.run(_print_once(address, interval, as_json=as_json))
    else:
        asyncio.run(run_until_signal(lambda _: _show_live(address, interval)))


async def _read_pair(bucket: Bucket, interval: float) -> tuple[TrafficSample, BucketRates]:
    """Return a sample and the rates of one interval before it."""
    from penstock.cli.top.traffic_sample import compute_rates, read_sample

    before = await read_sample(bucket)
    await asyncio.sleep(interval)
    sample = await read_sample(bucket)
    return sample, compute_rates(before, sample)


async def _print_once(address: Address, interval: float, *, as_json: bool) -> None:
    from rich.console import Console

    from penstock.cli.top.bucket_view import make_object, make_screen
    from penstock.client.bucket import Bucket

    async with Bucket(address) as bucket:
        sample, rates = await _read_pair(bucket, interval)
    if as_json:
        print_text(format_json_line({"bucket": address.bucket, **make_object(sample, rates)}))
    else:
        screen = make_screen(str(address), sample, rates, height=0, is_live=False)
        Console(highlight=False, width=120).print(screen)


def _end_by_key(key: str) -> None:
    """End like Ctrl-C, also while a node does not answer."""
    if key in ("q", "Q"):
        signal.raise_signal(signal.SIGINT)


async def _show_live(address: Address, interval: float) -> None:
    """Repeat the screen until it is cancelled. A node that does not answer is a notice, and is asked again."""
    from rich.console import Console
    from rich.live import Live

    from penstock.cli.top.bucket_view import make_screen
    from penstock.cli.top.keyboard import reading_keys
    from penstock.cli.top.traffic_sample import BucketRates, compute_rates, read_sample
    from penstock.client.bucket import Bucket

    console = Console(highlight=False)

    quick = address.with_retries(0.0)
    async with Bucket(quick) as bucket:
        sample, rates, notice = await read_sample(bucket), BucketRates(), ""
        with reading_keys(_end_by_key), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                height = console.size.height
                live.update(make_screen(str(address), sample, rates, height=height, notice=notice), refresh=True)
                await asyncio.sleep(interval)
                try:
                    before, sample = sample, await read_sample(bucket)
                    rates, notice = compute_rates(before, sample), ""
                except (Error, OSError) as error:
                    notice = f"no answer: {error}"
