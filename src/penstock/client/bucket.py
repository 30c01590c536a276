"""A bucket: its documents, its statistics, its changes."""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa

from penstock.client.address import DEFAULT_URL, Address, dialect_of, parse_address
from penstock.client.connection import NodeLink
from penstock.client.feed import Feed, Wanted
from penstock.client.position import BEGINNING, Position, VbucketInfo, position_at_end
from penstock.client.session import open_session, retrying
from penstock.client.stream import ChangeStream
from penstock.client.tap_feed import TapFeed
from penstock.errors import KeyNotFound, RemoteProtocolError, TemporaryFailure, UsageError
from penstock.store.failover import FailoverLog
from penstock.wire.constants import MAX_KEY, MAX_SEQNO, MAX_VALUE, Dialect, Status
from penstock.wire.frame import Frame
from penstock.wire.kv import (
    Add,
    CloseProducer,
    Delete,
    Flush,
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

_FLAGS = GetReply.layouts[1].extras


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

    vbuckets: how many it has, 0 before the first connection. There is one connection, made when it is needed.
    Reading commands and `upsert` are tried again when the connection ends, up to `retry_seconds`, and then raise
    Unreachable; the others are not, since they might have been carried out, and raise ConnectionClosed or
    OperationTimeout. Any of them raises the StatusError that the node answers with, UsageError for a key or value that
    cannot be or a bucket that does not exist, RemoteProtocolError if the node breaks the protocol.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.vbuckets = 0
        self._link: NodeLink | None = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect, unless there is a connection. Entering does it; the errors are those of reading commands."""
        await retrying(self._ready, self.address)

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
        if not cas:
            raise UsageError(f"cas 0 to replace {key!r}, expected that of the version to replace")
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

    async def flush(self) -> None:
        """Remove every document of the bucket; its vbuckets begin new histories. Raises NotSupported."""
        await self._once([Flush()])

    # what the node says of itself

    async def stats(self, group: str = "") -> dict[str, str]:
        """Return a group of statistics, name to text. Raises KeyNotFound for an unknown group."""

        async def ask() -> list[Frame]:
            link = await self._ready()
            return await link.collect(Stat(key=group.encode()), self.address.options.operation_timeout)

        frames = await retrying(ask, self.address)
        return {frame.key.decode("utf-8", "replace"): frame.value.decode("utf-8", "replace") for frame in frames}

    async def close_streams(self, name: str) -> None:
        """End the change-stream connections of this name. Raises KeyNotFound if there is none."""
        await self._once([CloseProducer(key=name.encode())])

    async def high_seqnos(self) -> dict[int, int]:
        """Return the high seqno of every vbucket that is alive: those of a bridge are replicas."""
        (frame,) = await self._call([GetAllVbSeqnos()])
        return unpack_vb_seqnos(frame.value)

    async def failover_logs(self, vbuckets: Sequence[int]) -> dict[int, FailoverLog]:
        """Return the failover logs, newest entry first."""
        frames = await self._call([GetFailoverLog(vbucket=vbucket) for vbucket in vbuckets])
        return {vb: unpack_failover_log(frame.value) for vb, frame in zip(vbuckets, frames, strict=True)}

    async def vbucket_infos(self, vbuckets: Sequence[int] | None = None) -> dict[int, VbucketInfo]:
        """Return a consistent view of the vbuckets (all, if none are named).

        Raises Unreachable if their failover logs keep changing while the seqnos are read.
        """
        wanted = await self._chosen(vbuckets)

        async def look() -> tuple[dict[int, FailoverLog], dict[str, str]]:
            before = await self.failover_logs(wanted)
            stats = await self.stats("vbucket-seqno")
            after = await self.failover_logs(wanted)
            if before != after:
                raise TemporaryFailure("failover logs changed while the seqnos were read")
            return after, stats

        logs, stats = await retrying(look, self.address)
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
        *,
        protocol: str | None = None,
    ) -> ChangeStream:
        """Return the changes of some vbuckets (all, if none are named) from a position to a position.

        start: "beginning", "now", or by vbucket the positions where an earlier stream ended; without one, a vbucket
        begins at the beginning. stop: None for ever; "now" for what exists when the stream connects (or connects again,
        after it was cut off); or by vbucket the last seqno wanted, vbuckets without one being left out.
        protocol: the dialect, "tap", "upr-draft", "upr" or "dcp"; None: as the connection string says. TAP has no
        seqnos: it knows "beginning", "now" and None, and cannot go on from a position.
        Raises UsageError for a vbucket that the bucket does not have, and for another start, stop or protocol.
        """
        dialect = self.address.options.protocol if protocol is None else dialect_of(protocol)
        if stop is not None and stop != "now" and not isinstance(stop, Mapping):
            raise UsageError(f"stop is {stop!r}, expected None, 'now' or seqnos by vbucket")
        chosen = await self._chosen(vbuckets)
        if dialect is Dialect.TAP:
            return ChangeStream(self.address, self._tap_feed(start, stop, chosen), self.high_seqnos)
        ends = dict.fromkeys(chosen, MAX_SEQNO)
        if isinstance(stop, Mapping):
            ends = {vb: stop[vb] for vb in chosen if vb in stop}
        positions = await self._positions(start, chosen)
        wanted = {vb: Wanted(position=positions[vb], end_seqno=end) for vb, end in ends.items()}
        return self.open_feed(wanted, dialect=dialect, ends_now=stop == "now")

    def open_feed(
        self,
        wanted: Mapping[int, Wanted],
        *,
        dialect: Dialect = Dialect.DCP,
        exact_end: bool = False,
        ends_now: bool = False,
    ) -> ChangeStream:
        """Return exactly these streams; arguments as of `Feed`. The bucket must have been entered."""
        window = self.address.options.flow_control_bytes
        feed = Feed(self.vbuckets, wanted, window=window, dialect=dialect, exact_end=exact_end, ends_now=ends_now)
        return ChangeStream(self.address, feed, self.high_seqnos)

    def _tap_feed(self, start: Start, stop: Stop, chosen: Sequence[int]) -> TapFeed:
        if start not in ("beginning", "now") or stop not in ("now", None):
            raise UsageError(
                "TAP cannot resume: it has no seqnos, so start is 'beginning' or 'now', and stop None or 'now'"
            )
        window = self.address.options.flow_control_bytes
        return TapFeed(self.vbuckets, chosen, window=window, from_now=start == "now", until_now=stop == "now")

    async def batches(
        self,
        start: Start = "beginning",
        stop: Stop = None,
        vbuckets: Sequence[int] | None = None,
        *,
        protocol: str | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Give the changes as pyarrow.RecordBatch of CHANGE_SCHEMA. Arguments and errors as of `stream`."""
        async with await self.stream(start, stop, vbuckets, protocol=protocol) as stream:
            async for batch in stream:
                yield batch

    async def changes(
        self,
        start: Start = "beginning",
        stop: Stop = None,
        vbuckets: Sequence[int] | None = None,
        *,
        protocol: str | None = None,
    ) -> AsyncGenerator[Change, None]:
        """Give the changes as objects. Arguments and errors as of `stream`."""
        async with await self.stream(start, stop, vbuckets, protocol=protocol) as stream:
            async for change in stream.changes():
                yield change

    # how requests travel

    async def _chosen(self, vbuckets: Sequence[int] | None) -> Sequence[int]:
        await retrying(self._ready, self.address)
        chosen = range(self.vbuckets) if vbuckets is None else vbuckets
        if foreign := [vb for vb in chosen if not 0 <= vb < self.vbuckets]:
            raise UsageError(f"vbucket {foreign[0]} of {self.address}, which has {self.vbuckets}")
        return chosen

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
        """Return the connection, made new if there is none. Raises as `open_session` does."""
        async with self._connecting:
            if self._link is None or self._link.closed.done():
                link, vbuckets = await open_session(self.address)
                if self.vbuckets not in (0, vbuckets):
                    await link.close()
                    raise RemoteProtocolError(f"{self.address} has {vbuckets} vbuckets now, it had {self.vbuckets}")
                self._link, self.vbuckets = link, vbuckets
            return self._link

    async def _once(self, requests: Sequence[Request], accept: tuple[int, ...] = ()) -> list[Frame]:
        link = await retrying(self._ready, self.address)
        return await link.requests(requests, self.address.options.operation_timeout, accept)

    async def _call(self, requests: Sequence[Request], accept: tuple[int, ...] = ()) -> list[Frame]:
        async def attempt() -> list[Frame]:
            link = await self._ready()
            return await link.requests(requests, self.address.options.operation_timeout, accept)

        return await retrying(attempt, self.address)

    def _vbucket(self, key: bytes) -> int:
        if not 0 < len(key) <= MAX_KEY:
            raise UsageError(f"key of {len(key)} bytes, expected 1 to {MAX_KEY}")
        if not self.vbuckets:
            raise UsageError("the bucket is not connected; use it as `async with connect(...) as bucket`")
        return vbucket_of(key, self.vbuckets)

    def _store(self, kind: type[Set], key: bytes, value: bytes, **fields: Any) -> Set:
        if len(value) > MAX_VALUE:
            raise UsageError(f"value of {len(value)} bytes under {key!r}, limit {MAX_VALUE}")
        return kind(key=key, value=value, vbucket=self._vbucket(key), **fields)


def _document(frame: Frame) -> Document | None:
    if frame.specific != Status.SUCCESS:
        return None
    if len(frame.extras) != _FLAGS.size:
        decode(frame)  # says what is wrong with it; decoding those that are right as well took a third of the time
    (flags,) = _FLAGS.unpack(frame.extras)
    return Document(frame.value, frame.cas, flags, frame.datatype)


def _octets(key: str | bytes) -> bytes:
    try:
        return key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError as error:
        raise UsageError(f"key {key!r} is no text that UTF-8 can hold: {error.reason}") from None


def _chunks(requests: Iterable[Request]) -> Iterator[list[Request]]:
    source = iter(requests)
    while chunk := list(itertools.islice(source, _AT_ONCE)):
        yield chunk
