"""The node: buckets behind one listener, on one event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from penstock.client.address import parse_address
from penstock.errors import Error, OperationTimeout, UsageError
from penstock.node.connection import NodeConnection
from penstock.node.disk.opening import Storage, close_bucket, open_bucket
from penstock.node.follow import Bridge, find_upstream
from penstock.node.guests import Guests
from penstock.node.live_map import LiveMap
from penstock.node.options import DEFAULT_PORT, PINS, Options
from penstock.node.producers import ProducerReport
from penstock.node.served import ServedBucket
from penstock.node.tap.settings import TapSettings
from penstock.node.topology import NodePlace, Topology, node_map
from penstock.store.settings import Settings
from penstock.wire.connection import Slab
from penstock.wire.constants import Dialect

__all__ = ["Listener", "Node"]

logger = logging.getLogger("penstock.node")

DEFAULT_BUCKETS = ("default",)
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_DISK_SECONDS = 600.0  # for buckets to be read when they are opened, and to be written when they are closed
_GOODBYE_SECONDS = 1.0  # for peers to take the last replies

_BUCKET_NAME = re.compile(r"[A-Za-z0-9_.%-]{1,100}")


@dataclass(frozen=True, slots=True)
class Listener:
    """What a connection has come in by. dialect: the one that it is pinned to, None for none. prototype: mutations are
    sent as the collections prototype of DCP did. tls: bytes are encrypted.
    """

    dialect: Dialect | None = None
    prototype: bool = False
    tls: bool = False


class Node:
    """A running node. Made by `start` on the running event loop, or by `running` on a thread of its own.

    All but `url`, `host`, `kv_port` and `tls_port` belongs to the event loop's thread. bridge: what follows another
    node, None where nothing does. storage: how the buckets are kept. guests: its connections.
    topology: the nodes of its buckets, and where this one is.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, options: Options) -> None:
        self.loop = loop
        self.options = options
        self.host = _loopback(options.host)
        self.storage = Storage(
            data_dir=None if options.data_dir is None else Path(options.data_dir),
            settings=options.settings or Settings(),
            pager_seconds=options.pager_seconds,
            persistence_timeout=options.persistence_timeout,
        )
        self.kv_port = self.tls_port = 0
        self.topology = Topology()
        self.map = LiveMap(lambda: node_map(self.topology))
        self.idle_timeout = options.idle_timeout
        self.tap = TapSettings()
        self.bridge: Bridge | None = None
        self.slab = Slab()  # one for all: a read fills it and is dealt with before the next
        self.buckets: dict[str, ServedBucket] = {}
        self.guests = Guests(loop, options)
        self.started_at = loop.time()
        self._servers: list[asyncio.Server] = []
        self._stopping = False
        self._empty = asyncio.Event()
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

        host, port, options: as of Options. buckets: names; `default` unless there is one to follow. vbuckets: of each,
        a power of two up to 65536.
        Raises UsageError for an address that is not of this machine alone, a wrong bucket or number; StoreRefused (a
        UsageError) for a data directory that cannot be used, StoreDamaged for one that is not as it was written; Error
        for an address that is taken; and as find_upstream does, where there is a bucket to follow.
        """
        node = cls(asyncio.get_running_loop(), Options(host=host, port=port, **options))
        follow = node.options.follow
        if buckets is None:
            buckets = DEFAULT_BUCKETS if follow is None else ()
        followed = [] if follow is None else [parse_address(follow).bucket]
        _check([*buckets, *followed], vbuckets)
        try:
            upstream = None if follow is None else await find_upstream(follow, node.options.protocol)
            for name in buckets:
                node.buckets[name] = await open_bucket(name, vbuckets, node.storage)
            if upstream is not None:
                name = upstream.address.bucket
                served = node.buckets[name] = await open_bucket(name, upstream.vbuckets, node.storage)
                node.bridge = Bridge(served, upstream.address)
                if served.flusher is not None:
                    await served.flusher.flush()  # that it is a copy
            await node._listen()
        except BaseException:
            await node._let_go()
            raise
        return node

    async def _listen(self) -> None:
        dialect, prototype = PINS[self.options.pin] if self.options.pin is not None else (None, False)
        self.kv_port = await self._open_port(self.options.port, Listener(dialect, prototype))
        self.topology = self.topology.moved(NodePlace(kv=self.kv_port))
        self.map.change()
        for served in self.buckets.values():
            served.place(self.topology)

    async def _open_port(self, port: int, listener: Listener) -> int:
        """Accept connections on a port, and return its number. Raises Error if that cannot be."""
        try:
            server = await self.loop.create_server(lambda: NodeConnection(self, listener), self.host, port)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else error
            raise Error(f"cannot listen on {self.host} port {port}: {why}") from error
        self._servers.append(server)
        number: int = server.sockets[0].getsockname()[1]
        return number

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
        follow = options.get("follow")
        disk = 0 if options.get("data_dir") is None else _DISK_SECONDS
        patience = _START_SECONDS + disk + (0 if follow is None else parse_address(follow).options.retry_seconds)
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
        self._bucket(bucket)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"couchbase://{host}:{self.kv_port}/{bucket}"

    def streams(self, bucket: str) -> list[ProducerReport]:
        """Return what the producers of a bucket report. Raises UsageError for a bucket that there is not."""
        return [producer.report() for producer in self._bucket(bucket).producers.values()]

    def close_streams(self, name: str, bucket: str) -> int:
        """End the change-stream connections of this name, `anon_N` included, and return how many there were.

        Raises KeyNotFound if there is none, UsageError for a bucket that there is not.
        """
        return self._bucket(bucket).close_producers(name.encode())

    async def stop(self) -> None:
        """Stop listening and end all connections; what was answered is sent if the peers take it within a second.

        Then all that was stored is brought to disk, where the buckets are kept there.
        """
        self._stopping = True
        try:
            for server in self._servers:
                server.close()
            await self._end_connections()
            for server in self._servers:
                await server.wait_closed()
        finally:
            await self._let_go()
            self._stopped.set()

    async def _end_connections(self) -> None:
        if not self.guests.present:
            self._empty.set()
        for connection in tuple(self.guests.present):
            connection.close()
        try:
            await asyncio.wait_for(self._empty.wait(), _GOODBYE_SECONDS)
        except TimeoutError:
            for connection in tuple(self.guests.present):
                connection.abort("the node stops")
            await asyncio.wait_for(self._empty.wait(), _GOODBYE_SECONDS)

    async def _let_go(self) -> None:
        """End what changes the buckets, and close them."""
        self.guests.close()
        if self.bridge is not None:
            await self.bridge.stop()
        for served in self.buckets.values():
            await close_bucket(served)

    async def wait_closed(self) -> None:
        """Wait until the node has been stopped."""
        await self._stopped.wait()

    def _bucket(self, name: str) -> ServedBucket:
        if name not in self.buckets:
            raise UsageError(f"no bucket {name!r}; there is {', '.join(self.buckets)}")
        return self.buckets[name]

    # What connections call

    def enter(self, connection: NodeConnection) -> None:
        self.guests.enter(connection)
        if self._stopping:
            connection.abort("the node stops")

    def leave(self, connection: NodeConnection) -> None:
        self.guests.leave(connection)
        if self._stopping and not self.guests.present:
            self._empty.set()


async def _settle() -> None:
    """Let connections that were being accepted when the node stopped come to their end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=_GOODBYE_SECONDS)


def _loopback(host: str) -> str:
    """Return the address of a host. Raises UsageError unless only this machine reaches it: there is no login yet."""
    address = "127.0.0.1" if host == "localhost" else host
    try:
        if ipaddress.ip_address(address).is_loopback:
            return address
    except ValueError:
        raise UsageError(f"host {host!r}: expected an address, such as 127.0.0.1 or ::1") from None
    raise UsageError(f"host {host}: without login a node listens on a loopback address only, such as 127.0.0.1 or ::1")


def _check(buckets: Sequence[str], vbuckets: int) -> None:
    if not 1 <= vbuckets <= 65536 or vbuckets & (vbuckets - 1):
        raise UsageError(f"{vbuckets} vbuckets: expected a power of two from 1 to 65536")
    if not buckets:
        raise UsageError("no bucket: expected the name of at least one")
    for name in buckets:
        if not _BUCKET_NAME.fullmatch(name):
            raise UsageError(f"bucket {name!r}: expected 1 to 100 of the characters A-Z a-z 0-9 _ . % -")
        if not name.strip("."):
            raise UsageError(f"bucket {name!r}: expected a name that is not dots alone")
    if len(set(buckets)) < len(buckets):
        raise UsageError(f"a bucket is named twice: {', '.join(buckets)}")
