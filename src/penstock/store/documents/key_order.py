"""A collection of one vbucket in the order of its keys, for streams that accept changes out of order."""

from __future__ import annotations

from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.event_frames import SYSTEM_PREFIX
from penstock.store.history.frame_chunks import Chunk, FewFrames
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.values.collection_key import pack_collection_id

MOST_KEYS = 10_000
"""Keys of a vbucket that are sorted: this takes about 20 ms, in which the node serves no other request."""

_ANY_NUMBER = 2**62


class KeyOrderSnapshot:
    """The newest change of each key of a collection, tombstones included, at the moment at which this is made.

    System events of all collections come first, in the order of their seqnos.

    Attributes:
        start_seqno: 0.
        end_seqno: the seqno of the newest change of the vbucket.
        flags: the SnapshotFlag bits of a backfill.
    """

    start_seqno = 0
    flags = SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT

    def __init__(self, frames: FewFrames, end_seqno: int) -> None:
        self.end_seqno = end_seqno
        self._frames = frames

    @property
    def remaining(self) -> int:
        """Number of frames that are left."""
        return self._frames.remaining

    def read(self, opaque: int, max_bytes: int, window: int) -> Chunk:
        """Return the next frames, as Snapshot.read does.

        Args:
            opaque: the stream's opaque.
            max_bytes: the greatest length of the chunk, unless one frame is longer.
            window: bytes that the consumer accepts, at least 1.
        """
        return self._frames.read(opaque, max_bytes, window, _ANY_NUMBER)


def open_key_order(vbucket: Vbucket, collection_id: int) -> KeyOrderSnapshot | None:
    """Return a collection in the order of its keys; None if it has too many, or a snapshot is incomplete."""
    changes = vbucket.changes
    if changes.items > MOST_KEYS or vbucket.history.whole_seqno < changes.high_seqno:
        return None
    prefix, newest = pack_collection_id(collection_id), changes.keys.load_all()
    keys = [key for key in newest if key.startswith(prefix)]
    if len(keys) > MOST_KEYS:
        return None
    events = sorted(newest[key] for key in newest if key.startswith(SYSTEM_PREFIX))
    frames = []
    for seqno in (*events, *(newest[key] for key in sorted(keys))):
        found = changes.index.find(seqno)
        if found is not None:  # else a purged tombstone
            rows, row = found
            frames.append((rows.buffer, rows.offsets_at[row], rows.lengths_at[row]))
    return KeyOrderSnapshot(FewFrames(frames), changes.high_seqno)
