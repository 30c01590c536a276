"""Bulk writes: requests pipelined to the nodes of their vbuckets, with a limit for the bytes in flight.

    async with BulkWriter("couchbase://127.0.0.1/beer") as writer:
        outcomes = await writer.upsert([b"a", b"b"], [b"1", b"2"])

Requests are sent in the order of the rows, as fast as nodes answer. A temporarily refused request is sent again, with
every later request for the same document. So of two rows with one key, the later row wins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.argument_types import check_arguments
from penstock.client.connect.address import Address, parse_address
from penstock.client.connect.dropped_frames import DropReason
from penstock.client.connect.handshake import DOCUMENTS
from penstock.client.connect.node_link import NodeLink, read_error_text
from penstock.client.connect.peer_forms import find_datatypes, limit_datatypes
from penstock.client.connect.retry import Retry
from penstock.client.documents.collection_ids import CollectionIds
from penstock.client.documents.document import Expiry, encode_expiry
from penstock.client.documents.write_requests import (
    OPAQUES,
    Fault,
    WriteRequests,
    WriteRows,
    encode_writes,
    read_offsets,
)
from penstock.client.feeds.collection_selection import qualify_name
from penstock.client.topology.nodes import Nodes
from penstock.errors import (
    RETRIABLE_STATUSES,
    Error,
    OperationTimeout,
    RemoteProtocolError,
    TemporaryFailure,
    Unreachable,
    UsageError,
)
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame, cut_frame, name_status
from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.messages.kv import Delete, Set
from penstock.wire.messages.subdoc import unpack_mutation_specs
from penstock.wire.protocol.frame_receiver import ReceiveEvent

MAX_BYTES_IN_FLIGHT: Final = 4 << 20
"""Default limit of requests without an answer: a node stores as many bytes in 20 ms (documents of 1 KiB)."""

NO_ANSWER: Final = -1
"""Instead of a status: the connection ended before the answer, and the request must not be sent twice."""

_UNSENT, _SENT = -2, -3

_PIECE_BYTES = 64 << 10
"""Bytes that are sent at once: enough to make system calls cheap, and few enough for an early first reply."""

Numbers = npt.NDArray[np.int64]

BinaryColumn: TypeAlias = pa.Array | pa.ChunkedArray | Sequence[bytes] | Sequence[str]
"""Binary values or texts without nulls, such as a column of a table. Texts become UTF-8."""


class Outcomes(NamedTuple):
    """The results of requests, in their order.

    Attributes:
        status: a Status or NO_ANSWER for each request; int32.
        cas: the cas of each written version, else 0; uint64.
        faults: index of a request without SUCCESS or an expected status -> its error.
    """

    status: npt.NDArray[np.int32]
    cas: npt.NDArray[np.uint64]
    faults: dict[int, Fault]


@dataclass(slots=True)
class _NodeShare:
    """The requests that go over one connection.

    Attributes:
        link: the connection.
        progress: set when a reply arrived on any connection, or a connection ended.
        missing: the number of missing replies.
        silent_since: the loop's time of the last reply, or of the first request.
    """

    link: NodeLink
    progress: asyncio.Event
    missing: int = 0
    silent_since: float = 0.0


@check_arguments
class BulkWriter:
    """Writes many documents of a bucket. Use it as `async with`, which raises the errors of Bucket.connect.

    Attributes:
        address: the bucket.
        max_bytes_in_flight: limit of requests without an answer, over all nodes; a longer request is sent alone.
        peak_in_flight: the largest number of bytes that were in flight.
    """

    def __init__(self, address: Address | str, max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT) -> None:
        if max_bytes_in_flight < 1:
            raise UsageError(f"{max_bytes_in_flight} bytes in flight, expected 1 or more")
        address = parse_address(address) if isinstance(address, str) else address
        self.address = address
        self.max_bytes_in_flight = max_bytes_in_flight
        self.peak_in_flight = 0
        self._nodes = Nodes(address, replace(DOCUMENTS, xattrs=True, on_stream=self._receive))
        self._collection_ids = CollectionIds(self._nodes, address)
        self._window: _WriteWindow | None = None
        self._shares: list[_NodeShare] = []
        self._in_flight = 0

    @property
    def vbuckets(self) -> int:
        """The number of vbuckets; 0 before the connection."""
        return self._nodes.map.vbuckets

    @property
    def has_collections(self) -> bool:
        """Whether the nodes have collections; False before the connection."""
        return self._nodes.has_collections

    async def __aenter__(self) -> Self:
        await self._nodes.run_with_retry(self._nodes.connect_first)
        await self._nodes.connect_reachable()  # whether all nodes have collections is known before the first write
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._nodes.close()

    async def upsert(
        self,
        keys: BinaryColumn,
        values: BinaryColumn,
        *,
        expiry: Expiry = 0,
        flags: int = 0,
        collection: str = "",
    ) -> Outcomes:
        """Store documents, whether they exist or not. Of two rows with one key, the later row wins.

        Args:
            keys: one for each document, of 1 to 250 bytes.
            values: one for each key.
            expiry: as in Bucket.upsert.
            flags: of all documents; clients use them to describe the format of the value.
            collection: `name` or `scope.name`; empty: the default collection.

        Returns:
            The result of each row, in their order.

        Raises:
            UsageError: a column has nulls or another type, or the columns have different lengths. The errors of
                `write` and of `find_key_prefix` are raised too.
        """
        stored = _to_binary(values, "values")
        columns = {"values": stored, "fields": {"flags": flags, "expiry": encode_expiry(expiry, time.time())}}
        if len(keys) != len(stored):
            raise UsageError(f"{len(keys)} keys and {len(stored)} values, expected as many of each")
        return await self._write_columns(Set, Opcode.SET, keys, collection, **columns)

    async def delete(self, keys: BinaryColumn, *, collection: str = "") -> Outcomes:
        """Delete documents. A document that does not exist is a fault of its row, with the status KEY_ENOENT.

        Args, results and errors are those of `upsert`.
        """
        return await self._write_columns(Delete, Opcode.DELETE, keys, collection)

    async def _write_columns(
        self, message_type: type[Message], opcode: Opcode, keys: BinaryColumn, collection: str, **columns: Any
    ) -> Outcomes:
        prefix = await self.find_key_prefix(*qualify_name(collection or DEFAULT_NAME))
        rows = WriteRows(
            message_type=message_type, opcode=opcode, keys=_to_binary(keys, "keys"), prefixes=prefix, **columns
        )
        return await self.write(encode_writes(rows, self.vbuckets))

    async def find_key_prefix(self, scope: str, collection: str) -> bytes:
        """Return the encoded id of a collection, with which its keys begin.

        Raises UnknownCollection or UnknownScope, and UsageError if the nodes have no collections.
        """
        return await self._collection_ids.find_key_prefix((scope, collection))

    def forget_collections(self) -> None:
        """Request the ids of collections again: one of them has changed."""
        self._collection_ids.forget_all()

    async def write(self, requests: WriteRequests, expected: Collection[int] = ()) -> Outcomes:
        """Send requests and return their results. Only one call at a time is allowed.

        Args:
            requests: the requests.
            expected: statuses without an error in the outcomes. An error takes longer than the request itself, and in
                a replication both ways half of the changes are refused as known.

        Raises Unreachable if nodes are down for longer than `retry_seconds`, and permanent errors as `async with`
        does. Requests that were sent before may have been executed.
        """
        window = self._window = _WriteWindow(requests, expected)
        retry = Retry(self.address.options.retry_seconds, asyncio.get_running_loop().time)
        try:
            while len(places := window.find_unsent()):
                before = window.unsent_count
                failure = await self._send_round(window, places)
                if window.unsent_count < before:
                    retry.reset()
                if failure is not None and window.unsent_count:
                    try:
                        delay = retry.next_delay(failure, self.address)
                    except Unreachable:
                        if not window.accept_refusals():
                            raise
                        break
                    await asyncio.sleep(delay)
        finally:
            self._window = None
        return window.make_outcomes()

    async def _send_round(self, window: _WriteWindow, places: Numbers) -> Exception | None:
        """Send requests once and wait for the answers; return the failure that needs another round, if any."""
        vbuckets = window.requests.vbuckets[places]
        try:
            links = await self._nodes.connect_owners(np.unique(vbuckets).tolist())
            self._nodes.check_keys(prefixed=window.requests.has_prefixes)
        except (OSError, Error) as error:
            self._nodes.invalidate_map()
            window.failed_at_node = True
            return error
        self._in_flight = 0
        shares = {id(link): _NodeShare(link, asyncio.Event()) for link in links.values()}
        self._shares = [*shares.values()]
        numbers = {name: number for number, name in enumerate(shares)}
        of_vbucket = np.zeros(self.vbuckets, np.int16)
        for vbucket, link in links.items():
            of_vbucket[vbucket] = numbers[id(link)]
        window.assign_shares(places, of_vbucket)
        for share in self._shares:
            share.link.closed.add_done_callback(self._wake_shares)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(self._shares)):
                    group.create_task(self._send_share(window, number, places[of_vbucket[vbuckets] == number]))
        except BaseException:
            for share in self._shares:
                if share.missing:  # late replies would be taken for those of the next call
                    share.link.fail(OperationTimeout("given up"))
            raise
        finally:
            for share in self._shares:
                share.link.closed.remove_done_callback(self._wake_shares)
        failure = window.end_round([share.link.closed.done() for share in self._shares])
        for share in self._shares:
            if share.link.closed.done():
                self._nodes.invalidate_map()
                return share.link.make_end_error()  # write() raises it if it is permanent
        if window.has_moved_vbucket:
            self._nodes.invalidate_map()
        return failure

    async def _send_share(self, window: _WriteWindow, number: int, places: Numbers) -> None:
        """Send the requests of a share in order, and wait until all are answered or the connection has ended."""
        share, at = self._shares[number], 0
        link = share.link
        granted = find_datatypes(link.features)
        places = window.refuse_attributes(places, granted)
        frames = window.gather_frames(places)
        data, ends = memoryview(frames.buffers()[2] or b""), read_offsets(frames)
        data = limit_datatypes(data, ends[:-1], granted)
        most = min(_PIECE_BYTES, max(1, self.max_bytes_in_flight // 4))
        while at < len(places) and not link.closed.done():
            behind = max(at + 1, int(np.searchsorted(ends, int(ends[at]) + most, side="right")) - 1)
            size = int(ends[behind] - ends[at])
            if self._in_flight and self._in_flight + size > self.max_bytes_in_flight:
                await self._wait_for_progress(share)
                continue
            window.status[places[at:behind]] = _SENT
            if not share.missing:
                share.silent_since = self._now()
            share.missing += behind - at
            self._in_flight += size
            self.peak_in_flight = max(self.peak_in_flight, self._in_flight)
            link.send(bytes(data[ends[at] : ends[behind]]))
            at = behind
            await asyncio.sleep(0)
        while share.missing and not link.closed.done():
            await self._wait_for_progress(share)
        self._in_flight -= window.count_unanswered_bytes(number)
        self._wake_shares()

    async def _wait_for_progress(self, share: _NodeShare) -> None:
        """Wait for a reply on any connection. Close this connection if its replies are overdue."""
        timeout = self.address.options.operation_timeout
        share.progress.clear()
        try:
            async with asyncio.timeout_at(share.silent_since + timeout if share.missing else None):
                await share.progress.wait()
        except TimeoutError:
            share.link.fail(OperationTimeout(f"no answer to a request within {timeout:g} s"))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _wake_shares(self, closed: object = None) -> None:
        for share in self._shares:
            share.progress.set()

    def _receive(self, link: NodeLink, events: list[ReceiveEvent]) -> None:
        window = self._window
        replies = [event for event in events if isinstance(event, Frame) and event.opaque >= OPAQUES]
        link.dropped.add(DropReason.UNEXPECTED_REPLY, len(events) - len(replies))
        if window is None or not replies:
            link.dropped.add(DropReason.UNEXPECTED_REPLY, len(replies))
            return
        answered, size = window.record_replies(replies)
        self._in_flight -= size
        for share in self._shares:
            if share.link is link:
                share.missing -= answered
                share.silent_since = self._now()
            share.progress.set()


def _to_binary(column: BinaryColumn, name: str) -> pa.Array:
    """Return a column as one binary array without nulls.

    Args:
        column: the column.
        name: its name in errors.

    Raises:
        UsageError: the column has nulls, or neither binary values nor texts.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    try:
        binary = column.cast(pa.binary()) if isinstance(column, pa.Array) else pa.array(column, pa.binary())
    except pa.ArrowException as error:
        raise UsageError(f"{name}: {error}, expected binary values or texts") from None
    if binary.null_count:
        raise UsageError(f"{binary.null_count} nulls in {name}, expected none")
    return binary


class _WriteWindow:
    """The requests of one `write` and their states.

    Attributes:
        requests: all requests.
        status: a Status, NO_ANSWER, _UNSENT, or _SENT for a request without a reply.
        cas: the cas of each written version, else 0.
        faults: index of a request -> its error.
        has_moved_vbucket: a node does not have a vbucket that the map assigns to it.
        failed_at_node: nodes were down.
    """

    def __init__(self, requests: WriteRequests, expected: Collection[int] = ()) -> None:
        count = len(requests)
        self.requests = requests
        self.status = np.full(count, _UNSENT, np.int32)
        self.cas = np.zeros(count, np.uint64)
        self.faults = dict(requests.faults)
        self.has_moved_vbucket = self.failed_at_node = False
        self._share_of = np.zeros(count, np.int16)
        self._sizes = np.diff(read_offsets(requests.frames))
        self._without_fault = [int(Status.SUCCESS), *expected]
        for place, fault in requests.faults.items():
            self.status[place] = fault.status
        self._answers = self.status.copy()

    @property
    def unsent_count(self) -> int:
        return int(np.count_nonzero(self.status == _UNSENT))

    def find_unsent(self) -> Numbers:
        return np.flatnonzero(self.status == _UNSENT)

    def assign_shares(self, places: Numbers, share_of_vbucket: npt.NDArray[np.int16]) -> None:
        self._share_of[places] = share_of_vbucket[self.requests.vbuckets[places]]
        self.has_moved_vbucket = self.failed_at_node = False

    def refuse_attributes(self, places: Numbers, granted: Datatype) -> Numbers:
        """Refuse the requests with extended attributes if a node has none. Returns the places of the others."""
        if granted & Datatype.XATTR or not len(places):
            return places
        has_some = self.requests.find_attributes(places)
        for place in places[has_some].tolist():
            self.status[place] = self._answers[place] = int(Status.XATTR_EINVAL)
            self.faults[place] = Fault(
                Status.XATTR_EINVAL, "the server has no extended attributes, expected a row without"
            )
        return places[~has_some]

    def gather_frames(self, places: Numbers) -> pa.Array:
        """Return the frames of requests as one array."""
        frames = self.requests.frames
        return frames if len(places) == len(frames) else frames.take(pa.array(places))

    def record_replies(self, replies: Sequence[Frame]) -> tuple[int, int]:
        """Record replies; return their number, and the bytes of their requests."""
        places = np.fromiter([frame.opaque for frame in replies], np.int64, len(replies)) - OPAQUES
        if places.max() >= len(self.status) or (self.status[places] != _SENT).any():
            raise RemoteProtocolError("an answer to a request that was not sent")
        statuses = np.fromiter([frame.specific for frame in replies], np.int32, len(replies))
        self.status[places] = self._answers[places] = statuses
        self.cas[places] = np.fromiter([frame.cas for frame in replies], np.uint64, len(replies))
        has_fault = ~np.isin(statuses, self._without_fault)
        if self.faults:
            for place in places[~has_fault].tolist():
                self.faults.pop(place, None)
        self.cas[places[statuses != 0]] = 0
        for at in np.flatnonzero(has_fault).tolist():
            self.faults[int(places[at])] = self._make_fault(int(places[at]), replies[at])
        return len(replies), int(self._sizes[places].sum())

    def count_unanswered_bytes(self, share: int) -> int:
        """Return the bytes of a share's requests without a reply."""
        return int(self._sizes[(self.status == _SENT) & (self._share_of == share)].sum())

    def _make_fault(self, place: int, reply: Frame) -> Fault:
        text = read_error_text(reply)
        if reply.specific == Status.SUBDOC_MULTI_PATH_FAILURE and len(reply.value) >= 3:
            sent = cut_frame(memoryview(self.requests.frames[place].as_py()), 0)
            operation, status = reply.value[0], int.from_bytes(reply.value[1:3], "big")
            specs = unpack_mutation_specs(sent.value)
            path = specs[operation].path.decode("utf-8", "replace") if operation < len(specs) else ""
            text = f"path {path!r}: {name_status(status)}" if path else name_status(status)
        return Fault(reply.specific, name_status(reply.specific) + (f" ({text})" if text else ""))

    def end_round(self, ended: Sequence[bool]) -> Exception | None:
        """Select the requests to send again; return the failure that caused it.

        Args:
            ended: for each share, whether its connection has ended.

        Returns:
            The failure of a refused request; None if no request was refused.
        """
        lost = np.flatnonzero((self.status == _SENT) & np.array(ended)[self._share_of])
        again = self.requests.repeatable[lost]
        self.status[lost[again]] = _UNSENT
        for place in lost[~again].tolist():
            self.status[place] = NO_ANSWER
            self.faults[place] = Fault(NO_ANSWER, "the connection ended before the answer: it may have been written")
        self.failed_at_node = any(ended)
        refused = np.flatnonzero(np.isin(self.status, [*RETRIABLE_STATUSES]))
        failure: Exception | None = None
        if len(refused):
            self.has_moved_vbucket = bool((self.status[refused] == Status.NOT_MY_VBUCKET).any())
            failure = TemporaryFailure(self.faults[int(refused[0])].text)
            self.status[refused] = _UNSENT
        self._requeue_later_rows()
        return failure

    def _requeue_later_rows(self) -> None:
        """Select the later requests for the documents of unsent requests, so that they are sent again too."""
        unsent = self.find_unsent()
        if not len(unsent) or len(unsent) == len(self.status):
            return
        number = pc.dictionary_encode(self.requests.documents).indices.to_numpy()
        first = np.full(int(number.max()) + 1, len(self.status))
        np.minimum.at(first, number[unsent], unsent)
        later = np.arange(len(number)) > first[number]
        self.status[later & self.requests.repeatable & (self.status >= 0)] = _UNSENT
        for place in self.requests.faults:
            self.status[place] = self.requests.faults[place].status

    def accept_refusals(self) -> bool:
        """Accept the last refusals as results; return False if nodes were down, which is no result of a request."""
        unsent = self.find_unsent()
        if self.has_moved_vbucket or self.failed_at_node:
            return False
        self.status[unsent] = self._answers[unsent]  # of a refusal, or from before the row waited for an earlier one
        return True

    def make_outcomes(self) -> Outcomes:
        failed = {place: self.faults[place] for place in np.flatnonzero(self.status).tolist() if place in self.faults}
        return Outcomes(self.status, self.cas, failed)
