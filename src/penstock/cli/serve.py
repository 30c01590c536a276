"""`penstock serve`."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated, Literal

import typer

from penstock.cli.app import AsJson, Panel, app, examples
from penstock.cli.show import json_line
from penstock.client.address import DEFAULT_PORT

ListenerProtocol = Literal["auto", "tap", "upr-draft", "upr", "dcp", "dcp-prototype"]


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=examples("penstock serve --bucket beer", "penstock serve --port 0 --json", "penstock serve --protocol tap"),
)
def serve(
    *,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="A loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="0 picks a free one.")] = DEFAULT_PORT,
    bucket: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A bucket to have; may be given again.", show_default="default"),
    ] = None,
    vbuckets: Annotated[int, typer.Option(metavar="N", help="Of each bucket; a power of two up to 65536.")] = 1024,
    protocol: Annotated[
        ListenerProtocol, typer.Option(help="Serve change streams in this dialect alone; auto: the client decides.")
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Run a node with empty buckets, in memory, until it is stopped.

    SIGINT (Ctrl-C) and SIGTERM stop it. With --json the first line is
    {"url": …, "kv_port": …, "pid": …}, printed once it accepts connections.
    """
    asyncio.run(_serve(host, port, bucket or ["default"], vbuckets, protocol=protocol, as_json=as_json))


async def _serve(
    host: str, port: int, buckets: list[str], vbuckets: int, *, protocol: ListenerProtocol, as_json: bool
) -> None:
    from penstock.node import Node

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    node = await Node.start(host, port, buckets, vbuckets, protocol=protocol)
    try:
        urls = [node.url(name) for name in buckets]
        if as_json:
            print(json_line({"url": urls[0], "kv_port": node.kv_port, "pid": os.getpid()}), flush=True)
        else:
            print(f"Serving {', '.join(urls)}; Ctrl-C stops.", flush=True)
        await stopping.wait()
    finally:
        await node.stop()
