"""`penstock serve`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Username, address_of, app, examples
from penstock.cli.base.option_parameters import takes_options
from penstock.cli.base.show import json_line
from penstock.errors import UsageError
from penstock.node.session.node_options import HTTP_PORT, NodeOptions
from penstock.store.definition.bucket_settings import Settings

if TYPE_CHECKING:
    from penstock.node import Node


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=examples(
        "penstock serve --bucket beer",
        "penstock serve --port 0 --json",
        "penstock serve --bucket beer --data-dir ./data",
        "penstock serve --users users.json --tls-port 11207 --tls-cert tls/server.pem --tls-key tls/server.key",
        "penstock serve --pin tap",
        "penstock serve --port 0 --follow couchbase://127.0.0.1:11210/beer --protocol upr",
    ),
)
@takes_options("options", NodeOptions)
@takes_options("settings", Settings, only_given=True)
def serve(
    *,
    options: dict[str, Any],
    settings: dict[str, Any],
    username: Username = None,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Run a node until it is stopped.

    Without --data-dir its buckets begin empty and are gone when it stops. With it all that are kept there are
    served, named or not, and are what they were, whether the node was stopped or died; a change is stored when
    it is answered and on disk some milliseconds later, unless the client asks to wait for that
    (SEQNO_PERSISTENCE, OBSERVE, a durable write). Of a node that dies, at most these last milliseconds are lost,
    and consumers that had seen them are told to roll back.

    With --follow it has a copy of another node's bucket, whatever dialect that one speaks, and serves its
    changes in all of them; its vbuckets are replicas until one is made active. Who logs in there is --username.

    Without --users it is for this machine alone, and nobody has to log in; clients that must can, as Administrator
    with the password `password`. With --users everybody logs in, and may do what their roles say.

    SIGINT (Ctrl-C) and SIGTERM stop it; with SIGHUP it reads users and certificate anew. With --json the first line is
    {"url": …, "kv_port": …, "http_port": …, "pid": …}, "follow" where it follows, "data_dir", "tls_port" and
    "https_port" where there is one, printed once it accepts connections.
    """
    if "data_dir" not in options and settings.keys() - _IN_MEMORY:
        raise UsageError("--commit-… and --retention… are about buckets in a --data-dir")
    if "follow" in options:
        options["follow"] = address_of(options["follow"], username, password_file)
    options.setdefault("http_port", HTTP_PORT if options["port"] else 0)
    asyncio.run(_serve(as_json, settings, options.pop("nodes", []), **options))


_IN_MEMORY = {"memory_bytes", "conflict_resolution", "purge_age"}
"""Settings that mean something for a bucket that is kept in memory."""


async def _serve(as_json: bool, settings: dict[str, Any], nodes: list[str], **options: Any) -> None:
    """settings: those of Settings that differ from what it says. options: those of Node.start."""
    from penstock.node import Node
    from penstock.node.cluster.topology import parse_places
    from penstock.node.server.garbage import spare_present_objects

    spare_present_objects()  # the modules, but no bucket: deleted ones are freed by the collector alone
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    stop = loop.create_task(stopping.wait())
    if nodes:
        options["nodes"], options["this_node"] = parse_places(nodes, options["host"], options["port"])
    starting = loop.create_task(Node.start(**options, settings=Settings(**settings) if settings else None))
    await asyncio.wait([stop, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # it may wait long for what it follows
        starting.cancel()
        return
    node = starting.result()
    loop.add_signal_handler(signal.SIGHUP, _reload, node)
    if notice := node.access(tls=False).notice:
        print(f"penstock: {notice}", file=sys.stderr)
    try:
        _announce(node, as_json=as_json)
        ends: list[asyncio.Task[Any]] = [stop, *([node.bridge.task] if node.bridge else [])]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        stop.cancel()
        await node.stop()


def _announce(node: Node, *, as_json: bool) -> None:
    """Print what was recovered, and where the node serves."""
    urls = [node.url(name) for name in node.buckets]
    for name, served in node.buckets.items():
        if served.store.recovered:
            print(f"penstock: bucket {name}: {served.store.recovered}", file=sys.stderr)
    source = {"follow": str(node.bridge.address), "dialect": node.bridge.dialect.value} if node.bridge else {}
    data_dir = node.storage.data_dir
    if as_json:
        ports = {"kv_port": node.kv_port, "http_port": node.http_port}
        ports |= {"tls_port": node.tls_port, "https_port": node.https_port} if node.tls_port else {}
        where = {"url": urls[0], **ports, "pid": os.getpid(), **source}
        print(json_line(where | ({"data_dir": str(data_dir)} if data_dir else {})), flush=True)
        return
    following = f", following {source['follow']} over {source['dialect']}" if source else ""
    kept = f", kept in {data_dir}" if data_dir else ""
    print(
        f"Serving {', '.join(urls)}{following}{kept}; management on port {node.http_port}; Ctrl-C stops.",
        flush=True,
    )


def _reload(node: Node) -> None:
    try:
        node.reload()
    except UsageError as error:
        print(f"penstock: {error}", file=sys.stderr)
