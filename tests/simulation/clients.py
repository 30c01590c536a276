"""The clients of a simulated cluster: writers that wait for their promises, and consumers that follow the changes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from random import Random
from struct import Struct

import penstock
from penstock.client.connect.address import parse_address
from penstock.client.connect.client_session import ClientSession, open_session
from penstock.client.connect.handshake import Purpose
from penstock.client.feeds.stream_position import Position
from penstock.client.streams.stream_choice import Start
from penstock.errors import Error
from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.frame_info import Durability, RequestInfos, pack_request_infos
from penstock.wire.messages.kv import Delete, ObserveSeqno, Set, unpack_observed
from tests.simulation.cluster import BUCKET, PORT
from tests.simulation.orchestrator import ClusterDriver
from tests.simulation.promises import Promises, Write

_TIMEOUT = 3.0
_TOKEN = Struct(">QQ")
_KEYS = 4
_LOST = (OSError, Error, TimeoutError)


_LEVELS = tuple(DurabilityLevel)
_LIMITS = (200, 1000, None)


def _make_framing(level: DurabilityLevel, limit_ms: int | None) -> bytes:
    return pack_request_infos(RequestInfos(durability=Durability(level, limit_ms)))


def _make_url(host: str) -> str:
    return f"couchbase://{host}:{PORT}/{BUCKET}?connectTimeout={_TIMEOUT:g}&operationTimeout={_TIMEOUT:g}"


class Writer:
    """Writes to the owners of vbuckets, one request at a time, and waits for some writes until they are safe.

    Args:
        name: part of its keys: no key has two writers.
        driver: has the map.
        promises: gets the acknowledged writes.
        random: chooses keys, values and waits.
        durable: the part of the writes that are durable.

    Attributes:
        acknowledged: number of acknowledged writes.
        promises: as the argument.
    """

    def __init__(self, name: str, driver: ClusterDriver, promises: Promises, random: Random, durable: float) -> None:
        self.acknowledged = 0
        self._name = name
        self._driver = driver
        self.promises = promises
        self._random = random
        self._durable = durable
        self._sessions: dict[int, ClientSession] = {}
        self._written = 0

    async def run(self, count: int, seconds: float) -> None:
        """Make a number of writes in about a time."""
        for _ in range(count):
            await asyncio.sleep(self._random.expovariate(count / seconds))
            with suppress(*_LOST):
                await self._write(self._random.randrange(len(self._driver.map)))

    async def _write(self, vbucket: int) -> None:
        place, random = self._driver.map[vbucket], self._random
        key = f"{self._name}{random.randrange(_KEYS)}".encode()
        session = await self._connect(place.owner)
        node = self._driver.cluster.nodes[place.owner]
        process = node.process
        self._written += 1
        level = random.choice(_LEVELS) if random.random() < self._durable else None
        framing = b"" if level is None else _make_framing(level, random.choice(_LIMITS))
        since = self.promises.ended
        if random.random() < 0.2:
            request = Delete(key=key, vbucket=vbucket, framing=framing)
            reply = await session.link.request(request, _TIMEOUT, accept=(Status.KEY_ENOENT,))
            if reply.specific:
                return
        else:
            value = b"%d " % self._written + b"." * random.choice((0, 10, 700))
            reply = await session.link.request(Set(key=key, value=value, vbucket=vbucket, framing=framing), _TIMEOUT)
        vbuuid, seqno = _TOKEN.unpack(reply.extras)
        write = Write(vbucket, b"\0" + key, seqno, vbuuid, reply.cas, place, level)
        self.acknowledged += 1
        if not process.is_alive or node.process is not process:
            return
        self.promises.add(write, since)
        nodes = range(len(self._driver.cluster.nodes))
        for number in [number for number in nodes if random.random() < 0.3]:
            await self._wait_for(write, number, on_disk=random.random() < 0.5)

    async def _wait_for(self, write: Write, number: int, *, on_disk: bool) -> None:
        """Wait until a node has a write, for some time."""
        node = self._driver.cluster.nodes[number]
        for _ in range(5):
            process = node.process
            session = await self._connect(number)
            request = ObserveSeqno(vbucket=write.vbucket, value=write.vbuuid.to_bytes(8, "big"))
            reply = await session.link.request(request, _TIMEOUT)
            observed = unpack_observed(reply.value)
            is_there = observed.vbuuid == write.vbuuid and observed.current_seqno >= write.seqno
            is_stored = is_there and observed.persisted_seqno >= write.seqno
            if (is_stored if on_disk else is_there) and process.is_alive and process is node.process:
                self.promises.add_holder(write, number, on_disk=is_stored)
                return
            if not self.promises.is_current(write):
                return
            await asyncio.sleep(0.05)

    async def _connect(self, number: int) -> ClientSession:
        session = self._sessions.get(number)
        if session is None or session.link.closed.done():
            address = parse_address(_make_url(self._driver.cluster.nodes[number].host))
            session = self._sessions[number] = await open_session(
                address, Purpose(mutation_tokens=True, durable_writes=True)
            )
        return session


class Consumer:
    """Follows one vbucket with the product's client, over failovers, and keeps the changes.

    Attributes:
        position: the position after the last change.
        changes: the changes that no rollback has removed, in order.
        rollbacks: number of rollbacks.
    """

    def __init__(self, vbucket: int, driver: ClusterDriver) -> None:
        self.vbucket = vbucket
        self.position: Position | None = None
        self.changes: list[Change] = []
        self.rollbacks = 0
        self._driver = driver

    async def run(self) -> None:
        """Follow the vbucket until the task is cancelled."""
        while True:
            owner = self._driver.map[self.vbucket].owner
            following = asyncio.ensure_future(self._follow(self._driver.cluster.nodes[owner].host))
            try:
                while not following.done() and self._driver.map[self.vbucket].owner == owner:
                    change = asyncio.ensure_future(self._driver.changed.wait())
                    try:
                        await asyncio.wait([following, change], return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        change.cancel()
            finally:
                following.cancel()
            with suppress(*_LOST, asyncio.CancelledError):
                await following
            await asyncio.sleep(0.1)

    async def _follow(self, host: str) -> None:
        start: Start = "beginning" if self.position is None else {self.vbucket: self.position}
        async with penstock.connect(_make_url(host)) as bucket, AsyncExitStack() as stack:
            stream = await stack.enter_async_context(await bucket.stream(start=start, vbuckets=[self.vbucket]))
            while (delivery := await stream.next_delivery()) is not None:
                for change in delivery.changes:
                    self._take(change)
                self.position = stream.positions.get(self.vbucket, self.position)

    def _take(self, change: Change) -> None:
        if change.event in (Event.ROLLBACK, Event.FLUSH):
            self.rollbacks += 1
            kept = change.seqno or 0
            self.changes = [each for each in self.changes if (each.seqno or 0) <= kept]
            return
        assert not self.changes or (change.seqno or 0) > (self.changes[-1].seqno or 0), "seqnos must increase"
        self.changes.append(change)

    @property
    def documents(self) -> dict[bytes, tuple[int, int, bytes]]:
        """Key -> seqno, cas and value of each document that exists."""
        newest = {change.key or b"": change for change in self.changes}
        return {
            key: (change.seqno or 0, change.cas or 0, change.value or b"")
            for key, change in newest.items()
            if change.event == Event.MUTATION
        }
