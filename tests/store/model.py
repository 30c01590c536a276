"""A bucket's history as plain lists, to hold the real one against; and buckets whose time and ids are made up."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from penstock.store.bucket import Bucket
from penstock.store.frames import Chunk
from penstock.store.snapshot import Snapshot
from penstock.wire.dcp import Deletion, Mutation
from penstock.wire.frame import cut_frame, frame_length
from penstock.wire.layout import decode

START = 1_700_000_000 * 10**9  # ns


def new_bucket(*, vbuckets: int = 4, segment_bytes: int = 512, times: Iterator[int] | None = None) -> Bucket:
    """Return a bucket with tiny segments, whose clock stands still unless told, and whose vbuuids count from 1."""
    vbuuids = count(1)
    return Bucket(
        "b",
        vbuckets=vbuckets,
        clock=lambda: START if times is None else next(times),
        new_vbuuid=lambda: next(vbuuids),
        segment_bytes=segment_bytes,
    )


def changes(data: bytes | bytearray) -> list[Mutation | Deletion]:
    """Return the messages in whole frames."""
    found, at = [], 0
    while at < len(data):
        length = frame_length(data, at)
        message = decode(cut_frame(memoryview(data)[: at + length], at))
        assert isinstance(message, Mutation | Deletion)
        found.append(message)
        at += length
    return found


def read_all(snapshot: Snapshot, opaque: int = 0, max_bytes: int = 1 << 20) -> list[Mutation | Deletion]:
    """Return what is left of a snapshot, read in chunks of at most max_bytes."""
    found = []
    while (chunk := snapshot.read(opaque, max_bytes)).frames:
        found += messages(chunk)
    assert snapshot.remaining == 0
    return found


def messages(chunk: Chunk) -> list[Mutation | Deletion]:
    found = changes(chunk.data)
    assert len(found) == chunk.frames
    return found


@dataclass
class History:
    """One vbucket's changes, all of them, as the messages that they ought to be."""

    vbucket: int
    changes: list[Mutation | Deletion] = field(default_factory=list)

    @property
    def documents(self) -> dict[bytes, Mutation]:
        newest = {change.key: change for change in self.changes}
        return {key: change for key, change in newest.items() if isinstance(change, Mutation)}

    def rev_seqno(self, key: bytes) -> int:
        return sum(change.key == key for change in self.changes) + 1

    def store(self, key: bytes, value: bytes, cas: int) -> None:
        self.changes.append(
            Mutation(
                vbucket=self.vbucket,
                key=key,
                value=value,
                cas=cas,
                by_seqno=len(self.changes) + 1,
                rev_seqno=self.rev_seqno(key),
            )
        )

    def delete(self, key: bytes, cas: int) -> None:
        self.changes.append(
            Deletion(
                vbucket=self.vbucket,
                key=key,
                cas=cas,
                by_seqno=len(self.changes) + 1,
                rev_seqno=self.rev_seqno(key),
            )
        )

    def view(self, start: int, end: int) -> list[Mutation | Deletion]:
        """Return the deduplicated snapshot of (start, end]."""
        newest = {change.key: change for change in self.changes[:end]}
        return [change for change in self.changes[start:end] if newest[change.key] is change]

    def superseded_by(self, seqno: int) -> int:
        """Return the seqno of the next change of the same key, 0 if there is none."""
        key = self.changes[seqno - 1].key
        return next((change.by_seqno for change in self.changes[seqno:] if change.key == key), 0)
