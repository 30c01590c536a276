"""A bucket: its documents, its statistics, its changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack

import pyarrow as pa

from penstock.client.connect.address import DEFAULT_URL, Address, dialect_of, parse_address
from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.connect.credentials import credentials_from
from penstock.client.connect.dropped import DropReason
from penstock.client.connect.handshake import DOCUMENTS
from penstock.client.connect.link import refusal
from penstock.client.connect.stat_numbers import read_number
from penstock.client.documents.document import Document, chunks_of, document_of, encode_key, vbucket_of
from penstock.client.documents.mutation_tokens import MutationToken, Tokens
from penstock.client.feeds.feed import Feed, StreamTarget
from penstock.client.feeds.selection import Selection, qualified
from penstock.client.feeds.stream_position import BEGINNING, Position, position_at_end
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.dialect_check import check_dialect
from penstock.client.tap.tap_feed import TapFeed
from penstock.client.topology.item_counts import GROUP, ItemCount, read_counts
from penstock.client.topology.missing import MissingReport, check_numbers, vbuckets_named
from penstock.client.topology.nodes import Nodes
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.client.topology.vbucket_state import request_dumped, request_failover_logs, request_high_seqnos
from penstock.client.topology.vbucket_views import look
from penstock.errors import (
    Error,
    KeyNotFound,
    NotMyVbucket,
    RemoteProtocolError,
    StatusError,
    UnknownCollection,
    UnknownScope,
    UsageError,
)
from penstock.store.failover import FailoverLog
from penstock.wire.collection_key import DEFAULT_PREFIX, pack_collection_id
from penstock.wire.collection_names import DEFAULT_NAME
from penstock.wire.collections import CollectionIdReply, GetCollectionId
from penstock.wire.constants import MAX_KEY, MAX_SEQNO, MAX_VALUE, Dialect, Status
from penstock.wire.frame import Frame
from penstock.wire.kv import Add, CloseProducer, Delete, Flush, Get, Set
from penstock.wire.layout import Request, decode
from penstock.wire.schema import Change

T = TypeVar("T")

Start = Literal["beginning", "now"] | Mapping[int, Position]
Stop = Literal["now"] | Mapping[int, int] | None


class Wants(TypedDict, total=False):
    """What of a bucket's changes is wanted, and how; what is not given is as the connection string says.

    protocol: the dialect, "tap", "upr-draft", "upr" or "dcp". TAP has no seqnos: it knows "beginning", "now" and None,
    and cannot go on from a position. The others are for DCP, and for nodes that have collections: scope: only this one.
    collections: only these, as `name` of the scope (`_default` if there is none) or `scope.name`. xattrs: with extended
    attributes. In any dialect, values=False leaves out values and their datatypes; DCP and TAP do not send them then.
    """

    protocol: str | None
    scope: str
    collections: Sequence[str]
    xattrs: bool | None
    values: bool


def connect(url: str = DEFAULT_URL, *, username: str | None = None, password: str | None = None) -> Bucket:
    """Return a bucket to be used as `async with connect(url) as bucket`.

    username, password: who logs in; nobody, unless they are given. Raises UsageError for what cannot be.
    """
    return Bucket(parse_address(url, credentials_from(username, password)))


class Bucket:
    """A bucket on a node, or on several. Keys may be given as text, which stands for its UTF-8 bytes.

    vbuckets: how many it has, 0 before the first connection. There is one connection to each node, made when it is
    needed. collection: where documents are, `name` or `scope.name`; the default one if it is not given.
    Reading commands and `upsert` are tried again when a connection ends, up to `retry_seconds`, and then raise
    Unreachable; the others are not, since they might have been carried out, and raise ConnectionClosed or
    OperationTimeout. What a node refuses because it does not have the vbucket is tried again in any case. Any of them
    raises the StatusError that the node answers with, UnknownCollection or UnknownScope for a collection that is not
    there, UsageError for a key or value that cannot be, a bucket that does not exist, or a collection of a node that
    has none, RemoteProtocolError if the node breaks the protocol; AuthenticationFailed, AccessDenied and UntrustedNode
    where there is no way in.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._nodes = Nodes(address, replace(DOCUMENTS, tokens=True))
        self._tokens = Tokens()
        self._report = MissingReport(address)
        self._prefixes: dict[tuple[str, str], bytes] = {}

    @property
    def vbuckets(self) -> int:
        return self._nodes.map.vbuckets

    def has_served(self) -> bool:
        """Tell whether there was a connection to the bucket."""
        return self._nodes.has_served()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect, unless there is a connection. Entering does it; the errors are those of reading commands."""
        await self._nodes.retrying(self._nodes.ready)

    async def close(self) -> None:
        await self._nodes.close()

    async def cluster(self) -> ClusterMap:
        """Return which node has which vbucket, as far as is known: a request that finds it changed asks again."""
        await self.connect()
        return self._nodes.map

    # documents

    async def get(self, key: str | bytes, *, collection: str = "") -> Document:
        """Raises KeyNotFound."""
        found = (await self.get_many([key], collection=collection))[0]
        if found is None:
            raise KeyNotFound(f"no document {key!r}")
        return found

    async def get_many(self, keys: Iterable[str | bytes], *, collection: str = "") -> list[Document | None]:
        """Return the documents in the order of the keys, None where there is none."""
        found: list[Document | None] = []
        for chunk in chunks_of(map(encode_key, keys)):
            frames = await self._documents(collection, chunk, self._get, accept=(Status.KEY_ENOENT,))
            found += [document_of(key, frame) for key, frame in zip(chunk, frames, strict=True)]
        return found

    async def upsert(
        self,
        key: str | bytes,
        value: bytes,
        *,
        expiry: int = 0,
        flags: int = 0,
        datatype: int = 0,
        collection: str = "",
    ) -> int:
        """Store a document, whether there is one or not; return its cas. expiry: seconds (30 days at most) or epoch."""
        one = [(key, value)]
        return (await self.upsert_many(one, expiry=expiry, flags=flags, datatype=datatype, collection=collection))[0]

    async def upsert_many(
        self,
        documents: Iterable[tuple[str | bytes, bytes]],
        *,
        expiry: int = 0,
        flags: int = 0,
        datatype: int = 0,
        collection: str = "",
    ) -> list[int]:
        """Store documents, many requests under way at once; return their cas in the same order."""
        written: list[int] = []
        store = partial(self._store, Set, expiry=expiry, flags=flags, datatype=datatype)
        for chunk in chunks_of((encode_key(key), value) for key, value in documents):
            written += [frame.cas for frame in await self._documents(collection, chunk, store)]
        return written

    async def insert(
        self,
        key: str | bytes,
        value: bytes,
        *,
        expiry: int = 0,
        flags: int = 0,
        datatype: int = 0,
        collection: str = "",
    ) -> int:
        """Store a document where there is none; return its cas. Raises KeyExists."""
        store = partial(self._store, Add, expiry=expiry, flags=flags, datatype=datatype)
        return (await self._documents(collection, [(encode_key(key), value)], store, again=False))[0].cas

    async def replace(
        self, key: str | bytes, value: bytes, *, cas: int, expiry: int = 0, flags: int = 0, collection: str = ""
    ) -> int:
        """Store over the version with this cas; return the new one. Raises KeyExists if it changed, KeyNotFound."""
        if not cas:
            raise UsageError(f"cas 0 to replace {key!r}, expected that of the version to replace")
        store = partial(self._store, Set, expiry=expiry, flags=flags, cas=cas)
        return (await self._documents(collection, [(encode_key(key), value)], store, again=False))[0].cas

    async def remove(self, key: str | bytes, *, cas: int = 0, collection: str = "") -> int:
        """Remove a document; return the tombstone's cas. Raises KeyNotFound, KeyExists if cas is not its version."""
        delete = partial(self._delete, cas=cas)
        return (await self._documents(collection, [encode_key(key)], delete, again=False))[0].cas

    async def remove_many(self, keys: Iterable[str | bytes], *, collection: str = "") -> int:
        """Remove documents, many requests under way at once; return how many there were."""
        removed = 0
        for chunk in chunks_of(map(encode_key, keys)):
            accept = (Status.KEY_ENOENT,)
            frames = await self._documents(collection, chunk, self._delete, accept=accept, again=False)
            removed += sum(frame.specific == Status.SUCCESS for frame in frames)
        return removed

    def tokens(self) -> tuple[MutationToken, ...]:
        """Return where in their vbuckets' histories this object's newest writes and removals are, one for each vbucket.

        Nothing of nodes that do not tell, and of writes whose reply did not come.
        """
        return self._tokens.newest()

    async def flush(self) -> None:
        """Remove every document of the bucket; its vbuckets begin new histories. Raises NotSupported."""
        for _, link in await self._nodes.retrying(self._nodes.every):
            await link.request(Flush(), self.address.options.operation_timeout)

    # what the node says of itself

    async def stats(self, group: str = "") -> dict[str, str]:
        """Return a group of statistics, name to text; of the first of several nodes.

        Raises KeyNotFound for another, UsageError for a vbucket that the bucket does not have.
        """

        async def ask() -> dict[str, str]:
            try:
                return await (await self._nodes.ready()).stats(group, self.address.options.operation_timeout)
            except NotMyVbucket:
                check_numbers(vbuckets_named(group), self.vbuckets, self.address)
                raise

        return await self._nodes.retrying(ask)

    async def total_stats(self, group: str = "") -> dict[str, int]:
        """Return the numbers in a group of statistics, each the sum over all nodes. Raises as `stats` does."""

        async def ask() -> dict[str, int]:
            totals: Counter[str] = Counter()
            for _, link in await self._nodes.every():
                said = await link.stats(group, self.address.options.operation_timeout)
                totals.update({name: read_number(name, text) for name, text in said.items() if text.isdecimal()})
            return dict(totals)

        return await self._nodes.retrying(ask)

    async def close_streams(self, name: str) -> None:
        """End the change-stream connections of this name. Raises KeyNotFound if there is none."""
        request, timeout = CloseProducer(key=name.encode()), self.address.options.operation_timeout
        refused: list[KeyNotFound] = []
        links = await self._nodes.retrying(self._nodes.every)
        for _, link in links:
            try:
                await link.request(request, timeout)
            except KeyNotFound as error:
                refused.append(error)
        if len(refused) == len(links):
            raise refused[0]

    @property
    def missing(self) -> tuple[int, ...]:
        """The vbuckets that the last read up to now, or the last view, left out: no node serves them."""
        return self._report.missing

    @property
    def dropped(self) -> dict[DropReason, int]:
        """How many frames were received and are nobody's, by reason; of change streams, see ChangeStream.dropped."""
        return dict(self._nodes.dropped)

    async def high_seqnos(self) -> dict[int, int]:
        """Return the high seqno of every vbucket that is served: active, or a replica, as all of a bridge are."""
        return await self._nodes.retrying(self._high_seqnos)

    async def served(self, vbuckets: Sequence[int]) -> dict[int, int]:
        """Return the high seqnos of these vbuckets.

        Those that no node serves are waited for, or left out where the option missingVbuckets is `skip`.
        Raises Unreachable, which names them.
        """

        async def ask() -> dict[int, int]:
            return self._check_served(vbuckets, await self._high_seqnos())

        return await self._nodes.retrying(ask)

    async def served_by_tap(self, vbuckets: Sequence[int]) -> dict[int, int]:
        """As `served`, of the vbuckets that a TAP dump has. Their seqnos are not known, but 0."""

        async def ask() -> dict[int, int]:
            return self._check_served(vbuckets, await self._dumped())

        return await self._nodes.retrying(ask)

    def _check_served(self, vbuckets: Sequence[int], found: Mapping[int, int]) -> dict[int, int]:
        if any(vbucket not in found for vbucket in vbuckets):
            self._nodes.map_is_old()
        return self._report.check(vbuckets, found, self.vbuckets)

    async def _dumped(self) -> dict[int, int]:
        link = await self._nodes.ready()
        return await request_dumped(link, self.vbuckets, self.address.options.operation_timeout)

    async def _high_seqnos(self) -> dict[int, int]:
        timeout = self.address.options.operation_timeout
        links = await self._nodes.every()
        count = self.vbuckets  # not known before the first connection
        return self._owned([(owner, await request_high_seqnos(link, count, timeout)) for owner, link in links])

    def _owned(self, said: Sequence[tuple[int, Mapping[int, T]]]) -> dict[int, T]:
        """Return what nodes say of vbuckets; of several only what each says of its own."""
        if len(said) == 1:
            return dict(said[0][1])
        owners = self._nodes.map.owners
        return {vb: each for owner, by_vbucket in said for vb, each in by_vbucket.items() if owners[vb] == owner}

    async def item_counts(self) -> dict[int, ItemCount] | None:
        """Return how many documents TAP sends of each active vbucket, None where the node does not report it."""
        try:
            return read_counts(await self.stats(GROUP))
        except StatusError:
            return None

    async def failover_logs(self, vbuckets: Sequence[int]) -> dict[int, FailoverLog]:
        """Return the failover logs, newest entry first."""

        async def ask() -> dict[int, FailoverLog]:
            links = await self._nodes.links(vbuckets)
            try:
                logs = await request_failover_logs(links, self.address.options.operation_timeout)
            except Error:
                self._nodes.map_is_old()
                raise
            return {vbucket: logs[vbucket] for vbucket in vbuckets}

        return await self._nodes.retrying(ask)

    async def seqno_stats(self, vbucket: int | None = None) -> dict[str, str]:
        """Return the statistics vbucket-seqno of a vbucket, or of all, each from the node that has it."""
        links, timeout = await self._nodes.every(), self.address.options.operation_timeout
        owners = self._nodes.map.owners  # behind it: nodes have other numbers in another map
        if vbucket is not None:
            link = dict(links).get(owners[vbucket], links[0][1])
            try:
                return await link.stats(f"vbucket-seqno {vbucket}", timeout)
            except NotMyVbucket:
                self._nodes.map_is_old()
                raise
        stats: dict[str, str] = {}
        for owner, link in links:
            said = await link.stats("vbucket-seqno", timeout)
            own = {f"vb_{vb}" for vb, has in enumerate(owners) if len(links) == 1 or has == owner}
            stats.update((name, text) for name, text in said.items() if name.partition(":")[0] in own)
        return stats

    async def vbucket_infos(
        self,
        vbuckets: Sequence[int] | None = None,
        known: Mapping[int, VbucketInfo] | None = None,
        unsure: Collection[int] = (),
    ) -> dict[int, VbucketInfo]:
        """Return a consistent view of the vbuckets (all, if none are named).

        known: an earlier view; then less is asked for where little has changed, and of a vbucket in which nothing has,
        the purge seqno is the one known, unless it is one of `unsure`.
        Raises Unreachable if their failover logs keep changing while the seqnos are read.
        """
        wanted = await self._chosen(vbuckets)
        return await self._nodes.retrying(lambda: look(self, wanted, known or {}, unsure))

    # changes

    async def stream(
        self,
        start: Start = "beginning",
        stop: Stop = None,
        vbuckets: Sequence[int] | None = None,
        **wants: Unpack[Wants],
    ) -> ChangeStream:
        """Return the changes of some vbuckets (all, if none are named) from a position to a position.

        start: "beginning", "now", or by vbucket the positions where an earlier stream ended; without one, a vbucket
        begins at the beginning. stop: None for ever; "now" for what exists when the stream connects (or connects again,
        after it was cut off); or by vbucket the last seqno wanted, vbuckets without one being left out. A stream that
        ends "now" waits for vbuckets that no node serves, and then raises Unreachable with their numbers; or it leaves
        them out, as the option missingVbuckets says, and so does a start "now".
        Raises UsageError for a vbucket that the bucket does not have, for another start, stop or protocol, and for a
        part of the bucket that it cannot have; iterating over the stream does for one that is not there.
        """
        options = self.address.options
        protocol = wants.get("protocol")
        dialect = options.protocol if protocol is None else dialect_of(protocol)
        named = (wants.get("scope", ""), tuple(wants.get("collections", ())))
        selection = Selection(*(named if any(named) else (options.scope, options.collections)))
        if stop is not None and stop != "now" and not isinstance(stop, Mapping):
            raise UsageError(f"stop is {stop!r}, expected None, 'now' or seqnos by vbucket")
        chosen = await self._chosen(vbuckets)
        if dialect is not Dialect.DCP and not (selection.is_everything or selection.is_default):
            raise UsageError(f"{dialect} knows no collections; protocol dcp does")
        if dialect in (Dialect.UPR, Dialect.UPR_DRAFT):  # a server that lacks them answers with anything
            await check_dialect(self.address, dialect)
        if dialect is Dialect.TAP:
            feed = self._tap_feed(start, stop, chosen, values=wants.get("values", True))
            return ChangeStream(self.address, feed, self.served_by_tap, item_counts=self.item_counts)
        ends = dict.fromkeys(chosen, MAX_SEQNO)
        if isinstance(stop, Mapping):
            ends = {vb: stop[vb] for vb in chosen if vb in stop}
        positions = await self._positions(start, chosen)
        wanted = {
            vb: StreamTarget(position=positions[vb], end_seqno=end) for vb, end in ends.items() if vb in positions
        }
        return self.open_feed(
            wanted,
            dialect=dialect,
            ends_now=stop == "now",
            selection=selection,
            xattrs=wants.get("xattrs"),
            values=wants.get("values", True),
        )

    def open_feed(
        self,
        wanted: Mapping[int, StreamTarget],
        *,
        dialect: Dialect = Dialect.DCP,
        exact_end: bool = False,
        ends_now: bool = False,
        selection: Selection | None = None,
        xattrs: bool | None = None,
        values: bool = True,
    ) -> ChangeStream:
        """Return exactly these streams; arguments as of `Feed`, and None for xattrs as of `stream`.

        The bucket must have been entered.
        """
        options, is_dcp = self.address.options, dialect is Dialect.DCP
        feed = Feed(
            self.vbuckets,
            wanted,
            window=options.flow_control_bytes,
            dialect=dialect,
            exact_end=exact_end,
            ends_now=ends_now,
            selection=selection if is_dcp else None,
            xattrs=is_dcp and (options.xattrs if xattrs is None else xattrs),
            values=values,
        )
        return ChangeStream(self.address, feed, self.served)

    def _tap_feed(self, start: Start, stop: Stop, chosen: Sequence[int], *, values: bool) -> TapFeed:
        if start not in ("beginning", "now") or stop not in ("now", None):
            raise UsageError(
                "TAP cannot resume: it has no seqnos, so start is 'beginning' or 'now', and stop None or 'now'"
            )
        window = self.address.options.flow_control_bytes
        from_now, until_now = start == "now", stop == "now"
        return TapFeed(self.vbuckets, chosen, window=window, from_now=from_now, until_now=until_now, values=values)

    async def batches(
        self,
        start: Start = "beginning",
        stop: Stop = None,
        vbuckets: Sequence[int] | None = None,
        **wanted: Unpack[Wants],
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Give the changes as pyarrow.RecordBatch of CHANGE_SCHEMA. Arguments and errors as of `stream`."""
        async with await self.stream(start, stop, vbuckets, **wanted) as stream:
            async for batch in stream:
                yield batch

    async def changes(
        self,
        start: Start = "beginning",
        stop: Stop = None,
        vbuckets: Sequence[int] | None = None,
        **wanted: Unpack[Wants],
    ) -> AsyncGenerator[Change, None]:
        """Give the changes as objects. Arguments and errors as of `stream`."""
        async with await self.stream(start, stop, vbuckets, **wanted) as stream:
            async for change in stream.changes():
                yield change

    # how requests travel

    async def _chosen(self, vbuckets: Sequence[int] | None) -> Sequence[int]:
        await self._nodes.retrying(self._nodes.ready)
        chosen = range(self.vbuckets) if vbuckets is None else vbuckets
        check_numbers(chosen, self.vbuckets, self.address)
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

    async def _documents(
        self,
        collection: str,
        items: Sequence[T],
        make: Callable[[bytes, T], Request],
        *,
        accept: tuple[int, ...] = (),
        again: bool = True,
    ) -> list[Frame]:
        """Send a request for each item, and once more where the collection's id has become another one.

        make: makes a request, given what its key begins with. again: as of _call.
        """
        if not self.vbuckets:
            raise UsageError("the bucket is not connected; use it as `async with connect(...) as bucket`")
        name = qualified(collection or DEFAULT_NAME)
        prefix = await self._prefix(name)
        requests = [make(prefix, item) for item in items]
        if prefix in (b"", DEFAULT_PREFIX):
            return await self._call(requests, accept, again=again, prefix_bytes=len(prefix))
        known = (*accept, Status.UNKNOWN_COLLECTION)
        frames = await self._call(requests, known, again=again, prefix_bytes=len(prefix))
        unknown = [at for at, frame in enumerate(frames) if frame.specific == Status.UNKNOWN_COLLECTION]
        if not unknown:
            return frames
        if self._prefixes.pop(name, b"") == prefix and (other := await self._prefix(name)) != prefix:
            requests = [make(other, items[at]) for at in unknown]
            replies = await self._call(requests, accept, again=again, prefix_bytes=len(other))
            for at, frame in zip(unknown, replies, strict=True):
                frames[at] = frame
            return frames
        raise refusal(requests[unknown[0]], frames[unknown[0]], len(prefix))

    async def _prefix(self, name: tuple[str, str]) -> bytes:
        """Return what the keys of a collection begin with on the connections that there are."""
        is_default = name == (DEFAULT_NAME, DEFAULT_NAME)
        await self._nodes.retrying(self._nodes.ready)
        if not self._nodes.collections:
            if not is_default:
                raise UsageError(f"collection {'.'.join(name)!r} of a node that has none")
            return b""
        if is_default:
            return DEFAULT_PREFIX
        if name not in self._prefixes:
            path = ".".join(name)
            try:
                (frame,) = await self._call([GetCollectionId(value=path.encode())])
            except (UnknownCollection, UnknownScope) as error:
                raise type(error)(f"no collection {path!r} in {self.address}", body=error.body) from None
            reply = decode(frame)
            if not isinstance(reply, CollectionIdReply) or reply.collection_id is None:
                raise RemoteProtocolError(f"collection {path!r}: a reply without its id")
            self._prefixes[name] = pack_collection_id(reply.collection_id)
        return self._prefixes[name]

    async def _call(
        self, requests: Sequence[Request], accept: tuple[int, ...] = (), *, again: bool = True, prefix_bytes: int = 0
    ) -> list[Frame]:
        """Send requests, each to the node that has its vbucket, and return their replies in the same order.

        again: also after a connection has ended, or for a status that another try may mend. What a node does not have
        is sent again anyhow, but only that. prefix_bytes: of the keys, what is no part of them in messages.
        Raises the StatusError of a status that is neither SUCCESS nor in `accept`.
        """
        found: list[Frame | None] = [None] * len(requests)

        async def attempt() -> list[Frame]:
            left = [at for at, frame in enumerate(found) if frame is None]
            sent = requests if len(left) == len(requests) else [requests[at] for at in left]
            parts = await (self._nodes.parts(sent) if again else self._nodes.retrying(lambda: self._nodes.parts(sent)))
            frames = await self._nodes.exchange(parts, sent)
            self._tokens.remember(sent, frames)
            bad = [at for at, frame in enumerate(frames) if frame.specific and frame.specific not in accept]
            if sent is requests and not bad:
                return frames
            for at, frame in zip(left, frames, strict=True):
                found[at] = frame
            # Of several errors the one that is sure to be mended is the last to be told.
            bad.sort(key=lambda at: frames[at].specific == Status.NOT_MY_VBUCKET)
            for at in bad:
                found[left[at]] = None
            if bad:
                refused = refusal(sent[bad[0]], frames[bad[0]], prefix_bytes)
                if isinstance(refused, NotMyVbucket):
                    self._nodes.map_is_old()
                raise refused
            return [frame for frame in found if frame is not None]

        if again:
            return await self._nodes.retrying(attempt)
        return await self._nodes.retrying(attempt, only=(NotMyVbucket,))

    def _vbucket(self, key: bytes) -> int:
        if not 0 < len(key) <= MAX_KEY:
            raise UsageError(f"key of {len(key)} bytes, expected 1 to {MAX_KEY}")
        return vbucket_of(key, self.vbuckets)

    def _get(self, prefix: bytes, key: bytes) -> Request:
        return Get(key=prefix + key, vbucket=self._vbucket(key))

    def _delete(self, prefix: bytes, key: bytes, cas: int = 0) -> Request:
        return Delete(key=prefix + key, vbucket=self._vbucket(key), cas=cas)

    def _store(self, kind: type[Set], prefix: bytes, document: tuple[bytes, bytes], **fields: Any) -> Request:
        key, value = document
        if len(value) > MAX_VALUE:
            raise UsageError(f"value of {len(value)} bytes under {key!r}, limit {MAX_VALUE}")
        return kind(key=prefix + key, value=value, vbucket=self._vbucket(key), **fields)
