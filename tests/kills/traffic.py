"""What is done to a node that is going to be killed, and what it has to remember of it.

Four clients: one writes, one asks whether it is on disk, one has files rewritten, one stops persistence and starts it
again. A fifth follows the changes, keeps
a copy of the documents, and goes on where it was with the next node on the same data.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import count

from penstock.client.bucket import Bucket, connect
from penstock.client.connect.address import parse_address
from penstock.client.connect.client_session import open_session
from penstock.client.connect.node_link import NodeLink
from penstock.client.documents.document import compute_vbucket
from penstock.client.feeds.stream_position import Position
from penstock.errors import ConnectionClosed, Unreachable
from penstock.store.history.failover_log import MAX_ENTRIES, FailoverLog
from penstock.wire.codec.layout import Request
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.kv import Delete, GetAllVbSeqnos, Noop, SeqnoPersistence, Set, unpack_vb_seqnos
from penstock.wire.messages.observe import CompactDb, StartPersistence, StopPersistence
from tests.kills.served import VBUCKETS
from tests.patience import PATIENCE

__all__ = ["Traffic"]

_KEYS = [b"key %d" % number for number in range(300)]
_AT_ONCE = 20
_LARGEST_VALUE = 2000
_WINDOW = 64 * 1024

Versions = list[bytes | None]
"""Of a document, oldest first; None where there was none."""


def url_of(port: int) -> str:
    """Return where the bucket is, for clients that give up at once and have a small window."""
    return f"couchbase://127.0.0.1:{port}/beer?retrySeconds=0.001&flowControlBytes={_WINDOW}"


class Traffic:
    """confirmed: how often all that there was has been said to be on disk. rollbacks: how many the copy has seen."""

    def __init__(self, seed: int) -> None:
        self.confirmed = 0
        self.rollbacks = 0
        self._chance = random.Random(seed)
        self._numbers = count(1)
        self._sent: dict[bytes, Versions] = {key: [None] for key in _KEYS}
        self._answered = dict.fromkeys(_KEYS, 0)
        self._on_disk = dict.fromkeys(_KEYS, 0)
        self._seqnos_on_disk: dict[int, int] = {}
        self._logs: dict[int, FailoverLog] = {}
        self._positions: dict[int, Position] = {}
        self._copy: dict[int, dict[int, Change]] = {vbucket: {} for vbucket in range(VBUCKETS)}

    # Until the kill

    async def flow(self, port: int, seconds: float, kill: Callable[[], None]) -> None:
        """Let all clients work for so long, kill the node, and see that they notice."""
        address = parse_address(url_of(port))
        works: list[Callable[[NodeLink], Awaitable[None]]] = [self._write, self._confirm]
        if self._chance.random() < 0.5:
            works.append(self._compact)
        if self._chance.random() < 0.3:
            works.append(self._stop_and_start)
        links = [(await open_session(address)).link for _ in works]
        async with connect(url_of(port)) as bucket:
            tasks = [asyncio.ensure_future(work(link)) for work, link in zip(works, links, strict=True)]
            killed = asyncio.Event()
            tasks.append(asyncio.ensure_future(self._follow(bucket, self._chance.choice((1, 3, -1, -1)), killed)))
            done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            kill()
            killed.set()
            await asyncio.wait(tasks)
            for task in tasks:
                error = task.exception()
                if not isinstance(error, ConnectionClosed | Unreachable | OSError):
                    raise AssertionError("a client did not notice") from error
            for link in links:
                await link.close()

    async def _write(self, link: NodeLink) -> None:
        while True:
            await self.write_some(link)

    async def write_some(self, link: NodeLink) -> None:
        requests: list[Request] = []
        indexes: dict[bytes, int] = {}
        for _ in range(_AT_ONCE):
            key = self._chance.choice(_KEYS)
            vbucket = compute_vbucket(key, VBUCKETS)
            value = None
            if self._chance.random() < 0.8:
                value = b"%d " % next(self._numbers) + bytes(self._chance.randrange(_LARGEST_VALUE))
            requests.append(
                Delete(key=key, vbucket=vbucket) if value is None else Set(key=key, vbucket=vbucket, value=value)
            )
            self._sent[key].append(value)
            indexes[key] = len(self._sent[key]) - 1
        await link.request_many(requests, PATIENCE, accept=(Status.KEY_ENOENT,))
        self._answered |= indexes

    async def _confirm(self, link: NodeLink) -> None:
        while True:
            answered = dict(self._answered)
            seqnos = unpack_vb_seqnos((await link.request(GetAllVbSeqnos(), PATIENCE)).value)
            await link.request_many(
                [SeqnoPersistence(vbucket=vb, seqno=seqno) for vb, seqno in seqnos.items()], PATIENCE
            )
            self._on_disk, self._seqnos_on_disk = answered, seqnos
            self.confirmed += 1

    async def _compact(self, link: NodeLink) -> None:
        while True:
            await link.request(CompactDb(), PATIENCE, accept=(Status.ETMPFAIL,))  # while persistence is stopped

    async def _stop_and_start(self, link: NodeLink) -> None:
        """Stop persistence for some changes at a time, or until the kill."""
        while True:
            await link.request(StopPersistence(), PATIENCE)
            for _ in range(self._chance.choice((5, 20, 1_000_000))):
                await link.request(Noop(), PATIENCE)
            await link.request(StartPersistence(), PATIENCE)
            await link.request(Noop(), PATIENCE)

    async def _follow(self, bucket: Bucket, left: int, killed: asyncio.Event) -> None:
        """Keep the copy up to date; after so many deliveries let the node wait until it is killed."""
        async with await bucket.stream(start=self._positions) as stream:
            while (delivery := await stream.next_delivery()) is not None:
                for change in delivery.changes:
                    self._take(change)
                self._positions = dict(stream.positions)
                left -= 1
                if not left:
                    await killed.wait()

    def _take(self, change: Change) -> None:
        assert change.seqno is not None
        rows = self._copy[change.vbucket]
        if change.event == Event.ROLLBACK:
            self.rollbacks += 1
            for seqno in [seqno for seqno in rows if seqno > change.seqno]:
                del rows[seqno]
        else:
            rows[change.seqno] = change

    # Afterwards

    async def check(self, port: int, *, stopped: bool = False) -> None:
        """See what the next node has of it. stopped: the one before ended well."""
        async with connect(url_of(port)) as bucket:
            found = await bucket.get_many(_KEYS)
            values = [None if document is None else document.value for document in found]
            for key, value in zip(_KEYS, values, strict=True):
                first = self._answered[key] if stopped else self._on_disk[key]
                expected = self._sent[key][first:]
                if value not in expected:
                    labels = [None if version is None else version[:10] for version in (value, *expected)]
                    raise AssertionError(f"{key!r}: {labels[0]!r}, expected one of {labels[1:]}")
            logs = await bucket.failover_logs(range(VBUCKETS))
            for vbucket, log in self._logs.items():
                self._check_log(vbucket, log, logs[vbucket], stopped)
            self._sent = {key: [value] for key, value in zip(_KEYS, values, strict=True)}
            self._answered, self._on_disk = dict.fromkeys(_KEYS, 0), dict.fromkeys(_KEYS, 0)
            self._logs = logs

    def _check_log(self, vbucket: int, before: FailoverLog, now: FailoverLog, stopped: bool) -> None:
        if stopped:
            assert now == before, vbucket
        else:
            assert now[1:] == before[: MAX_ENTRIES - 1], vbucket
            assert now[0].seqno >= self._seqnos_on_disk.get(vbucket, 0), vbucket

    async def catch_up(self, port: int) -> None:
        """Follow up to now: then the copy has what the bucket has."""
        async with connect(url_of(port)) as bucket:
            async with await bucket.stream(start=self._positions, stop="now") as stream:
                async for change in stream.changes():
                    self._take(change)
                self._positions = dict(stream.positions)
            found = zip(_KEYS, await bucket.get_many(_KEYS), strict=True)
            documents = {key: (document.value, document.cas) for key, document in found if document is not None}
            assert documents_of(self._copy) == documents
            afresh: dict[int, dict[int, Change]] = {vbucket: {} for vbucket in range(VBUCKETS)}
            async for change in bucket.changes(stop="now"):
                assert change.seqno is not None
                afresh[change.vbucket][change.seqno] = change
            assert documents_of(afresh) == documents


def documents_of(copy: dict[int, dict[int, Change]]) -> dict[bytes, tuple[bytes, int]]:
    """Return by key the value and cas of each document that there is after all these changes."""
    newest = {change.key: change for rows in copy.values() for _, change in sorted(rows.items())}
    return {
        key: (change.value or b"", change.cas or 0)
        for key, change in newest.items()
        if key is not None and change.event == Event.MUTATION
    }
