"""The node: buckets behind one listener, on one event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

from penstock.errors import OperationTimeout, UsageError
from penstock.node.auth import Access, Attempts, ServerTls, UsersFile, decide_access
from penstock.node.auth.password_checks import Passwords
from penstock.node.buckets.bucket_list import BucketList, check_names
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.buckets.bucket_storage import Storage
from penstock.node.buckets.producer_reports import ProducerReport
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.live_map import LiveMap
from penstock.node.cluster.topology import NodePlace, Topology, node_map
from penstock.node.http.http_server import HttpServer
from penstock.node.mirror.bridge import Bridge, find_upstream
from penstock.node.server.kv_server import KvServer
from penstock.node.session.connection_registry import Guests
from penstock.node.session.listener import Listener
from penstock.node.session.node_options import DEFAULT_PORT, PINS, NodeOptions
from penstock.node.session.tap_settings import TapSettings
from penstock.node.session.value_workers import Workers
from penstock.node.transport.acceptor import most_connections
from penstock.node.transport.tls_handshakes import Handshakes
from penstock.store.definition.bucket_settings import Settings

__all__ = ["Node"]

logger = logging.getLogger("penstock.node")

DEFAULT_BUCKETS = ("default",)
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_DISK_SECONDS = 600.0  # for buckets to be read when they are opened, and to be written when they are closed
_LAST_TURNS = 5
_GOODBYE_SECONDS = 1.0  # for peers to take the last replies


class Node:
    """A running node. Made by `start` on the running event loop, or by `running` on a thread of its own.

    All but `url`, `host` and the ports belongs to the event loop's thread.

    Attributes:
        loop: the event loop.
        options: the node's options.
        host: the address of the ports.
        is_loopback: only this machine reaches the node.
        kv: the key-value ports and their connections.
        http: the management ports and their connections.
        guests: the registry of key-value connections.
        kv_port, tls_port, http_port, https_port: the ports; 0 for none.
        buckets: the open buckets by name, with the coroutines `create`, `delete` and `flush`, and `change`.
        storage: how the buckets are kept.
        usual_vbuckets: the vbuckets of a bucket whose definition gives no number.
        bridge: mirrors a bucket of another node, None where nothing does.
        topology: the nodes of the buckets, and the place of this node among them.
        map: the cluster map for connections without a bucket.
        uuid: identifies the cluster to clients.
        users: the users who can log in, None where nobody has to.
        attempts: wrong passwords, by address and account.
        passwords: passwords that are being checked.
        workers: threads for large values.
        handshakes: connections whose TLS handshake is not done.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, options: NodeOptions) -> None:
        self.loop = loop
        self.options = options
        self.host, self.is_loopback = _address(options.host)
        self.users = None if options.users is None else UsersFile(Path(options.users))
        self.attempts = Attempts(loop.time)
        self.passwords = Passwords(loop, self.attempts)
        self.workers = Workers(loop)
        self.handshakes = Handshakes(loop)
        self.storage = Storage(
            data_dir=None if options.data_dir is None else Path(options.data_dir),
            settings=options.settings or Settings(),
            pager_seconds=options.pager_seconds,
            persistence_timeout=options.persistence_timeout,
            flush=self.is_loopback,
        )
        self.uuid = secrets.token_hex(16)
        self.kv_port = self.tls_port = self.http_port = self.https_port = 0
        self.topology = Topology(tuple(options.nodes) or (NodePlace(),), options.this_node)
        self.map = LiveMap(lambda: node_map(self.topology))
        self.idle_timeout = options.idle_timeout
        self.tap = TapSettings()
        self.bridge: Bridge | None = None
        self.buckets = BucketList(self.storage, lambda: self.topology, self._end_users_of)
        self.usual_vbuckets = 1024
        self.http = HttpServer(self)
        self.guests = Guests(loop, options, self.users, most_connections(options.most_connections))
        self.kv = KvServer(self)
        self.started_at = loop.time()
        self._tls = _server_tls(options)
        self._stopped = asyncio.Event()

    @classmethod
    async def start(
        cls,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        buckets: Sequence[str] | None = None,
        vbuckets: int = 1024,
        **options: Any,
    ) -> Node:
        """Start a node that accepts connections.

        host, port, options: as of Options. buckets: names; None: those that are kept in the data directory, or the one
        to follow, or `default`. What is kept is opened in any case. vbuckets: of each that is named or made later, a
        power of two up to 65536.
        Raises UsageError for an address that is not of this machine alone, a wrong bucket or number; StoreRefused (a
        UsageError) for a data directory that cannot be used, StoreDamaged for one that is not as it was written; Error
        for an address that is taken; and as find_upstream does, where there is a bucket to follow.
        """
        own = NodeOptions(host=host, port=port, buckets=buckets, vbuckets=vbuckets, **options)
        node = cls(asyncio.get_running_loop(), own)
        node.access(tls=False)  # before anything is opened
        try:
            await node._open_buckets()
            node._listen()
        except BaseException:
            await node._stop_listening()
            await node._let_go()
            raise
        return node

    async def _open_buckets(self) -> None:
        names, vbuckets = self.options.buckets, self.options.vbuckets
        follow, followed = self.options.upstream, None
        if follow is not None:
            followed = BucketSpec(name=follow.bucket, vbuckets=vbuckets)
        elif names is not None and not names:
            raise UsageError("no bucket: expected the name of at least one")
        self.usual_vbuckets = BucketSpec(name="default", vbuckets=vbuckets).vbuckets
        check_names([*(names or ()), *([followed.name] if followed else ())])
        upstream = None if follow is None else await find_upstream(follow)
        await self.buckets.open_all(
            names or (),
            vbuckets,
            usual=() if followed else DEFAULT_BUCKETS,
            without=followed.name if followed else None,
        )
        if upstream is not None and followed is not None:
            served = await self.buckets.open_named(followed.name, upstream.vbuckets)
            self.bridge = Bridge(served, upstream.address)
            if served.flusher is not None:
                await served.flusher.flush()  # that it is a copy

    def _listen(self) -> None:
        kv, http, options = self.kv, self.http, self.options
        self.http_port = http.listen(self.host, options.management_port(tls=False), self._listener(None))
        if options.tls_port is not None:
            listener = self._listener(self._tls)
            self.https_port = http.listen(self.host, options.management_port(tls=True), listener)
            self.tls_port = kv.listen(self.host, options.tls_port, listener)
        self.kv_port = kv.listen(self.host, options.port, self._listener(None))
        here = replace(
            self.topology.here,
            kv=self.kv_port,
            kv_tls=self.tls_port,
            mgmt=self.http_port,
            mgmt_tls=self.https_port,
        )
        self.topology = self.topology.moved(here)
        self.map.change()
        for served in self.buckets.values():
            served.place(self.topology)
        for acceptor in (*http.acceptors, *kv.acceptors):  # nobody is told of a port that is not known yet
            acceptor.start()

    def _listener(self, tls: ServerTls | None) -> Listener:
        dialect, prototype = PINS[self.options.pin] if self.options.pin is not None else (None, False)
        return Listener(self.access(tls is not None), dialect, prototype, tls)

    def access(self, tls: bool) -> Access:
        """Return who may use a listener, with TLS or without. Raises UsageError for one that would be open to all."""
        options = self.options
        return decide_access(
            self.users,
            loopback=self.is_loopback,
            tls=tls,
            mechanisms=options.tls_mechanisms if tls else options.mechanisms,
            allow_plain=options.allow_plain,
            host=self.host,
        )

    def reload(self) -> None:
        """Read the users, the certificate and the CA of clients again.

        When a CA is no longer there, connections end whose clients have shown a certificate: a client of a CA that
        remains connects again. Raises UsageError for files that cannot be used; then everything stays as it was.
        """
        if self.users is not None:
            self.users.reload()
        if self._tls is not None and self._tls.reload():
            self.handshakes.end_certified()

    @classmethod
    @contextmanager
    def running(
        cls,
        buckets: Sequence[str] | None = None,
        vbuckets: int = 1024,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        **options: Any,
    ) -> Iterator[Node]:
        """Run a node on a thread and an event loop of its own while the `with` block lasts.

        Arguments and errors as of `start`; OperationTimeout if the node does not start or stop in time.
        """
        follow = NodeOptions(host=host, port=port, **options).upstream
        disk = 0 if options.get("data_dir") is None else _DISK_SECONDS
        patience = _START_SECONDS + disk + (0 if follow is None else follow.options.retry_seconds)
        loop = asyncio.new_event_loop()
        thread = Thread(target=loop.run_forever, name="penstock-node", daemon=True)
        thread.start()
        try:
            starting = cls.start(host, port, buckets, vbuckets, **options)
            node = asyncio.run_coroutine_threadsafe(starting, loop).result(patience)
            try:
                yield node
            finally:
                asyncio.run_coroutine_threadsafe(node.stop(), loop).result(_STOP_SECONDS + disk)
                asyncio.run_coroutine_threadsafe(_settle(), loop).result(_STOP_SECONDS)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_STOP_SECONDS)
            if thread.is_alive():
                raise OperationTimeout(f"the node's thread did not end within {_STOP_SECONDS:g} s")
            loop.close()

    def url(self, bucket: str) -> str:
        """Return the connection string of one of the node's buckets. Raises UsageError for another."""
        self.buckets.find(bucket)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"couchbase://{host}:{self.kv_port}/{bucket}"

    def streams(self, bucket: str) -> list[ProducerReport]:
        """Return what the producers of a bucket report. Raises UsageError for a bucket that there is not."""
        return [producer.report() for producer in self.buckets.find(bucket).producers.values()]

    def close_streams(self, name: str, bucket: str) -> int:
        """End the change-stream connections of this name, `anon_N` included, and return how many there were.

        Raises KeyNotFound if there is none, UsageError for a bucket that there is not.
        """
        return self.buckets.find(bucket).close_producers(name.encode())

    async def stop(self) -> None:
        """Stop listening and end all connections; what was answered is sent if the peers take it within a second.

        Then all that was stored is brought to disk, where the buckets are kept there.
        """
        try:
            await self._stop_listening()
        finally:
            self.passwords.close()
            self.workers.close()
            await self._let_go()
            self._stopped.set()

    async def _stop_listening(self) -> None:
        await self.kv.stop_accepting()
        self.handshakes.close()
        await self.http.close()
        await self.kv.end_connections()

    async def _let_go(self) -> None:
        """End what changes the buckets, and close them."""
        self.guests.close()
        if self.bridge is not None:
            await self.bridge.stop()
        await self.buckets.close()

    async def wait_closed(self) -> None:
        """Wait until the node has been stopped."""
        await self._stopped.wait()

    def _end_users_of(self, bucket: ServedBucket) -> None:
        self.guests.close_users_of(bucket)
        self.http.state.wake()


async def _settle() -> None:
    """Let connections that were being accepted when the node stopped come to their end."""
    for _ in range(_LAST_TURNS):  # one may have been accepted only now, and one that has ended is let go of in a turn
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, handshakes = await asyncio.wait(others, timeout=_GOODBYE_SECONDS)
            for handshake in handshakes:
                handshake.cancel()
        await asyncio.sleep(0)


def _address(host: str) -> tuple[str, bool]:
    """Return the address of a host, and whether only this machine reaches it. Raises UsageError."""
    address = "127.0.0.1" if host == "localhost" else host
    try:
        return address, ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise UsageError(f"host {host!r}: expected an address, such as 127.0.0.1 or ::1") from None


def _server_tls(options: NodeOptions) -> ServerTls | None:
    """Return the TLS of the ports, if there is a certificate. Raises UsageError for files that cannot be used."""
    if options.certificate is None or options.key is None:
        return None
    client_ca = None if options.client_ca is None else Path(options.client_ca)
    return ServerTls(Path(options.certificate), Path(options.key), client_ca)
