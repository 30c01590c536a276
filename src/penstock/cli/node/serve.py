"""`penstock serve`: run a node."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

from penstock.cli.base.app import (
    AsJson,
    Panel,
    PasswordFile,
    Username,
    app,
    format_examples,
    resolve_address,
)
from penstock.cli.base.option_parameters import add_options
from penstock.cli.base.show import format_json_line, print_text, warn
from penstock.errors import UsageError
from penstock.node.session.node_options import HTTP_PORT, NodeOptions
from penstock.store.definition.bucket_settings import BucketSettings

if TYPE_CHECKING:
    from penstock.node import Node


@app.command(
    rich_help_panel=Panel.NODE,
    epilog=format_examples(
        "penstock serve --bucket beer",
        "penstock serve --port 0 --json",
        "penstock serve --bucket beer --data-dir ./data",
        "penstock serve --users users.json --tls-port 11207 --tls-cert tls/server.pem --tls-key tls/server.key",
        "penstock serve --pin tap",
        "penstock serve --port 0 --follow couchbase://127.0.0.1:11210/beer --protocol upr",
    ),
)
@add_options("options", NodeOptions)
@add_options("settings", BucketSettings, only_given=True)
def serve(
    *,
    options: dict[str, Any],
    settings: dict[str, Any],
    username: Username = None,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Run a node until it is stopped.

    Without --data-dir, buckets are kept in memory and start empty. With
    --data-dir, the node serves all buckets in that directory, also after a crash.
    Writes are acknowledged first and on disk some milliseconds later, unless the
    client waits for that (SEQNO_PERSISTENCE, OBSERVE, durable writes). A crash
    loses at most these milliseconds; consumers that have seen lost changes roll
    back.

    With --follow, the node mirrors a bucket of another node, from any dialect, and
    serves its changes in all dialects. Its vbuckets are replicas until they are
    made active. --username is the user name on the other node.

    Without --users, only this machine can connect, and no login is needed; clients
    that require one log in as Administrator with the password `password`. With
    --users, every client logs in and has the privileges of its roles.

    SIGINT (Ctrl-C) and SIGTERM stop the node; SIGHUP reloads users and
    certificate. With --json, the first line is printed when the node accepts
    connections: {"url": …, "kv_port": …, "http_port": …, "dashboard": …, "pid": …},
    plus "follow", "data_dir", "tls_port" and "https_port" if they are used.
    """
    if "data_dir" not in options and settings.keys() - _MEMORY_SETTINGS:
        raise UsageError("--commit-… needs --data-dir")
    if "follow" in options:
        options["follow"] = resolve_address(options["follow"], username, password_file)
    options.setdefault("http_port", HTTP_PORT if options["port"] else 0)
    asyncio.run(_serve(as_json, settings, **options))


_MEMORY_SETTINGS = {"memory_bytes", "conflict_resolution", "purge_age", "retention_seconds", "retention_bytes"}
"""Settings that also apply to buckets in memory."""


async def _serve(as_json: bool, settings: dict[str, Any], **options: Any) -> None:
    """Run a node until a signal.

    Args:
        as_json: print addresses as JSON.
        settings: fields of BucketSettings that differ from their defaults.
        options: arguments of Node.start.
    """
    from penstock.node import Node
    from penstock.node.server.garbage import spare_present_objects

    # Before any bucket exists: only the garbage collector frees a deleted bucket, so it must not be spared.
    spare_present_objects()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    stop = loop.create_task(stopping.wait())
    starting = loop.create_task(Node.start(**options, settings=BucketSettings(**settings) if settings else None))
    await asyncio.wait([stop, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # with --follow it may wait a long time for the other node
        starting.cancel()
        return
    node = starting.result()
    loop.add_signal_handler(signal.SIGHUP, _reload, node)
    if notice := node.get_access(tls=False).notice:
        warn(notice)
    try:
        _print_addresses(node, as_json=as_json)
        ends: list[asyncio.Task[Any]] = [stop, *([node.bridge.task] if node.bridge else [])]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        stop.cancel()
        await node.stop()


def _print_addresses(node: Node, *, as_json: bool) -> None:
    """Print the addresses of the node, and warn of buckets that were recovered."""
    urls = [node.url(name) for name in node.buckets] or [node.address]
    for name, served in node.buckets.items():
        if served.store.recovery_summary:
            warn(f"bucket {name}: {served.store.recovery_summary}")
    source = {"follow": str(node.bridge.address), "dialect": node.bridge.dialect.value} if node.bridge else {}
    data_dir = node.storage.data_dir
    if as_json:
        ports = {"kv_port": node.kv_port, "http_port": node.http_port}
        ports |= {"tls_port": node.tls_port, "https_port": node.https_port} if node.tls_port else {}
        where = {"url": urls[0], **ports, "dashboard": _make_dashboard_url(node), "pid": os.getpid(), **source}
        print_text(format_json_line(where | ({"data_dir": str(data_dir)} if data_dir else {})))
        return
    following = f", following {source['follow']} over {source['dialect']}" if source else ""
    kept = f", kept in {data_dir}" if data_dir else ""
    print_text(
        f"Serving {', '.join(urls)}{following}{kept}; management on port {node.http_port}; press Ctrl-C to stop.\n"
        f"Dashboard: {_make_dashboard_url(node)}",
    )


def _make_dashboard_url(node: Node) -> str:
    """Return the address of the dashboard: over HTTPS if there is a port for it: other machines need it."""
    from penstock.client.dashboard.static_files import PREFIX

    scheme, port = ("https", node.https_port) if node.https_port else ("http", node.http_port)
    host = f"[{node.host}]" if ":" in node.host else node.host
    return f"{scheme}://{host}:{port}{PREFIX}"


def _reload(node: Node) -> None:
    try:
        node.reload()
    except UsageError as error:
        warn(str(error))
