"""`penstock serve`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.base.app import AsJson, Panel, PasswordFile, Username, address_of, app, examples
from penstock.cli.base.show import json_line
from penstock.cli.node import serve_options as options
from penstock.client.connect.address import DEFAULT_PORT
from penstock.errors import UsageError

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
def serve(
    *,
    host: options.Host = "127.0.0.1",
    port: options.Port = DEFAULT_PORT,
    bucket: options.Buckets = None,
    vbuckets: options.Vbuckets = 1024,
    pin: options.Pin = None,
    follow: options.Follow = None,
    protocol: options.Protocol = None,
    username: Username = None,
    password_file: PasswordFile = None,
    http_port: options.HttpPort = None,
    users: options.Users = None,
    tls_port: options.TlsPort = None,
    https_port: options.HttpsPort = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    tls_client_ca: options.TlsClientCa = None,
    mechanism: options.Mechanisms = None,
    tls_mechanism: options.TlsMechanisms = None,
    allow_plain: options.AllowPlain = False,
    node: options.Nodes = None,
    data_dir: options.DataDir = None,
    commit_ms: options.CommitMs = None,
    commit_count: options.CommitCount = None,
    purge_age: options.PurgeAge = None,
    retention: options.Retention = None,
    retention_bytes: options.RetentionBytes = None,
    conflict_resolution: options.ConflictResolution = None,
    memory: options.Memory = None,
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
    settings = {
        "commit_seconds": None if commit_ms is None else commit_ms / 1000,
        "commit_count": commit_count,
        "purge_age": purge_age,
        "retention_seconds": retention,
        "retention_bytes": retention_bytes,
        "conflict_resolution": conflict_resolution,
        "memory_bytes": memory,
    }
    chosen = {
        "host": host,
        "port": port,
        "https_port": https_port,
        "http_port": http_port if http_port is not None else options.HTTP_PORT if port else 0,
        "buckets": bucket,
        "vbuckets": vbuckets,
        "pin": pin,
        "follow": None if follow is None else address_of(follow, username, password_file),
        "protocol": protocol,
        "data_dir": data_dir,
        "users": users,
        "certificate": tls_cert,
        "key": tls_key,
        "client_ca": tls_client_ca,
        "tls_port": tls_port,
        "mechanisms": mechanism,
        "tls_mechanisms": tls_mechanism,
        "allow_plain": allow_plain,
    }
    asyncio.run(_serve(as_json, _given(settings, data_dir), node or [], **chosen))


def _given(settings: Mapping[str, float | str | None], data_dir: Path | None) -> dict[str, Any]:
    """Return the settings that were given. Raises UsageError if there are some, and nothing that they are about."""
    given = {name: value for name, value in settings.items() if value is not None}
    if data_dir is None and given.keys() - {"memory_bytes", "conflict_resolution", "purge_age"}:
        raise UsageError("--commit-… and --retention… are about buckets in a --data-dir")
    return given


async def _serve(as_json: bool, settings: dict[str, Any], nodes: list[str], **options: Any) -> None:
    """settings: those of Settings that differ from what it says. options: those of Node.start."""
    from penstock.node import Node
    from penstock.node.cluster.topology import parse_places
    from penstock.node.server.garbage import spare_present_objects
    from penstock.store.definition.bucket_settings import Settings

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
        else:
            following = f", following {source['follow']} over {source['dialect']}" if source else ""
            kept = f", kept in {data_dir}" if data_dir else ""
            print(
                f"Serving {', '.join(urls)}{following}{kept}; management on port {node.http_port}; Ctrl-C stops.",
                flush=True,
            )
        ends: list[asyncio.Task[Any]] = [stop, *([node.bridge.task] if node.bridge else [])]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        stop.cancel()
        await node.stop()


def _reload(node: Node) -> None:
    try:
        node.reload()
    except UsageError as error:
        print(f"penstock: {error}", file=sys.stderr)
