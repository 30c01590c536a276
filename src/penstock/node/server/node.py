"""The node: buckets on one event loop, behind the key-value ports and the HTTP ports."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread, get_ident
from typing import Any, TypeVar

from penstock.argument_types import check_arguments
from penstock.errors import OperationTimeout, UsageError
from penstock.names import MEMBER_FILE, quote_part
from penstock.node.auth import ListenerAccess, LoginAttempts, ServerTls, UsersFile, decide_access
from penstock.node.auth.password_checks import PasswordChecker
from penstock.node.buckets.bucket_list import BucketList, check_bucket_names
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.node.buckets.bucket_storage import BucketStorage
from penstock.node.buckets.endpoint_reports import EndpointReport
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.cluster.live_map import LiveMap
from penstock.node.cluster.own_map import NodePlace, build_node_map
from penstock.node.http.http_server import HttpServer
from penstock.node.mirror.bridge import Bridge, find_upstream
from penstock.node.server.kv_server import KvServer
from penstock.node.server.node_uuid import keep_node_uuid
from penstock.node.session.connection_registry import ConnectionRegistry
from penstock.node.session.listener import Listener
from penstock.node.session.node_options import DEFAULT_PORT, PINS, NodeOptions
from penstock.node.session.tap_settings import TapSettings
from penstock.node.session.value_workers import ValueWorkers
from penstock.node.transport.acceptor import limit_connections
from penstock.node.transport.machine import Machine
from penstock.node.transport.tls_handshakes import TlsHandshakes
from penstock.store.definition.bucket_settings import BucketSettings

logger = logging.getLogger("penstock.node")

T = TypeVar("T")

DEFAULT_BUCKETS = ("default",)
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
# For reading the buckets at the start, and for writing them at the end.
_DISK_SECONDS = 600.0
_LAST_TURNS = 5  # turns of the event loop in which ended connections are freed
_LAST_REPLY_SECONDS = 1.0  # for peers to take the last replies
_CALL_SECONDS = 60.0


@check_arguments
class Node:
    """A running node: `start` runs it on the current event loop, `running` on a thread of its own.

    `host` and the ports, `url`, `address`, `streams`, `close_streams` and `call` may be used from any thread. All else
    belongs to the event loop's thread: other threads reach it through `call`.

    Attributes:
        loop: the event loop.
        options: the node's options.
        machine: the machine that the node runs on.
        host: the address of the ports.
        is_loopback: whether only this machine reaches the node.
        kv: the key-value ports and their connections.
        http: the management ports and their connections.
        connections: the registry of key-value connections.
        kv_port, tls_port, http_port, https_port: the ports; 0 for none.
        buckets: the open buckets by name, with the coroutines `create`, `delete` and `flush`, and with `change_spec`.
        storage: how buckets are kept.
        default_vbuckets: number of vbuckets of a bucket whose definition gives none.
        bridge: mirrors a bucket of another node; None without `follow`.
        place: the addresses of the node, as the cluster map has them.
        map: the cluster map for connections without a bucket.
        uuid: identifies the node, and its cluster to clients. The data directory keeps it.
        start_id: identifies this start of the node.
        users: the users that can log in; None if no login is needed.
        attempts: wrong passwords, by address and account.
        passwords: passwords that are being checked.
        workers: threads for large values.
        handshakes: the TLS handshakes of all ports.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, options: NodeOptions) -> None:
        self.loop = loop
        self._thread = get_ident()
        self.options = options
        self.machine = options.machine or Machine()
        self.host, self.is_loopback = _parse_host(options.host)
        self.users = None if options.users is None else UsersFile(Path(options.users))
        self.attempts = LoginAttempts(loop.time)
        self.passwords = PasswordChecker(loop, self.attempts)
        self.workers = ValueWorkers(loop)
        self.handshakes = TlsHandshakes(loop)
        self.storage = BucketStorage(
            machine=self.machine,
            data_dir=None if options.data_dir is None else Path(options.data_dir),
            settings=options.settings or BucketSettings(),
            pager_seconds=options.pager_seconds,
            persistence_timeout=options.persistence_timeout,
            flush_enabled=self.is_loopback,
        )
        self.uuid, self.start_id = self.machine.make_uuid(), self.machine.make_uuid()
        self.kv_port = self.tls_port = self.http_port = self.https_port = 0
        self.place = options.place or NodePlace()
        self.map = LiveMap(lambda: build_node_map(self.place), self.machine.time_ns)
        self.idle_timeout = options.idle_timeout
        self.tap = TapSettings()
        self.bridge: Bridge | None = None
        self.buckets = BucketList(self.storage, lambda: self.place, self._close_bucket_clients)
        self.default_vbuckets = 1024
        self.http = HttpServer(self)
        self.connections = ConnectionRegistry(loop, options, self.users, limit_connections(options.most_connections))
        self.kv = KvServer(self)
        self.started_at = loop.time()
        self._tls = _load_tls(options)
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

        Args:
            host: the address to listen on.
            port: the key-value port, 0 for any free one.
            buckets: names of buckets. None: the buckets of the data directory, the bucket to follow, or `default`.
                Buckets of the data directory are always opened.
            vbuckets: vbuckets of each bucket that is created by name; a power of two up to 65536.
            **options: the other attributes of `NodeOptions`.

        Returns:
            The node.

        Raises:
            UsageError: the host is open to other machines without users, or a bucket or a number is invalid.
            StoreRefused: the data directory cannot be used. It is a UsageError.
            StoreDamaged: the data directory is damaged.
            Error: the address is taken, or the bucket to follow cannot be reached.
        """
        own = NodeOptions(host=host, port=port, buckets=buckets, vbuckets=vbuckets, **options)
        node = cls(asyncio.get_running_loop(), own)
        node.get_access(tls=False)  # before anything is opened
        try:
            await node._open_buckets()
            node._listen()
        except BaseException:
            await node._stop_listening()
            await node._close_buckets()
            raise
        return node

    async def _open_buckets(self) -> None:
        names, vbuckets = self.options.buckets, self.options.vbuckets
        _warn_of_former_member(self.storage.data_dir)
        follow, followed = self.options.upstream, None
        if follow is not None:
            followed = BucketSpec(name=follow.bucket, vbuckets=vbuckets)
        elif names is not None and not names:
            raise UsageError("no bucket: expected the name of at least one")
        self.default_vbuckets = BucketSpec(name="default", vbuckets=vbuckets).vbuckets
        check_bucket_names([*(names or ()), *([followed.name] if followed else ())])
        upstream = None if follow is None else await find_upstream(follow)
        if self.storage.data_dir is not None:
            self.uuid = keep_node_uuid(self.machine.directory(self.storage.data_dir), self.uuid)
        await self.buckets.open_all(
            names or (),
            vbuckets,
            default_names=() if followed else DEFAULT_BUCKETS,
            excluded=followed.name if followed else None,
        )
        if upstream is not None and followed is not None:
            served = await self.buckets.open_named(followed.name, upstream.vbuckets)
            self.bridge = Bridge(served, upstream.address)
            if served.flusher is not None:
                await served.flusher.flush()  # the definition on disk marks the bucket as a mirror

    def _listen(self) -> None:
        kv, http, options = self.kv, self.http, self.options
        self.http_port = http.listen(self.host, options.management_port(tls=False), _make_listener(self, None))
        if options.tls_port is not None:
            listener = _make_listener(self, self._tls)
            self.https_port = http.listen(self.host, options.management_port(tls=True), listener)
            self.tls_port = kv.listen(self.host, options.tls_port, listener)
        self.kv_port = kv.listen(self.host, options.port, _make_listener(self, None))
        self.set_place(self.place)
        for ports in (http.ports, kv.ports):  # only now, since each client gets all port numbers
            ports.start_accepting()

    def set_place(self, place: NodePlace) -> None:
        """Publish the addresses of the node. Ports that the options do not give are those of its listeners."""
        given = self.options.place or NodePlace()
        self.place = replace(
            place,
            kv=given.kv or self.kv_port,
            kv_tls=given.kv_tls or self.tls_port,
            mgmt=given.mgmt or self.http_port,
            mgmt_tls=given.mgmt_tls or self.https_port,
        )
        self.map.invalidate()
        for served in self.buckets.values():
            served.set_place(self.place)

    def get_access(self, tls: bool) -> ListenerAccess:
        """Return the access rules of a listener, with TLS or without.

        Raises:
            UsageError: the listener would be open to everyone.
        """
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
        """Read the users, the certificate and the CA of client certificates again.

        If a CA was removed, all connections with a client certificate end. Clients of a remaining CA connect again.

        Raises:
            UsageError: a file cannot be used. Then nothing changes.
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
        """Run a node on a thread with an event loop of its own while the `with` block lasts.

        Args:
            buckets: as for `start`, like the other arguments.
            vbuckets: vbuckets of each bucket.
            host: the address to listen on.
            port: the key-value port, 0 for any free one.
            **options: the other attributes of `NodeOptions`.

        Yields:
            The node.

        Raises:
            OperationTimeout: the node does not start or stop in time.
        """
        own = NodeOptions(host=host, port=port, **options)
        follow = own.upstream
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
                asyncio.run_coroutine_threadsafe(_finish_tasks(), loop).result(_STOP_SECONDS)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_STOP_SECONDS)
            if thread.is_alive():
                raise OperationTimeout(f"the node's thread did not end within {_STOP_SECONDS:g} s")
            loop.close()

    def url(self, bucket: str) -> str:
        """Return the connection string of one of the node's buckets. Raises UsageError for an unknown bucket."""
        self.buckets.find(bucket)
        return f"{self.address}/{quote_part(bucket)}"

    @property
    def address(self) -> str:
        """The connection string without a bucket."""
        return (
            f"couchbase://[{self.host}]:{self.kv_port}"
            if ":" in self.host
            else f"couchbase://{self.host}:{self.kv_port}"
        )

    def streams(self, bucket: str) -> list[EndpointReport]:
        """Return the reports of a bucket's producers. Raises UsageError for an unknown bucket."""
        return self.call(lambda: [one.report() for one in self.buckets.find(bucket).endpoints.values()])

    def close_streams(self, name: str, bucket: str) -> int:
        """Close the change-stream connections of one name, for example `anon_1`.

        Args:
            name: the name of the producer, as in `streams`.
            bucket: the name of the bucket.

        Returns:
            The number of connections.

        Raises:
            KeyNotFound: no connection has the name.
            UsageError: the node has no such bucket.
        """
        return self.call(lambda: self.buckets.find(bucket).close_endpoints(name.encode()))

    def call(self, function: Callable[[], T]) -> T:
        """Return the result of a function, which runs on the event loop's thread. Any thread may call it.

        Raises:
            UsageError: the node has ended.
            OperationTimeout: the function has no result within a minute.
            Exception: the function raised it.
        """
        if get_ident() == self._thread:
            return function()

        async def run() -> T:
            return function()

        running = run()
        try:
            answer = asyncio.run_coroutine_threadsafe(running, self.loop)
        except RuntimeError:
            running.close()
            raise UsageError("the node has ended: expected a running node") from None
        try:
            return answer.result(_CALL_SECONDS)
        except TimeoutError:
            if answer.done():
                raise  # of the function
            answer.cancel()
            raise OperationTimeout(f"the node's event loop did not answer within {_CALL_SECONDS:g} s") from None

    async def stop(self) -> None:
        """Stop listening, end all connections, and write all changes to disk.

        Replies are sent if the peers take them within a second.
        """
        try:
            await self._stop_listening()
        finally:
            self.passwords.close()
            self.workers.close()
            await self._close_buckets()
            self._stopped.set()

    async def _stop_listening(self) -> None:
        await self.kv.stop_accepting()
        self.handshakes.close()
        await self.http.close()
        await self.kv.end_connections()

    async def _close_buckets(self) -> None:
        """Stop the bridge, which changes a bucket, and close the buckets."""
        self.connections.stop_timer()
        if self.bridge is not None:
            await self.bridge.stop()
        await self.buckets.close()

    async def wait_closed(self) -> None:
        """Wait until the node has been stopped."""
        await self._stopped.wait()

    def _close_bucket_clients(self, bucket: ServedBucket) -> None:
        self.connections.close_bucket_connections(bucket)
        self.http.state.wake_streams()


def _warn_of_former_member(data_dir: Path | None) -> None:
    """Log that a data directory belonged to a member of a cluster. Earlier versions had such clusters."""
    if data_dir is not None and (data_dir / MEMBER_FILE).exists():
        logger.warning(
            "%s: this node was a member of a cluster; it serves its buckets alone now. Vbuckets that other nodes owned "
            "stay as they are, until an orchestrator sets their states",
            data_dir / MEMBER_FILE,
        )


def _make_listener(node: Node, tls: ServerTls | None) -> Listener:
    dialect, prototype = PINS[node.options.pin] if node.options.pin is not None else (None, False)
    return Listener(node.get_access(tls is not None), dialect, prototype, tls)


async def _finish_tasks() -> None:
    """Wait for connections that were being accepted when the node stopped."""
    for _ in range(_LAST_TURNS):  # a connection may be accepted just now; an ended one is freed in a later turn
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, handshakes = await asyncio.wait(others, timeout=_LAST_REPLY_SECONDS)
            for handshake in handshakes:
                handshake.cancel()
        await asyncio.sleep(0)


def _parse_host(host: str) -> tuple[str, bool]:
    """Return the address of a host, and whether only this machine reaches it.

    Raises:
        UsageError: the host is neither an address nor localhost.
    """
    address = "127.0.0.1" if host == "localhost" else host
    try:
        return address, ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise UsageError(f"host {host!r}: expected an address, such as 127.0.0.1 or ::1") from None


def _load_tls(options: NodeOptions) -> ServerTls | None:
    """Return the TLS of the ports, None without a certificate. Raises UsageError for a file that cannot be used."""
    if options.certificate is None or options.key is None:
        return None
    client_ca = None if options.client_ca is None else Path(options.client_ca)
    return ServerTls(Path(options.certificate), Path(options.key), client_ca)
