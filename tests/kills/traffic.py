"""The load on a node until it is killed, and the changes that the next node must have.

There are four clients. One writes documents, and one waits until changes are on disk. One requests compactions, and one
stops persistence and starts it again. A fifth client follows the changes and keeps a copy of the documents. It resumes
with the next node on the same data.
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

_KEYS = [b"key %d" % number for number in range(300)]
_AT_ONCE = 20
_LARGEST_VALUE = 2000
_WINDOW = 64 * 1024

Versions = list[bytes | None]
"""The values of a document, oldest first; None where it did not exist."""


def make_url(port: int) -> str:
    """Return the bucket's URL for clients that do not retry and have a small flow-control window."""
    return f"couchbase://127.0.0.1:{port}/beer?retrySeconds=0.001&flowControlBytes={_WINDOW}"


class Traffic:
    """The clients of a node, the changes that they have sent, and a copy of the documents.

    Attributes:
        confirmed: how often the node has confirmed that all changes are on disk.
        rollbacks: how many rollbacks the copy has received.
    """

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

    async def run_until_kill(self, port: int, seconds: float, kill: Callable[[], None]) -> None:
        """Run all clients for some seconds, kill the node, and check that every client notices it."""
        address = parse_address(make_url(port))
        works: list[Callable[[NodeLink], Awaitable[None]]] = [self._write, self._confirm]
        if self._chance.random() < 0.5:
            works.append(self._compact)
        if self._chance.random() < 0.3:
            works.append(self._stop_and_start)
        links = [(await open_session(address)).link for _ in works]
        async with connect(make_url(port)) as bucket:
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
        """Stop persistence for the time of some requests, or until the kill; start it again; repeat."""
        while True:
            await link.request(StopPersistence(), PATIENCE)
            for _ in range(self._chance.choice((5, 20, 1_000_000))):
                await link.request(Noop(), PATIENCE)
            await link.request(StartPersistence(), PATIENCE)
            await link.request(Noop(), PATIENCE)

    async def _follow(self, bucket: Bucket, left: int, killed: asyncio.Event) -> None:
        """Apply changes to the copy. After `left` deliveries, read no more, so that the node waits until the kill."""
        async with await bucket.stream(start=self._positions) as stream:
            while (delivery := await stream.next_delivery()) is not None:
                for change in delivery.changes:
                    self._apply_change(change)
                self._positions = dict(stream.positions)
                left -= 1
                if not left:
                    await killed.wait()

    def _apply_change(self, change: Change) -> None:
        assert change.seqno is not None
        rows = self._copy[change.vbucket]
        if change.event == Event.ROLLBACK:
            self.rollbacks += 1
            for seqno in [seqno for seqno in rows if seqno > change.seqno]:
                del rows[seqno]
        else:
            rows[change.seqno] = change

    # After the kill

    async def check(self, port: int, *, stopped: bool = False) -> None:
        """Check the documents and failover logs of the next node.

        Args:
            port: the port of the next node.
            stopped: whether the previous node was stopped cleanly, so that it had written all changes to disk.
        """
        async with connect(make_url(port)) as bucket:
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
        """Apply all changes up to now to the copy, and check that it has the same documents as the bucket."""
        async with connect(make_url(port)) as bucket:
            async with await bucket.stream(start=self._positions, stop="now") as stream:
                async for change in stream.changes():
                    self._apply_change(change)
                self._positions = dict(stream.positions)
            found = zip(_KEYS, await bucket.get_many(_KEYS), strict=True)
            documents = {key: (document.value, document.cas) for key, document in found if document is not None}
            assert list_documents(self._copy) == documents
            restreamed: dict[int, dict[int, Change]] = {vbucket: {} for vbucket in range(VBUCKETS)}
            async for change in bucket.changes(stop="now"):
                assert change.seqno is not None
                restreamed[change.vbucket][change.seqno] = change
            assert list_documents(restreamed) == documents


def list_documents(copy: dict[int, dict[int, Change]]) -> dict[bytes, tuple[bytes, int]]:
    """Return key -> value and cas for each document that exists after all these changes."""
    newest = {change.key: change for rows in copy.values() for _, change in sorted(rows.items())}
    return {
        key: (change.value or b"", change.cas or 0)
        for key, change in newest.items()
        if key is not None and change.event == Event.MUTATION
    }
