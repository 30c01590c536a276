"""What a TAP connection has of one vbucket: how far it is, and which changes and remarks come next."""

from __future__ import annotations

from struct import Struct
from typing import Protocol

from penstock.node.buckets.producer_reports import StreamReport
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.tap.tap_request import TapRequest
from penstock.node.tap_state.tap_checkpoints import Checkpoints
from penstock.node.tap_state.tap_clients import Phase, TapPosition
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.frame_chunks import NO_FRAMES, Chunk
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.history.rollback import misses_purged
from penstock.wire.codec.constants import TapOpaque
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.columns.frame_form import FrameForm
from penstock.wire.messages.tap import TapCheckpointEnd, TapCheckpointStart, TapMessage, TapOpaqueMessage

__all__ = ["TapStream", "opaque_message"]

_U32, _U64 = Struct(">I"), Struct(">Q")
_BY_SEQNO = Struct(f">{HEADER_BYTES}xQ").unpack_from


def opaque_message(command: TapOpaque, vbucket: int = 0) -> TapOpaqueMessage:
    return TapOpaqueMessage(vbucket=vbucket, engine_private=_U32.pack(command))


class TapStreamOwner(Protocol):
    """What a stream knows of its connection."""

    @property
    def bucket(self) -> ServedBucket: ...
    @property
    def request(self) -> TapRequest: ...
    @property
    def form(self) -> FrameForm: ...

    def wake(self, stream: TapStream) -> None:
        """Take a stream into the next turn: it has something to send."""


class TapStream:
    """What a TAP connection sends of one vbucket.

    Attributes:
        place: how far the vbucket was sent.
        acked: how far the consumer has it.
        end_seqno: where the backfill ends.
    """

    def __init__(self, owner: TapStreamOwner, vbucket: Vbucket, place: TapPosition) -> None:
        self.owner = owner
        self.vbucket = vbucket
        self.place = self.acked = place
        self.end_seqno = vbucket.changes.high_seqno
        self.items_sent = 0
        self.bytes_sent = 0
        self._snapshot: Snapshot | None = None
        self._purge_seqno = vbucket.index.purge_seqno  # up to here, the consumer needs no tombstone that is gone
        self._told_open = 0  # the open checkpoint that it has come to, where only closed ones are wanted

    def wake(self) -> None:
        self.owner.wake(self)

    @property
    def checkpoints(self) -> Checkpoints:
        return self.owner.bucket.tap.checkpoints(self.vbucket)

    @property
    def is_lost(self) -> bool:
        """Is the consumer on a history that the vbucket has left, or would it miss tombstones that are gone?

        If so, it has to begin anew.
        """
        place, purge_seqno = self.place, self.vbucket.index.purge_seqno
        if place.vbuuid == self.vbucket.history.vbuuid:
            return self._snapshot is None and misses_purged(purge_seqno, self._purge_seqno, place.seqno)
        if not place.is_on_history(self.vbucket):
            return True
        self.place = place._replace(vbuuid=self.vbucket.history.vbuuid)
        self._purge_seqno = purge_seqno
        return False

    @property
    def limit(self) -> int:
        """The last seqno that may be sent now."""
        place = self.place
        if place.phase is Phase.BACKFILL:
            return self.end_seqno
        if self._follows_checkpoints:
            end = self.checkpoints.end_of(place.checkpoint) if place.inside else place.seqno
            if end is not None:
                return end
        return self.vbucket.history.whole_seqno

    @property
    def remaining(self) -> int:
        """How many changes are left to send, at most."""
        return max(self.limit - self.place.seqno, 0)

    @property
    def _follows_checkpoints(self) -> bool:
        request = self.owner.request
        return bool((request.closed_only or request.checkpoints) and self.checkpoints.open_id)

    def restart(self, place: TapPosition) -> None:
        """Go on from another place."""
        self.place = place
        self.end_seqno = self.vbucket.changes.high_seqno
        self._snapshot = None
        self._purge_seqno = self.vbucket.index.purge_seqno

    def pull(self, max_bytes: int, max_frames: int) -> Chunk:
        """Return the next changes: at most max_bytes and max_frames of them, but one if there is any."""
        if self._snapshot is None:
            snapshot = self.vbucket.history.snapshot(self.place.seqno, self.limit)
            if snapshot.end_seqno == snapshot.start_seqno:
                return NO_FRAMES
            self._snapshot = snapshot
            self._purge_seqno = self.vbucket.index.purge_seqno
            self.place = self.place._replace(snap_end=snapshot.end_seqno)
        chunk = self._snapshot.read(0, max_bytes, max_frames=max_frames)
        if not chunk.frames:
            self._snapshot = None
            return chunk
        (seqno,) = _BY_SEQNO(chunk.data, int(chunk.begins[-1]))
        if seqno >= self._snapshot.end_seqno:
            self._snapshot = None
        self.place = self.place._replace(seqno=seqno)
        self.items_sent += chunk.frames
        return chunk

    def one(self, seqno: int) -> Chunk:
        """Return the change with this seqno, which was sent before, unless a newer one of its key was as well."""
        chunk = self.vbucket.history.snapshot(seqno - 1, max(self.place.seqno, seqno)).read(0, 1)
        return chunk if chunk.frames and _BY_SEQNO(chunk.data, 0) == (seqno,) else NO_FRAMES

    def has_lost(self, seqno: int) -> bool:
        """Tell whether the change with this seqno is gone, and may have been a tombstone that the consumer needs."""
        return seqno <= self.vbucket.index.purge_seqno and self.vbucket.index.find(seqno) is None

    def announce(self) -> TapMessage | None:
        """Return what has to be said before the next change, and take it as said."""
        if self.place.phase is not Phase.LIVE or not self._follows_checkpoints:
            return None
        place, checkpoints = self.place, self.checkpoints
        while True:
            if place.inside:
                end = checkpoints.end_of(place.checkpoint)
                if end is None or place.seqno < end:
                    return None
                place = self.place = place._replace(inside=False)
                if message := self._checkpoint(TapCheckpointEnd, "checkpoint_end"):
                    return message
            following = checkpoints.after(place.seqno, place.checkpoint)
            if self.owner.request.closed_only and following == checkpoints.open_id:
                if self._told_open == following:
                    return None
                self._told_open = following
                return opaque_message(TapOpaque.OPEN_CHECKPOINT, self.vbucket.id)
            place = self.place = place._replace(checkpoint=following, inside=True)
            if message := self._checkpoint(TapCheckpointStart, "checkpoint_start", engine_private=bytes(_U64.size)):
                return message

    def _checkpoint(self, cls: type[TapCheckpointStart], key: str, engine_private: bytes = b"") -> TapMessage | None:
        if not self.owner.request.checkpoints:
            return None
        return cls(
            vbucket=self.vbucket.id,
            flags=0,
            expiry=0,
            key=key.encode(),
            value=_U64.pack(self.place.checkpoint),
            engine_private=engine_private,
        )

    def report(self) -> StreamReport:
        return StreamReport(
            vbucket=self.vbucket.id,
            opaque=0,
            state=self.place.phase.value,
            start_seqno=None,
            end_seqno=None,
            items_sent=self.items_sent,
            bytes_sent=self.bytes_sent,
            items_remaining=self.remaining,
            filters=("values",) if self.owner.form.keys_only else (),
            details={"last_sent_seqno": self.place.seqno, "open_checkpoint_id": self.place.checkpoint},
        )
