"""Processing of a feed's changes: checks their order, moves positions over them, and delivers them."""

from __future__ import annotations

import pyarrow as pa

from penstock.client.connect.dropped_frames import DropReason
from penstock.client.feeds.collection_selection import CollectionFilter
from penstock.client.feeds.consumer_feed import FeedState
from penstock.client.feeds.stream_order import (
    NONE_WANTED,
    RunPart,
    check_run_order,
    make_beyond_snapshot_error,
    make_foreign_vbucket_error,
    make_seqno_order_error,
)
from penstock.client.feeds.stream_requests import StreamRequests
from penstock.client.feeds.stream_set import StreamSet
from penstock.client.feeds.vbucket_stream import EndRule, VbucketStream
from penstock.errors import OrderViolation
from penstock.wire.codec.frame import OPAQUE_AT, U32
from penstock.wire.columns.heads import Run
from penstock.wire.columns.inflation import gather_plain_heads, inflate_run
from penstock.wire.columns.message_decoder import decode_messages
from penstock.wire.columns.run_decoder import SMALL_RUN, decode_columns
from penstock.wire.columns.schema import Change
from penstock.wire.protocol.stream_state import StreamEvent, advance_state


class StreamChanges:
    """Processes runs of changes, as columns or one by one."""

    def __init__(
        self,
        state: FeedState,
        streams: StreamSet,
        requests: StreamRequests,
        collection_filter: CollectionFilter | None,
        *,
        end_rule: EndRule,
    ) -> None:
        self._state = state
        self._streams = streams
        self._requests = requests
        self._filter = collection_filter
        self._exact_end = end_rule is EndRule.EXACT

    def receive_run(self, run: Run) -> None:
        """Process the changes of a run. Raises OrderViolation if the producer violates the order of a stream."""
        if len(run.offsets) < SMALL_RUN:
            self._receive_rows(run)
        else:
            self._receive_columns(run)

    def _receive_rows(self, run: Run) -> None:
        output, dropped = self._state.output, self._state.dropped
        output.arrived_bytes += run.end - int(run.offsets[0])
        run = inflate_run(run)
        changes = decode_messages(run, self._state.context)
        for place, (change, offset) in enumerate(zip(changes, run.offsets, strict=True)):
            (opaque,) = U32.unpack_from(run.buffer, offset + OPAQUE_AT)
            try:
                stream = self._find_open_stream(change.vbucket, opaque, 1)
                is_wanted = stream is not None and self.accept_change(stream, change.seqno or 0)
            except OrderViolation:
                dropped.add(DropReason.AFTER_VIOLATION, len(changes) - place)
                raise
            if stream is not None and is_wanted:
                self.deliver_change(stream, change)

    def _receive_columns(self, run: Run) -> None:
        output, context = self._state.output, self._state.context
        output.flush()  # first: else rows of earlier runs would be delivered with the positions after this run
        output.arrived_bytes += run.end - int(run.offsets[0])
        run, heads = gather_plain_heads(run, prefixed=context.collections is not None)
        batch = decode_columns(run, heads, context)
        keep, violation = check_run_order(heads, self._accept_part, self._state.dropped)
        if keep is not None:
            batch = batch.filter(pa.array(keep))
        if self._filter and self._filter.wide_vbuckets and batch.num_rows:
            rows, batch = batch.num_rows, self._filter.select_rows(batch)
            self._state.dropped.add(DropReason.OTHER_COLLECTION, rows - batch.num_rows)
        if batch.num_rows:
            output.deliver(batch)
        if violation is not None:
            raise violation

    def _accept_part(self, part: RunPart) -> tuple[int, int]:
        """Move a vbucket's position over consecutive changes.

        Returns:
            The first and the last seqno to deliver; NONE_WANTED if the stream was given up, closed or ended.
        """
        stream = self._find_open_stream(part.vbucket, part.opaque, part.end_row - part.start_row)
        return NONE_WANTED if stream is None else self.accept_seqnos(stream, part.first_seqno, part.last_seqno)

    def deliver_change(self, stream: VbucketStream, change: Change) -> None:
        """Deliver an accepted change of a document or a collection, if a wide stream's change is selected."""
        is_wide = bool(stream.requested.missing)
        if is_wide and self._filter and not self._filter.is_selected(change.scope, change.collection):
            self._state.dropped.add(DropReason.OTHER_COLLECTION)
        else:
            self._state.output.rows.append(change)

    def accept_change(self, stream: VbucketStream, seqno: int) -> bool:
        """Move the position of an open stream over a change. Raises the errors of `accept_seqnos`.

        Returns:
            Whether to deliver the change. If not, it was counted as dropped.
        """
        first, last = self.accept_seqnos(stream, seqno, seqno)
        if first <= seqno <= last:
            return True
        self._state.dropped.add(DropReason.RECEIVED_BEFORE if seqno < first else DropReason.AFTER_END)
        return False

    def _find_open_stream(self, vbucket: int, opaque: int, changes: int) -> VbucketStream | None:
        """Return the open stream of some changes. Raises OrderViolation if the changes cannot belong to it.

        Args:
            vbucket: the vbucket in the changes.
            opaque: the opaque in the changes.
            changes: the number of changes.

        Returns:
            The stream; None if it is not open. The changes were then counted as dropped.
        """
        state = self._state
        stream = self._requests.find_stream(opaque)
        if stream is None:
            state.opaques[state.output.connection_id].check(opaque, vbucket, "change", changes)
            return None
        if stream.vbucket != vbucket:
            raise make_foreign_vbucket_error(vbucket, stream.vbucket, "change")
        stream.state = advance_state(stream.state, StreamEvent.DATA, vbucket, state.dialect)
        return stream

    def accept_seqnos(self, stream: VbucketStream, least: int, most: int) -> tuple[int, int]:
        """Move the position of an open stream over the seqnos of changes. In a snapshot out of order it does not move.

        Raises OrderViolation if a seqno is not above the position, or is above the end of the snapshot.

        Args:
            stream: the stream.
            least: the seqno of the first change.
            most: the seqno of the last change.

        Returns:
            The first and the last seqno to deliver.
        """
        vbucket = stream.vbucket
        if stream.unordered_seqno is not None:
            stream.unordered_seqno = max(stream.unordered_seqno, most)
            self._state.recovering.discard(vbucket)
            return (least, most)
        if least <= stream.position.seqno:
            raise make_seqno_order_error(vbucket, least, stream.position.seqno)
        if most > stream.snap_end:
            raise make_beyond_snapshot_error(vbucket, most, stream.snap_end)
        last = min(most, stream.end_seqno) if self._exact_end else most
        if last > stream.position.seqno:
            self._streams.advance(stream, last)
        if most > stream.recovering_until:
            self._state.recovering.discard(vbucket)
        if self._exact_end and most >= stream.end_seqno and stream.snap_end > stream.end_seqno:
            self._requests.close(stream)
            self._streams.finish_when_confirmed(stream)
        return (max(least, stream.received + 1), last)
