"""One vbucket of a TAP connection: its position, and its next changes and notices."""

from __future__ import annotations

from struct import Struct
from typing import Protocol

from penstock.node.buckets.endpoint_reports import StreamReport
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.tap.tap_request import TapRequest
from penstock.node.tap_state.tap_checkpoints import TapCheckpoints
from penstock.node.tap_state.tap_clients import TapPhase, TapPosition
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.frame_chunks import NO_FRAMES, Chunk
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.history.rollback import has_unsent_tombstones
from penstock.wire.codec.constants import TapOpaque
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.columns.frame_form import FrameForm
from penstock.wire.messages.tap import TapCheckpointEnd, TapCheckpointStart, TapMessage, TapOpaqueMessage

_U32, _U64 = Struct(">I"), Struct(">Q")
_BY_SEQNO = Struct(f">{HEADER_BYTES}xQ").unpack_from


def make_opaque_message(command: TapOpaque, vbucket: int = 0) -> TapOpaqueMessage:
    """Return a TAP_OPAQUE message with a command."""
    return TapOpaqueMessage(vbucket=vbucket, engine_private=_U32.pack(command))


class TapStreamOwner(Protocol):
    """The connection of a stream."""

    @property
    def bucket(self) -> ServedBucket:
        """The streamed bucket."""

    @property
    def request(self) -> TapRequest:
        """The options of TAP_CONNECT."""

    @property
    def form(self) -> FrameForm:
        """The form of changes."""

    def wake(self, stream: TapStream) -> None:
        """Add a stream to the next turn, since it has something to send."""


class TapStream:
    """One vbucket of a TAP connection.

    Attributes:
        owner: the connection.
        vbucket: the vbucket.
        position: the position of the last change that was sent.
        acked_position: the position that the consumer has acknowledged.
        end_seqno: the last seqno of the backfill.
        items_sent: number of changes that were sent.
        bytes_sent: bytes that were sent.
    """

    def __init__(self, owner: TapStreamOwner, vbucket: Vbucket, position: TapPosition) -> None:
        self.owner = owner
        self.vbucket = vbucket
        self.position = self.acked_position = position
        self.end_seqno = vbucket.changes.high_seqno
        self.items_sent = 0
        self.bytes_sent = 0
        self._snapshot: Snapshot | None = None
        self._purge_seqno = vbucket.index.purge_seqno  # tombstones purged up to here are no loss to the consumer
        self._announced_checkpoint = 0  # last open checkpoint that was announced, with closed_only

    def wake(self) -> None:
        """Add the stream to the next turn."""
        self.owner.wake(self)

    @property
    def checkpoints(self) -> TapCheckpoints:
        """The checkpoints of the vbucket."""
        return self.owner.bucket.tap.get_checkpoints(self.vbucket)

    @property
    def must_restart(self) -> bool:
        """Whether the consumer has to start from zero.

        That is so if the vbucket has left the consumer's history, or has purged tombstones that the consumer needs.
        """
        place, purge_seqno = self.position, self.vbucket.index.purge_seqno
        if place.vbuuid == self.vbucket.history.vbuuid:
            return self._snapshot is None and has_unsent_tombstones(purge_seqno, self._purge_seqno, place.seqno)
        if not place.is_on_history(self.vbucket):
            return True
        self.position = place._replace(vbuuid=self.vbucket.history.vbuuid)
        self._purge_seqno = purge_seqno
        return False

    @property
    def limit(self) -> int:
        """The last seqno that may be sent now."""
        place = self.position
        if place.phase is TapPhase.BACKFILL:
            return self.end_seqno
        if self._follows_checkpoints:
            end = self.checkpoints.find_end(place.checkpoint) if place.is_inside else place.seqno
            if end is not None:
                return end
        return self.vbucket.history.whole_seqno

    @property
    def remaining(self) -> int:
        """Number of changes that are left to send, at most."""
        return max(self.limit - self.position.seqno, 0)

    @property
    def _follows_checkpoints(self) -> bool:
        request = self.owner.request
        return bool((request.closed_only or request.checkpoints) and self.checkpoints.open_id)

    def restart(self, position: TapPosition) -> None:
        """Continue at another position."""
        self.position = position
        self.end_seqno = self.vbucket.changes.high_seqno
        self._snapshot = None
        self._purge_seqno = self.vbucket.index.purge_seqno

    def read_changes(self, max_bytes: int, max_frames: int) -> Chunk:
        """Return the next changes.

        Args:
            max_bytes: most bytes. A single change may exceed it.
            max_frames: most changes.
        """
        if self._snapshot is None:
            snapshot = self.vbucket.history.open_snapshot(self.position.seqno, self.limit)
            if snapshot.end_seqno == snapshot.start_seqno:
                return NO_FRAMES
            self._snapshot = snapshot
            self._purge_seqno = self.vbucket.index.purge_seqno
            self.position = self.position._replace(snap_end=snapshot.end_seqno)
        chunk = self._snapshot.read(0, max_bytes, max_frames=max_frames)
        if not chunk.frame_count:
            self._snapshot = None
            return chunk
        (seqno,) = _BY_SEQNO(chunk.data, int(chunk.offsets[-1]))
        if seqno >= self._snapshot.end_seqno:
            self._snapshot = None
        self.position = self.position._replace(seqno=seqno)
        self.items_sent += chunk.frame_count
        return chunk

    def read_change(self, seqno: int) -> Chunk:
        """Return a change that was sent before, or no frames if a later sent change has its key."""
        chunk = self.vbucket.history.open_snapshot(seqno - 1, max(self.position.seqno, seqno)).read(0, 1)
        return chunk if chunk.frame_count and _BY_SEQNO(chunk.data, 0) == (seqno,) else NO_FRAMES

    def has_purged(self, seqno: int) -> bool:
        """Return whether a change was purged, so that the consumer may lack a tombstone."""
        return seqno <= self.vbucket.index.purge_seqno and self.vbucket.index.find(seqno) is None

    def take_notice(self) -> TapMessage | None:
        """Return the notice that precedes the next change, None if there is none. It counts as sent."""
        if self.position.phase is not TapPhase.LIVE or not self._follows_checkpoints:
            return None
        place, checkpoints = self.position, self.checkpoints
        while True:
            if place.is_inside:
                end = checkpoints.find_end(place.checkpoint)
                if end is None or place.seqno < end:
                    return None
                place = self.position = place._replace(is_inside=False)
                if message := self._make_checkpoint_notice(TapCheckpointEnd, "checkpoint_end"):
                    return message
            following = checkpoints.find_following(place.seqno, place.checkpoint)
            if self.owner.request.closed_only and following == checkpoints.open_id:
                if self._announced_checkpoint == following:
                    return None
                self._announced_checkpoint = following
                return make_opaque_message(TapOpaque.OPEN_CHECKPOINT, self.vbucket.id)
            place = self.position = place._replace(checkpoint=following, is_inside=True)
            if message := self._make_checkpoint_notice(
                TapCheckpointStart, "checkpoint_start", engine_private=bytes(_U64.size)
            ):
                return message

    def _make_checkpoint_notice(
        self, cls: type[TapCheckpointStart], key: str, engine_private: bytes = b""
    ) -> TapMessage | None:
        if not self.owner.request.checkpoints:
            return None
        return cls(
            vbucket=self.vbucket.id,
            flags=0,
            expiry=0,
            key=key.encode(),
            value=_U64.pack(self.position.checkpoint),
            engine_private=engine_private,
        )

    def report(self) -> StreamReport:
        """Return the report of the stream."""
        return StreamReport(
            vbucket=self.vbucket.id,
            opaque=0,
            state=self.position.phase.value,
            start_seqno=None,
            end_seqno=None,
            items_sent=self.items_sent,
            bytes_sent=self.bytes_sent,
            items_remaining=self.remaining,
            backfill_remaining=0 if self.position.phase is TapPhase.LIVE else self.remaining,
            filters=("values",) if self.owner.form.keys_only else (),
            details={"last_sent_seqno": self.position.seqno, "open_checkpoint_id": self.position.checkpoint},
        )
