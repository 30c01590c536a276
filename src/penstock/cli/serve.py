"""`penstock serve`."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated, Any, Literal

import typer

from penstock.cli.app import AsJson, Panel, app, examples
from penstock.cli.show import json_line
from penstock.client.address import DEFAULT_PORT

Pin = Literal["tap", "upr-draft", "upr", "dcp", "dcp-prototype"]


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=examples(
        "penstock serve --bucket beer",
        "penstock serve --port 0 --json",
        "penstock serve --pin tap",
        "penstock serve --port 0 --follow couchbase://127.0.0.1:11210/beer --protocol upr",
    ),
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
    pin: Annotated[
        Pin | None, typer.Option(help="Serve change streams in this dialect alone; without, each client decides.")
    ] = None,
    follow: Annotated[
        str | None, typer.Option(metavar="URL", help="A bucket elsewhere: have it too, and keep it like that one.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The dialect to follow in: tap, upr-draft, upr or, unless said, dcp."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a node with empty buckets, in memory, until it is stopped.

    With --follow it has a copy of another node's bucket, whatever dialect that one speaks, and serves its
    changes in all of them; its vbuckets are replicas until one is made active.

    SIGINT (Ctrl-C) and SIGTERM stop it. With --json the first line is
    {"url": …, "kv_port": …, "pid": …}, and "follow" where it follows, printed once it accepts connections.
    """
    options = {"host": host, "port": port, "buckets": bucket, "vbuckets": vbuckets, "pin": pin}
    asyncio.run(_serve(as_json, **options, follow=follow, protocol=protocol))


async def _serve(as_json: bool, **options: Any) -> None:
    """options: those of Node.start."""
    from penstock.node import Node

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    stop = loop.create_task(stopping.wait())
    starting = loop.create_task(Node.start(**options))
    await asyncio.wait([stop, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # it may wait long for what it follows
        starting.cancel()
        return
    node = starting.result()
    try:
        urls = [node.url(name) for name in node.buckets]
        source = {"follow": str(node.bridge.address), "dialect": node.bridge.dialect.value} if node.bridge else {}
        if as_json:
            print(json_line({"url": urls[0], "kv_port": node.kv_port, "pid": os.getpid(), **source}), flush=True)
        else:
            following = f", following {source['follow']} over {source['dialect']}" if source else ""
            print(f"Serving {', '.join(urls)}{following}; Ctrl-C stops.", flush=True)
        ends: list[asyncio.Task[Any]] = [stop, *([node.bridge.task] if node.bridge else [])]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        stop.cancel()
        await node.stop()
