"""A bucket: its documents, its statistics, its changes."""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa

from penstock.client.address import DEFAULT_URL, Address, parse_address
from penstock.client.connection import NodeLink
from penstock.client.feed import Feed, Wanted
from penstock.client.position import BEGINNING, Position, VbucketInfo, position_at_end
from penstock.client.session import Retry, open_session, retrying
from penstock.client.stream import ChangeStream
from penstock.errors import KeyNotFound, RemoteProtocolError, UsageError
from penstock.store.failover import FailoverLog
from penstock.wire.constants import MAX_KEY, MAX_SEQNO, MAX_VALUE, Datatype, Status, VbucketState
from penstock.wire.frame import Frame
from penstock.wire.kv import (
    Add,
    Delete,
    Get,
    GetAllVbSeqnos,
    GetFailoverLog,
    GetReply,
    Set,
    Stat,
    unpack_failover_log,
    unpack_vb_seqnos,
)
from penstock.wire.layout import Request, decode
from penstock.wire.schema import Change

Start = Literal["beginning", "now"] | Mapping[int, Position]
Stop = Literal["now"] | Mapping[int, int] | None

_AT_ONCE = 512
"""Requests of one call that are under way together."""


class Document(NamedTuple):
    """What is stored under a key."""

    value: bytes
    cas: int
    flags: int = 0
    datatype: int = 0


def vbucket_of(key: bytes, vbuckets: int) -> int:
    """Return the vbucket that a key belongs to. Source: the clients' common CRC-32 mapping."""
    return ((zlib.crc32(key) >> 16) & 0x7FFF) % vbuckets


def connect(url: str = DEFAULT_URL) -> Bucket:
    """Return a bucket to be used as `async with connect(url) as bucket`. Raises UsageError for a bad string."""
    return Bucket(parse_address(url))


class Bucket:
    """A bucket on a node. Keys may be given as text, which stands for its UTF-8 bytes.

    Reading commands and `upsert` are tried again when the connection ends, up to `retry_seconds`; the others are not,
    since they might have been carried out, and raise ConnectionClosed.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.vbuckets = 0
        self._link: NodeLink | None = None
        self._connecting = asyncio.Lock()
        self._stream_numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        await self._retrying(self._ready)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    # documents

    async def get(self, key: str | bytes) -> Document:
        """Raises KeyNotFound."""
        found = (await self.get_many([key]))[0]
        if found is None:
            raise KeyNotFound(f"no document {key!r}")
        return found

    async def get_many(self, keys: Iterable[str | bytes]) -> list[Document | None]:
        """Return the documents in the order of the keys, None where there is none."""
        found: list[Document | None] = []
        for requests in _chunks(Get(key=octets, vbucket=self._vbucket(octets)) for octets in map(_octets, keys)):
            frames = await self._call(requests, accept=(Status.KEY_ENOENT,))
            found += [_document(frame) for frame in frames]
        return found

    async def upsert(
        self, key: str | bytes, value: bytes, *, expiry: int = 0, flags: int = 0, datatype: int = 0
    ) -> int:
        """Store a document, whether there is one or not; return its cas. expiry: seconds (30 days at most) or epoch."""
        return (await self.upsert_many([(key, value)], expiry=expiry, flags=flags, datatype=datatype))[0]

    async def upsert_many(
        self, documents: Iterable[tuple[str | bytes, bytes]], *, expiry: int = 0, flags: int = 0, datatype: int = 0
    ) -> list[int]:
        """Store documents, many requests under way at once; return their cas in the same order."""
        written: list[int] = []
        for requests in _chunks(
            self._store(Set, _octets(key), value, expiry=expiry, flags=flags, datatype=datatype)
            for key, value in documents
        ):
            written += [frame.cas for frame in await self._call(requests)]
        return written

    async def insert(
        self, key: str | bytes, value: bytes, *, expiry: int = 0, flags: int = 0, datatype: int = 0
    ) -> int:
        """Store a document where there is none; return its cas. Raises KeyExists."""
        request = self._store(Add, _octets(key), value, expiry=expiry, flags=flags, datatype=datatype)
        return (await self._once([request]))[0].cas

    async def replace(self, key: str | bytes, value: bytes, *, cas: int, expiry: int = 0, flags: int = 0) -> int:
        """Store over the version with this cas; return the new one. Raises KeyExists if it changed, KeyNotFound."""
        request = self._store(Set, _octets(key), value, cas=cas, expiry=expiry, flags=flags)
        return (await self._once([request]))[0].cas

    async def remove(self, key: str | bytes, *, cas: int = 0) -> int:
        """Remove a document; return the tombstone's cas. Raises KeyNotFound, KeyExists if cas is not its version."""
        octets = _octets(key)
        return (await self._once([Delete(key=octets, vbucket=self._vbucket(octets), cas=cas)]))[0].cas

    async def remove_many(self, keys: Iterable[str | bytes]) -> int:
        """Remove documents, many requests under way at once; return how many there were."""
        removed = 0
        for requests in _chunks(Delete(key=octets, vbucket=self._vbucket(octets)) for octets in map(_octets, keys)):
            frames = await self._once(requests, accept=(Status.KEY_ENOENT,))
            removed += sum(frame.specific == Status.SUCCESS for frame in frames)
        return removed

    # what the node says of itself

    async def stats(self, group: str = "") -> dict[str, str]:
        """Return a group of statistics, name to text. Raises KeyNotFound for an unknown group."""

        async def ask() -> list[Frame]:
            link = await self._ready()
            return await link.collect(Stat(key=group.encode()), self.address.options.operation_timeout)

        return {frame.key.decode(): frame.value.decode() for frame in await self._retrying(ask)}

    async def high_seqnos(self) -> dict[int, int]:
        """Return the high seqno of every active vbucket."""
        (frame,) = await self._call([GetAllVbSeqnos(state=VbucketState.ACTIVE)])
        return unpack_vb_seqnos(frame.value)

    async def failover_logs(self, vbuckets: Sequence[int]) -> dict[int, FailoverLog]:
        """Return the failover logs, newest entry first."""
        frames = await self._call([GetFailoverLog(vbucket=vbucket) for vbucket in vbuckets])
        return {vb: unpack_failover_log(frame.value) for vb, frame in zip(vbuckets, frames, strict=True)}

    async def vbucket_infos(self, vbuckets: Sequence[int] | None = None) -> dict[int, VbucketInfo]:
        """Return a consistent view of the vbuckets: the failover logs did not change while the seqnos were read."""
        await self._retrying(self._ready)
        wanted = range(self.vbuckets) if vbuckets is None else vbuckets
        logs = await self.failover_logs(wanted)
        while True:
            before, stats = logs, await self.stats("vbucket-seqno")
            logs = await self.failover_logs(wanted)
            if logs == before:
                break
        try:
            return {
                vb: VbucketInfo(logs[vb], int(stats[f"vb_{vb}:high_seqno"]), int(stats[f"vb_{vb}:purge_seqno"]))
                for vb in wanted
            }
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(f"statistics vbucket-seqno without {error}") from None

    # changes

    async def stream(
        self,
        start: Start = "beginning",
        stop: Stop = None,
        vbuckets: Sequence[int] | None = None,
    ) -> ChangeStream:
        """Open the changes of some vbuckets (all, if none are named) from a position to a position.

        start: "beginning", "now", or by vbucket the positions where an earlier stream ended. stop: None for ever,
        "now" for what exists at this moment, or by vbucket the last seqno wanted.
        Raises UsageError for a vbucket that the bucket does not have.
        """
        await self._retrying(self._ready)
        chosen = range(self.vbuckets) if vbuckets is None else vbuckets
        if foreign := [vb for vb in chosen if not 0 <= vb < self.vbuckets]:
            raise UsageError(f"vbucket {foreign[0]} of {self.address}, which has {self.vbuckets}")
        positions = await self._positions(start, chosen)
        ends: Mapping[int, int] = await self.high_seqnos() if stop == "now" else stop if stop is not None else {}
        missing = MAX_SEQNO if stop is None else 0
        wanted = {vb: Wanted(position=positions[vb], end_seqno=ends.get(vb, missing)) for vb in chosen}
        return self.open_feed(wanted, end_now=stop == "now")

    def open_feed(
        self, wanted: Mapping[int, Wanted], *, exact_end: bool = False, end_now: bool = False
    ) -> ChangeStream:
        """Open exactly these streams; `vbuckets` must be known, so the bucket has been entered."""
        feed = Feed(self.vbuckets, wanted, exact_end, self.address.options.flow_control_bytes)
        name = f"penstock:{id(self):x}:{next(self._stream_numbers)}"
        return ChangeStream(self.address, feed, name, self.high_seqnos if end_now else None)

    async def batches(
        self, start: Start = "beginning", stop: Stop = None, vbuckets: Sequence[int] | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Give the changes as pyarrow.RecordBatch of CHANGE_SCHEMA. Arguments and errors as of `stream`."""
        async with await self.stream(start, stop, vbuckets) as stream:
            async for batch in stream:
                yield batch

    async def changes(
        self, start: Start = "beginning", stop: Stop = None, vbuckets: Sequence[int] | None = None
    ) -> AsyncGenerator[Change, None]:
        """Give the changes as objects. Arguments and errors as of `stream`."""
        async with await self.stream(start, stop, vbuckets) as stream:
            async for change in stream.changes():
                yield change

    # how requests travel

    async def _positions(self, start: Start, vbuckets: Sequence[int]) -> dict[int, Position]:
        if start == "beginning":
            return dict.fromkeys(vbuckets, BEGINNING)
        if start == "now":
            infos = await self.vbucket_infos(vbuckets)
            return {vb: position_at_end(info) for vb, info in infos.items()}
        if not isinstance(start, Mapping):
            raise UsageError(f"start is {start!r}, expected 'beginning', 'now' or positions by vbucket")
        return {vb: start.get(vb, BEGINNING) for vb in vbuckets}

    async def _ready(self) -> NodeLink:
        async with self._connecting:
            if self._link is None or self._link.closed.done():
                session = await open_session(self.address)
                self._link, self.vbuckets = session
            return self._link

    async def _retrying(self, attempt: Any) -> Any:
        retry = Retry(self.address.options.retry_seconds, asyncio.get_running_loop().time)
        return await retrying(attempt, retry, self.address, asyncio.sleep)

    async def _once(self, requests: Sequence[Request], accept: tuple[int, ...] = ()) -> list[Frame]:
        link = await self._retrying(self._ready)
        frames: list[Frame] = await link.requests(requests, self.address.options.operation_timeout, accept)
        return frames

    async def _call(self, requests: Sequence[Request], accept: tuple[int, ...] = ()) -> list[Frame]:
        async def attempt() -> list[Frame]:
            link = await self._ready()
            return await link.requests(requests, self.address.options.operation_timeout, accept)

        frames: list[Frame] = await self._retrying(attempt)
        return frames

    def _vbucket(self, key: bytes) -> int:
        if not 0 < len(key) <= MAX_KEY:
            raise UsageError(f"key of {len(key)} bytes, expected 1 to {MAX_KEY}")
        return vbucket_of(key, self.vbuckets)

    def _store(self, kind: type[Set], key: bytes, value: bytes, **fields: int) -> Set:
        if len(value) > MAX_VALUE:
            raise UsageError(f"value of {len(value)} bytes under {key!r}, limit {MAX_VALUE}")
        return kind(key=key, value=value, vbucket=self._vbucket(key), **fields)


def _document(frame: Frame) -> Document | None:
    if frame.specific != Status.SUCCESS:
        return None
    reply = decode(frame)
    assert isinstance(reply, GetReply)
    return Document(reply.value, reply.cas, reply.flags, Datatype(reply.datatype))


def _octets(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def _chunks(requests: Iterable[Request]) -> Iterable[list[Request]]:
    source = iter(requests)
    while chunk := list(itertools.islice(source, _AT_ONCE)):
        yield chunk
