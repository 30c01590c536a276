"""Many requests at once: pipelined to the nodes that have their vbuckets, limited by the bytes under way, each one's
outcome known.

    async with BulkWriter(address) as writer:
        outcomes = await writer.write(encode(WriteRows(...), writer.vbuckets))

Requests go out in the order of the rows, as fast as nodes answer. What a node refuses for now is sent again, and with
it every later request for the same document, so that of two rows with one key the later one is what stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.connect.address import Address
from penstock.client.connect.dropped import DropReason
from penstock.client.connect.handshake import DOCUMENTS
from penstock.client.connect.link import NodeLink, text_of
from penstock.client.connect.retry import Retry
from penstock.client.documents.collection_ids import CollectionIds
from penstock.client.documents.write_requests import OPAQUES, Fault, WriteRequests
from penstock.client.topology.nodes import Nodes
from penstock.errors import (
    STATUS_ERRORS,
    Error,
    OperationTimeout,
    RemoteProtocolError,
    TemporaryFailure,
    Unreachable,
    UsageError,
)
from penstock.wire.codec.frame import Frame, cut_frame, status_name
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.subdoc import unpack_mutation_specs
from penstock.wire.protocol.frame_receiver import ReceiveEvent

__all__ = ["MAX_BYTES_IN_FLIGHT", "NO_ANSWER", "BulkWriter", "Outcomes"]

MAX_BYTES_IN_FLIGHT: Final = 4 << 20
"""Of requests without an answer, by default: 20 ms of what a node takes of documents of 1 KiB."""

NO_ANSWER: Final = -1
"""In place of a status: the connection ended before the answer, and the request is not one to be sent twice."""

_UNSENT, _SENT = -2, -3

_PIECE_BYTES = 64 << 10
"""Sent at once: enough for the system calls not to matter, little enough for the first reply to come soon."""

_AGAIN = frozenset(
    (
        *(status for status, error in STATUS_ERRORS.items() if error.retriable),
        *(Status.SYNC_WRITE_IN_PROGRESS, Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS, Status.BUCKET_PAUSED),
    )
)
"""Statuses of requests that were not carried out, and may be later."""

Numbers = npt.NDArray[np.int64]


class Outcomes(NamedTuple):
    """What became of requests, in their order. status: one of Status, or NO_ANSWER. cas: of the versions that were
    written, else 0. faults: those whose status is not SUCCESS, by place."""

    status: npt.NDArray[np.int32]
    cas: npt.NDArray[np.uint64]
    faults: dict[int, Fault]


@dataclass(slots=True)
class _NodeShare:
    """One connection's part of the requests. missing: answers it owes. silent_since: the loop's time of the last one.
    moved: an answer came, from whomever, or an end."""

    link: NodeLink
    moved: asyncio.Event
    missing: int = 0
    silent_since: float = 0.0


class BulkWriter:
    """A bucket that is written to. max_bytes_in_flight: of requests without an answer, over all nodes; a request that
    is longer by itself is sent alone.

    vbuckets, collections: what the bucket has, known once it is entered. most_in_flight: the most bytes there were.
    Entering raises as `Bucket.connect` does.
    """

    def __init__(self, address: Address, max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT) -> None:
        if max_bytes_in_flight < 1:
            raise UsageError(f"{max_bytes_in_flight} bytes in flight, expected 1 or more")
        self.address = address
        self.max_bytes_in_flight = max_bytes_in_flight
        self.most_in_flight = 0
        self._nodes = Nodes(address, replace(DOCUMENTS, xattrs=True, on_stream=self._received))
        self._collection_ids = CollectionIds(self._nodes, address)
        self._window: _WriteWindow | None = None
        self._shares: list[_NodeShare] = []
        self._in_flight = 0

    @property
    def vbuckets(self) -> int:
        return self._nodes.map.vbuckets

    @property
    def collections(self) -> bool:
        return self._nodes.collections

    async def __aenter__(self) -> Self:
        await self._nodes.retrying(self._nodes.ready)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._nodes.close()

    async def prefix(self, scope: str, collection: str) -> bytes:
        """Return what the keys of a collection begin with.

        Raises UnknownCollection or UnknownScope, UsageError for a collection of nodes that have none.
        """
        return await self._collection_ids.prefix((scope, collection))

    def forget_collections(self) -> None:
        """Ask for the ids of collections again: one of them is not what it was."""
        self._collection_ids.forget_all()

    async def write(self, requests: WriteRequests) -> Outcomes:
        """Send requests and return what became of each. One call at a time.

        Raises Unreachable for nodes that are away for longer than `retry_seconds`, and what cannot be mended by
        waiting as entering does; what was sent before may then have been carried out.
        """
        window = self._window = _WriteWindow(requests)
        retry = Retry(self.address.options.retry_seconds, asyncio.get_running_loop().time)
        try:
            while len(places := window.unsent()):
                before = window.left
                failure = await self._round(window, places)
                if window.left < before:
                    retry.succeeded()
                if failure is not None and window.left:
                    try:
                        delay = retry.next_delay(failure, self.address)
                    except Unreachable:
                        if not window.settle():
                            raise
                        break
                    await asyncio.sleep(delay)
        finally:
            self._window = None
        return window.outcomes()

    async def _round(self, window: _WriteWindow, places: Numbers) -> Exception | None:
        """Send requests once and wait for the answers; return what another round is to mend."""
        vbuckets = window.requests.vbuckets[places]
        try:
            links = await self._nodes.links(np.unique(vbuckets).tolist())
        except (OSError, Error) as error:
            self._nodes.map_is_old()
            window.failed_at_node = True
            return error
        self._in_flight = 0
        shares = {id(link): _NodeShare(link, asyncio.Event()) for link in links.values()}
        self._shares = [*shares.values()]
        numbers = {name: number for number, name in enumerate(shares)}
        of_vbucket = np.zeros(self.vbuckets, np.int16)
        for vbucket, link in links.items():
            of_vbucket[vbucket] = numbers[id(link)]
        window.begin(places, of_vbucket)
        for share in self._shares:
            share.link.closed.add_done_callback(self._share_moved)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(self._shares)):
                    group.create_task(self._feed(window, number, places[of_vbucket[vbuckets] == number]))
        except BaseException:
            for share in self._shares:
                if share.missing:  # what it still answers is nobody's
                    share.link.fail(OperationTimeout("given up"))
            raise
        finally:
            for share in self._shares:
                share.link.closed.remove_done_callback(self._share_moved)
        failure = window.end_round([share.link.closed.done() for share in self._shares])
        for share in self._shares:
            if share.link.closed.done():
                self._nodes.map_is_old()
                return share.link.ended()  # an error that cannot be mended is to be raised
        if window.moved:
            self._nodes.map_is_old()
        return failure

    async def _feed(self, window: _WriteWindow, number: int, places: Numbers) -> None:
        """Send a share's requests in their order, and wait until all are answered or the connection has ended."""
        share, at = self._shares[number], 0
        link = share.link
        frames = window.frames(places)
        data, ends = memoryview(frames.buffers()[2] or b""), window.offsets_of(frames)
        most = min(_PIECE_BYTES, max(1, self.max_bytes_in_flight // 4))
        while at < len(places) and not link.closed.done():
            behind = max(at + 1, int(np.searchsorted(ends, int(ends[at]) + most, side="right")) - 1)
            size = int(ends[behind] - ends[at])
            if self._in_flight and self._in_flight + size > self.max_bytes_in_flight:
                await self._moved(share)
                continue
            window.status[places[at:behind]] = _SENT
            if not share.missing:
                share.silent_since = self._now()
            share.missing += behind - at
            self._in_flight += size
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            link.send(bytes(data[ends[at] : ends[behind]]))
            at = behind
            await asyncio.sleep(0)
        while share.missing and not link.closed.done():
            await self._moved(share)
        self._in_flight -= window.bytes_owed(number)
        self._share_moved()

    async def _moved(self, share: _NodeShare) -> None:
        """Wait until something is answered, anywhere; end a connection that owes answers and is silent for too long."""
        timeout = self.address.options.operation_timeout
        share.moved.clear()
        try:
            async with asyncio.timeout_at(share.silent_since + timeout if share.missing else None):
                await share.moved.wait()
        except TimeoutError:
            share.link.fail(OperationTimeout(f"no answer to a request within {timeout:g} s"))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _share_moved(self, closed: object = None) -> None:
        for share in self._shares:
            share.moved.set()

    def _received(self, link: NodeLink, events: list[ReceiveEvent]) -> None:
        window = self._window
        replies = [event for event in events if isinstance(event, Frame) and event.opaque >= OPAQUES]
        link.dropped.add(DropReason.UNEXPECTED_REPLY, len(events) - len(replies))
        if window is None or not replies:
            link.dropped.add(DropReason.UNEXPECTED_REPLY, len(replies))
            return
        answered, size = window.answer(replies)
        self._in_flight -= size
        for share in self._shares:
            if share.link is link:
                share.missing -= answered
                share.silent_since = self._now()
            share.moved.set()


class _WriteWindow:
    """The requests of one `write`, and what is known of each: a status, _UNSENT, or _SENT and not answered.

    moved: a node does not have a vbucket that it should. failed_at_node: nodes were away.
    """

    def __init__(self, requests: WriteRequests) -> None:
        count = len(requests)
        self.requests = requests
        self.status = np.full(count, _UNSENT, np.int32)
        self.cas = np.zeros(count, np.uint64)
        self.faults = dict(requests.faults)
        self.moved = self.failed_at_node = False
        self._share_of = np.zeros(count, np.int16)
        self._sizes = np.diff(self.offsets_of(requests.frames))
        for place, fault in requests.faults.items():
            self.status[place] = fault.status

    @property
    def left(self) -> int:
        return int(np.count_nonzero(self.status == _UNSENT))

    def unsent(self) -> Numbers:
        return np.flatnonzero(self.status == _UNSENT)

    def begin(self, places: Numbers, share_of_vbucket: npt.NDArray[np.int16]) -> None:
        self._share_of[places] = share_of_vbucket[self.requests.vbuckets[places]]
        self.moved = self.failed_at_node = False

    def frames(self, places: Numbers) -> pa.Array:
        """Return requests, one behind the other."""
        frames = self.requests.frames
        return frames if len(places) == len(frames) else frames.take(pa.array(places))

    @staticmethod
    def offsets_of(frames: pa.Array) -> npt.NDArray[np.int32]:
        if not len(frames):
            return np.zeros(1, np.int32)
        return np.frombuffer(frames.buffers()[1], np.int32, len(frames) + 1, offset=4 * frames.offset)

    def answer(self, replies: Sequence[Frame]) -> tuple[int, int]:
        """Take answers in; return how many there were, and the bytes of their requests."""
        places = np.fromiter([frame.opaque for frame in replies], np.int64, len(replies)) - OPAQUES
        if places.max() >= len(self.status) or (self.status[places] != _SENT).any():
            raise RemoteProtocolError("an answer to a request that was not sent")
        statuses = np.fromiter([frame.specific for frame in replies], np.int32, len(replies))
        self.status[places] = statuses
        self.cas[places] = np.fromiter([frame.cas for frame in replies], np.uint64, len(replies))
        if self.faults:
            for place in places[statuses == 0].tolist():
                self.faults.pop(place, None)
        for at in np.flatnonzero(statuses).tolist():
            self.cas[places[at]] = 0
            self.faults[int(places[at])] = self._fault(int(places[at]), replies[at])
        return len(replies), int(self._sizes[places].sum())

    def bytes_owed(self, share: int) -> int:
        """Return the bytes of a share's requests that have no answer."""
        return int(self._sizes[(self.status == _SENT) & (self._share_of == share)].sum())

    def _fault(self, place: int, reply: Frame) -> Fault:
        text = text_of(reply)
        if reply.specific == Status.SUBDOC_MULTI_PATH_FAILURE and len(reply.value) >= 3:
            sent = cut_frame(memoryview(self.requests.frames[place].as_py()), 0)
            operation, status = reply.value[0], int.from_bytes(reply.value[1:3], "big")
            specs = unpack_mutation_specs(sent.value)
            path = specs[operation].path.decode("utf-8", "replace") if operation < len(specs) else ""
            text = f"path {path!r}: {status_name(status)}" if path else status_name(status)
        return Fault(reply.specific, status_name(reply.specific) + (f" ({text})" if text else ""))

    def end_round(self, ended: Sequence[bool]) -> Exception | None:
        """Decide what is to be sent again; return why. ended: by share, whether its connection has."""
        lost = np.flatnonzero((self.status == _SENT) & np.array(ended)[self._share_of])
        again = self.requests.again[lost]
        self.status[lost[again]] = _UNSENT
        for place in lost[~again].tolist():
            self.status[place] = NO_ANSWER
            self.faults[place] = Fault(NO_ANSWER, "the connection ended before the answer: it may have been written")
        self.failed_at_node = any(ended)
        refused = np.flatnonzero(np.isin(self.status, [*_AGAIN]))
        failure: Exception | None = None
        if len(refused):
            self.moved = bool((self.status[refused] == Status.NOT_MY_VBUCKET).any())
            failure = TemporaryFailure(self.faults[int(refused[0])].text)
            self.status[refused] = _UNSENT
        self._send_later_ones_again()
        return failure

    def _send_later_ones_again(self) -> None:
        """Send again what came behind an unsent request for the same document."""
        unsent = self.unsent()
        if not len(unsent) or len(unsent) == len(self.status):
            return
        number = pc.dictionary_encode(self.requests.documents).indices.to_numpy()
        first = np.full(int(number.max()) + 1, len(self.status))
        np.minimum.at(first, number[unsent], unsent)
        later = np.arange(len(number)) > first[number]
        self.status[later & self.requests.again & (self.status >= 0)] = _UNSENT
        for place in self.requests.faults:
            self.status[place] = self.requests.faults[place].status

    def settle(self) -> bool:
        """Take the last refusals for the outcome; False where nodes did not serve, which is nothing about a request."""
        unsent = self.unsent()
        if self.moved or self.failed_at_node:
            return False
        for place in unsent.tolist():  # those without a fault were carried out, and only came behind one with
            self.status[place] = self.faults[place].status if place in self.faults else Status.SUCCESS
        return True

    def outcomes(self) -> Outcomes:
        failed = {place: self.faults[place] for place in np.flatnonzero(self.status).tolist()}
        return Outcomes(self.status, self.cas, failed)
