"""`penstock serve`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from penstock.cli.app import AsJson, Panel, app, examples
from penstock.cli.show import json_line
from penstock.client.address import DEFAULT_PORT
from penstock.errors import UsageError

Pin = Literal["tap", "upr-draft", "upr", "dcp", "dcp-prototype"]
Resolution = Literal["seqno", "lww"]


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=examples(
        "penstock serve --bucket beer",
        "penstock serve --port 0 --json",
        "penstock serve --bucket beer --data-dir ./data",
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
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the buckets here, each in a directory of its own.", show_default="in memory"
        ),
    ] = None,
    commit_ms: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="N", help="Milliseconds that a change waits for others to be synced with.", show_default="5"
        ),
    ] = None,
    commit_count: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="So many changes are synced without waiting.", show_default="1000"),
    ] = None,
    purge_age: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="Deletions are forgotten when they are older.", show_default="259200"
        ),
    ] = None,
    retention: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="Older versions stay so long in the history.", show_default="0, not at all"
        ),
    ] = None,
    retention_bytes: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="But for those that so much of the log has followed.", show_default="no limit"
        ),
    ] = None,
    conflict_resolution: Annotated[
        Resolution | None,
        typer.Option(
            help="Which version wins, here or from elsewhere: the one changed most often, or last (lww).",
            show_default="seqno",
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="BYTES",
            help="What each bucket may take up in memory before it refuses changes.",
            show_default="no limit",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a node until it is stopped.

    Without --data-dir its buckets begin empty and are gone when it stops. With it they are what they were, whether
    the node was stopped or died; a change is stored when it is answered and on disk some milliseconds later, unless
    the client asks to wait for that (SEQNO_PERSISTENCE, OBSERVE). Of a node that dies, at most these last
    milliseconds are lost, and consumers that had seen them are told to roll back.

    With --follow it has a copy of another node's bucket, whatever dialect that one speaks, and serves its
    changes in all of them; its vbuckets are replicas until one is made active.

    SIGINT (Ctrl-C) and SIGTERM stop it. With --json the first line is
    {"url": …, "kv_port": …, "pid": …}, "follow" where it follows and "data_dir" where there is one, printed once
    it accepts connections.
    """
    settings = {
        "commit_seconds": None if commit_ms is None else commit_ms / 1000,
        "commit_count": commit_count,
        "purge_age": purge_age,
        "retention_seconds": retention,
        "retention_bytes": retention_bytes,
        "conflict_resolution": conflict_resolution,
        "memory_bytes": memory,
    }
    options = {"host": host, "port": port, "buckets": bucket, "vbuckets": vbuckets, "pin": pin, "data_dir": data_dir}
    asyncio.run(_serve(as_json, _given(settings, data_dir), **options, follow=follow, protocol=protocol))


def _given(settings: Mapping[str, float | str | None], data_dir: Path | None) -> dict[str, Any]:
    """Return the settings that were given. Raises UsageError if there are some, and nothing that they are about."""
    given = {name: value for name, value in settings.items() if value is not None}
    if data_dir is None and given.keys() - {"memory_bytes", "conflict_resolution"}:
        raise UsageError("--commit-…, --purge-age and --retention… are about buckets in a --data-dir")
    return given


async def _serve(as_json: bool, settings: dict[str, Any], **options: Any) -> None:
    """settings: those of Settings that differ from what it says. options: those of Node.start."""
    from penstock.node import Node
    from penstock.store.settings import Settings

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    stop = loop.create_task(stopping.wait())
    starting = loop.create_task(Node.start(**options, settings=Settings(**settings) if settings else None))
    await asyncio.wait([stop, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # it may wait long for what it follows
        starting.cancel()
        return
    node = starting.result()
    try:
        urls = [node.url(name) for name in node.buckets]
        for name, served in node.buckets.items():
            if served.store.recovered:
                print(f"penstock: bucket {name}: {served.store.recovered}", file=sys.stderr)
        source = {"follow": str(node.bridge.address), "dialect": node.bridge.dialect.value} if node.bridge else {}
        data_dir = node.storage.data_dir
        if as_json:
            where = {"url": urls[0], "kv_port": node.kv_port, "pid": os.getpid(), **source}
            print(json_line(where | ({"data_dir": str(data_dir)} if data_dir else {})), flush=True)
        else:
            following = f", following {source['follow']} over {source['dialect']}" if source else ""
            kept = f", kept in {data_dir}" if data_dir else ""
            print(f"Serving {', '.join(urls)}{following}{kept}; Ctrl-C stops.", flush=True)
        ends: list[asyncio.Task[Any]] = [stop, *([node.bridge.task] if node.bridge else [])]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        stop.cancel()
        await node.stop()
