"""A stream that the node receives: its order, the snapshot that is open, and the changes that it stores."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import InvalidArguments, OrderViolation, OutOfRange
from penstock.node.answers import CloseConnection
from penstock.node.buckets.endpoint_reports import StreamReport
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent, VbucketListener
from penstock.node.session.replies import encode_reply
from penstock.store.documents.durability_monitor import get_high_prepared_seqno
from penstock.store.documents.incoming_changes import LAST_SEQNO
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.failover_log import FailoverLog, sanitise_log
from penstock.store.history.vbucket_changes import VbucketChanges
from penstock.store.log.logged_frames import FrameRun
from penstock.wire.codec.constants import MAX_SEQNO, VbucketState
from penstock.wire.codec.flags import SnapshotFlag, StreamFlag
from penstock.wire.codec.frame import Buffer, Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import SeqnoAcknowledged, SnapshotMarker, SnapshotMarkerV2, StreamReq
from penstock.wire.protocol.stream_state import StreamEvent, StreamState, advance_state

logger = logging.getLogger("penstock.node")

_CACHE_WITHOUT_VALUES = b'{"cts":{"all_keys":true}}'


class PassiveStream:
    """One stream of a consumer.

    A message that breaks the order of the stream ends the connection. The vbucket then stays at its last change, and
    its `whole_seqno` at its last complete snapshot: a promotion starts its branch there.

    Attributes:
        vbucket: the vbucket that stores the changes.
        opaque: the opaque of the stream's messages.
        flags: the StreamFlag bits of the request.
        request_opaque: the opaque of ADD_STREAM.
        state: the state of the stream; None until the stream is requested.
        changes: number of stored changes.
    """

    def __init__(
        self,
        bucket: ServedBucket,
        consumer: VbucketListener,
        vbucket: Vbucket,
        *,
        opaque: int,
        flags: int,
        request_opaque: int,
    ) -> None:
        self.vbucket = vbucket
        self.opaque = opaque
        self.flags = flags
        self.request_opaque = request_opaque
        self.state: StreamState | None = None
        self.changes = 0
        self._bucket = bucket
        self._consumer = consumer
        self._was_emptied = False
        self._snapshot: tuple[int, int] | None = None
        self._needs_ack = False
        self._hides = False  # the open snapshot left seqnos out
        self._versions = _ReceivedVersions(vbucket.changes)
        self._has_refused = False
        self._acknowledges = False
        self._acknowledged = 0  # prepares up to this seqno were acknowledged

    @property
    def accepted_seqnos(self) -> range:
        """The seqnos that the next change may have: those of the open snapshot above the high seqno."""
        start, end = self._snapshot or (1, 0)
        return range(max(start, self.vbucket.changes.high_seqno + 1), min(end, LAST_SEQNO) + 1)

    # The request

    def make_request(self, *, has_cache_transfer: bool) -> StreamReq:
        """Return the stream request. It continues after the newest change, also inside a snapshot.

        The vbucket has all of its documents in memory. So a cache transfer comes without values.

        Args:
            has_cache_transfer: whether the producer can send the documents in its memory.
        """
        if not has_cache_transfer:
            self.flags &= ~StreamFlag.CACHE_TRANSFER
        history, high_seqno = self.vbucket.history, self.vbucket.changes.high_seqno
        self.state = StreamState.REQUESTED
        is_inside = history.whole_seqno < high_seqno
        return StreamReq(
            vbucket=self.vbucket.id,
            opaque=self.opaque,
            flags=self.flags,
            start_seqno=high_seqno,
            end_seqno=MAX_SEQNO,
            vbuuid=history.vbuuid,
            snap_start=history.whole_seqno,
            snap_end=history.snapshot_end if is_inside else high_seqno,
            value=_CACHE_WITHOUT_VALUES if self.flags & StreamFlag.CACHE_TRANSFER else b"",
        )

    def accept(self, log: FailoverLog, *, acknowledges: bool = False) -> None:
        """Adopt the failover log of the producer, which has accepted the request.

        Args:
            log: the failover log.
            acknowledges: whether the producer wants to know which prepares are stored.
        """
        self._acknowledges = acknowledges
        self._advance(StreamEvent.ACCEPTED)
        history = self.vbucket.history
        self._hides = history.whole_seqno < self.vbucket.changes.high_seqno  # unknown of changes before this stream
        if sanitise_log(log) != history.failover_log:
            history.set_failover_log(log)
            self._report(VbucketEvent.STATE_CHANGED)

    def roll_back(self, seqno: int) -> bool:
        """Roll back as the producer requires it.

        Args:
            seqno: the newest seqno that both sides have.

        Returns:
            Whether the stream can be requested again: a producer that rejects its own seqno would reject it for ever.
        """
        high_seqno = self.vbucket.changes.high_seqno
        if not high_seqno:
            if self._was_emptied:
                return False
            seqno = 0
        elif seqno >= high_seqno:
            return False
        self._was_emptied = not seqno
        if seqno:
            self.vbucket.rollback(seqno)
        else:
            self.vbucket.reset()
        after = self.vbucket.changes.high_seqno
        logger.info("vbucket %d: the producer rolls it back from %d to %d", self.vbucket.id, high_seqno, after)
        self._report(VbucketEvent.STATE_CHANGED if after else VbucketEvent.FLUSHED)
        return True

    # Messages of the producer

    def start_snapshot(self, marker: SnapshotMarker | SnapshotMarkerV2) -> None:
        """Open a snapshot, or extend the open one.

        A marker of version 2.2 has the purge seqno of the producer. The copy lacks the same tombstones.

        Raises:
            InvalidArguments: the snapshot ends before it starts, or lacks tombstones behind its end.
            OutOfRange: the vbucket has the changes of the snapshot already.
            CloseConnection: the snapshot before is incomplete.
        """
        start, end, high_seqno = marker.start_seqno, marker.end_seqno, self.vbucket.changes.high_seqno
        if start > end:
            raise InvalidArguments(f"vbucket {self.vbucket.id}: snapshot from {start} to {end}")
        purge_seqno = marker.purge_seqno or 0 if isinstance(marker, SnapshotMarkerV2) else 0
        if purge_seqno > end:
            raise InvalidArguments(f"vbucket {self.vbucket.id}: purge seqno {purge_seqno} in a snapshot up to {end}")
        # The first marker may continue a snapshot of the stream before.
        resumes_inside = self._snapshot is None and self.vbucket.history.whole_seqno < high_seqno
        if end < high_seqno or (start < end == high_seqno and not resumes_inside):
            raise OutOfRange(f"vbucket {self.vbucket.id}: snapshot from {start} to {end} after seqno {high_seqno}")
        if self._snapshot is not None:
            open_start, open_end = self._snapshot
            if start > open_end > high_seqno:
                raise CloseConnection(
                    f"vbucket {self.vbucket.id}: snapshot from {start} while the snapshot up to {open_end} ends at "
                    f"{high_seqno}"
                )
            start = min(start, open_start)
        self._advance(StreamEvent.MARKER)
        self.vbucket.history.adopt_purge_seqno(purge_seqno)
        self._versions.start_snapshot(marker.flags)
        self._snapshot = start, end
        self._needs_ack = bool(marker.flags & SnapshotFlag.ACK)

    def store_change(
        self, event: Event, key: bytes, value: Buffer, *, seqno: int, cas: int, rev_seqno: int, **fields: int
    ) -> bool:
        """Store a change of a document, or a system event.

        Args:
            event: a mutation, deletion or expiration.
            key: the store's key, which begins with the collection id.
            value: the value.
            seqno: the change's by_seqno.
            cas: the change's cas; 0 is replaced.
            rev_seqno: the change's rev_seqno.
            fields: further arguments of `IncomingChanges.apply`.

        Returns:
            Whether it completes a snapshot whose marker asks for an answer.

        Raises:
            OutOfRange: the seqno does not increase.
            CloseConnection: the seqno is not in the open snapshot.
            TemporaryFailure: the bucket accepts no changes for the moment; OutOfMemory likewise.
        """
        end = self._begin_change(seqno)
        with self._versions.counting(seqno):
            self.vbucket.incoming.apply(
                event,
                key,
                value,
                cas=cas or self.vbucket.changes.clock.last + 1,
                rev_seqno=rev_seqno,
                seqno=seqno,
                snapshot_end=end,
                hides=self._hides,
                **fields,
            )
        return self._end_change(seqno, end)

    def decide_prepare(self, key: bytes, prepared_seqno: int, *, seqno: int, commits: bool) -> bool:
        """Store the commit or the abort of a prepare.

        Args:
            key: the store's key.
            prepared_seqno: the seqno of the prepare; 0 in an abort of a prepare that was left out.
            seqno: the seqno of the commit or abort.
            commits: whether it is a commit.

        Returns:
            As `store_change`.

        Raises:
            KeyNotFound: a commit without its prepare. Other errors: as `store_change`.
        """
        end = self._begin_change(seqno)
        with self._versions.counting(seqno):
            self.vbucket.incoming.decide_prepare(
                key, prepared_seqno, seqno=seqno, snapshot_end=end, hides=self._hides, commits=commits
            )
        return self._end_change(seqno, end)

    def acknowledge(self, *, is_complete: bool = False) -> bytes:
        """Return the messages that are due after a change: the answer to a marker with ACK, acknowledged prepares.

        Args:
            is_complete: whether the change completes a snapshot whose marker asks for an answer.
        """
        marker = Frame(int(Magic.REQUEST), int(Opcode.DCP_SNAPSHOT_MARKER), opaque=self.opaque)
        reply = encode_reply(marker) if is_complete else b""
        history = self.vbucket.history
        if (
            not self._acknowledges
            or not history.prepares.is_used
            or history.whole_seqno < self.vbucket.changes.high_seqno
        ):
            return reply
        seqno = get_high_prepared_seqno(self.vbucket)
        if seqno <= self._acknowledged:
            return reply
        self._acknowledged = seqno
        acknowledged = SeqnoAcknowledged(vbucket=self.vbucket.id, opaque=self.opaque, prepared_seqno=seqno)
        return reply + acknowledged.encode()

    def store_run(self, run: FrameRun, max_cas: int) -> bool:
        """Store changes whose frames have the form of the log. They were checked, and lie in the open snapshot.

        Args:
            run: the changes. Their seqnos are above the high seqno.
            max_cas: the highest cas of the changes.

        Returns:
            Whether they complete a snapshot whose marker asks for an answer.

        Raises:
            TemporaryFailure: the bucket refuses a change; OutOfMemory likewise. The changes before it are stored.
        """
        changes, last = self.vbucket.changes, int(run.seqnos[-1])
        end = self._check_seqno(last)
        self._hides = self._hides or last != changes.high_seqno + run.change_count
        changes.clock.observe(max_cas)
        try:
            with self._versions.counting(int(run.seqnos[0])):
                self.vbucket.incoming.apply_run(run, snapshot_end=end, hides=self._hides)
        finally:
            self.changes += run.count_stored(changes.high_seqno)
            self._bucket.changed.add(self.vbucket.id)
        return self._complete() if last == end else False

    def advance_seqno(self, seqno: int) -> bool:
        """Record that the producer has no further change up to a seqno.

        Returns:
            Whether it completes a snapshot whose marker asks for an answer.

        Raises:
            CloseConnection: the seqno is not in the open snapshot.
        """
        if seqno != self._check_seqno(seqno):
            return False
        self.vbucket.history.end_snapshot(hides=True)
        self._bucket.changed.add(self.vbucket.id)
        return self._complete()

    def advance_cache(self, event: StreamEvent) -> None:
        """Record cached documents, or their end.

        Raises:
            CloseConnection: the consumer has requested no cache transfer, or changes have come already.
        """
        if not self.flags & StreamFlag.CACHE_TRANSFER:
            raise CloseConnection(f"vbucket {self.vbucket.id}: {event.value}, which this consumer has not requested")
        self._advance(event)

    def set_vbucket_state(self, state: VbucketState) -> None:
        """Set the state of the vbucket. A takeover continues the history of the producer.

        Inside a snapshot it cannot: an active vbucket then starts a branch at the end of the last complete snapshot.
        """
        self._advance(StreamEvent.STATE)
        history = self.vbucket.history
        if history.state is not state:
            self.vbucket.set_state(state, takeover=history.whole_seqno == self.vbucket.changes.high_seqno)
            self._report(VbucketEvent.STATE_CHANGED)

    def report(self) -> StreamReport:
        """Return the report of the stream."""
        return StreamReport(
            vbucket=self.vbucket.id,
            opaque=self.opaque,
            state="pending" if self.state is None else self.state.value,
            details={"items_received": self.changes, "last_received_seqno": self.vbucket.changes.high_seqno},
        )

    def _begin_change(self, seqno: int) -> int:
        """Return the end of the snapshot of a change. Raises OutOfRange if the seqno does not increase."""
        high_seqno = self.vbucket.changes.high_seqno
        if seqno <= high_seqno:
            text = f"vbucket {self.vbucket.id}: seqno {seqno}, expected one above {high_seqno}"
            if not self._has_refused:
                self._has_refused = True  # a faulty producer may repeat all of its changes
                logger.info("%s; later refusals of the stream are not logged", text)
            raise OutOfRange(text)
        end = self._check_seqno(seqno)
        self._hides = self._hides or seqno != high_seqno + 1
        return end

    def _end_change(self, seqno: int, end: int) -> bool:
        """Count a stored change.

        Returns:
            Whether it completes a snapshot whose marker asks for an answer.
        """
        self.changes += 1
        self._bucket.changed.add(self.vbucket.id)
        return self._complete() if seqno == end else False

    def _check_seqno(self, seqno: int) -> int:
        """Return the end of the open snapshot. Raises CloseConnection for a seqno outside."""
        self._advance(StreamEvent.DATA)
        start, end = self._snapshot or (0, 0)
        if not start <= seqno <= end:
            raise CloseConnection(f"vbucket {self.vbucket.id}: seqno {seqno} in the snapshot from {start} to {end}")
        return end

    def _complete(self) -> bool:
        self._snapshot = None
        self._hides = False
        needs_ack, self._needs_ack = self._needs_ack, False
        return needs_ack

    def _advance(self, event: StreamEvent) -> None:
        assert self.state is not None, "the stream was requested"
        try:
            self.state = advance_state(self.state, event, self.vbucket.id)
        except OrderViolation as error:
            raise CloseConnection(str(error)) from None

    def _report(self, event: VbucketEvent) -> None:
        """Notify the other listeners of the vbucket."""
        self._bucket.report_event(self.vbucket, event, cause=self._consumer)
        self._bucket.changed.add(self.vbucket.id)


class _ReceivedVersions:
    """Raises the history floor of a vbucket when the received changes hide versions.

    In a history, only collections without history leave seqnos out. The seqnos before the first change of a history
    from disk may still hide versions: those of the deduplicated part in front of it.
    """

    def __init__(self, changes: VbucketChanges) -> None:
        self._changes = changes
        self._is_history = False
        self._begins_history = False  # with the next change, which is from disk

    def start_snapshot(self, flags: int) -> None:
        """Begin a snapshot, or its second part. flags: the SnapshotFlag of its marker."""
        self._is_history = bool(flags & SnapshotFlag.HISTORY)
        self._begins_history = self._is_history and bool(flags & SnapshotFlag.DISK)

    @contextmanager
    def counting(self, seqno: int) -> Iterator[None]:
        """Raise the history floor with the changes that are stored in this context. seqno: that of the first one."""
        index = self._changes.index
        if self._begins_history and seqno > self._changes.high_seqno + 1:
            index.history_floor = seqno - 1
        self._begins_history = False
        index.has_all_versions = self._is_history
        try:
            yield
        finally:
            index.has_all_versions = False
