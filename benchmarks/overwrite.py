"""The cost of uniform overwrites of a bucket in memory, in the store: CPU of a change, bytes copied, and memory.

There is no node and no thread: compaction runs between the changes. Memory is the growth of the anonymous pages of this
process since the bucket was empty.
"""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

from benchmarks.report import Report, make_parser
from penstock.store.bucket_store import BucketStore

_VBUCKETS = 1024
_VALUE_BYTES = 1000
_BETWEEN_COMPACTIONS = 2000  # changes


def read_own_memory() -> int:
    """Return the anonymous pages of this process in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


class OverwrittenBucket:
    """A bucket that is compacted while it is overwritten.

    Attributes:
        bucket: the bucket.
        peak: the largest measured memory, in bytes.
        copied: live bytes that were copied by rewriting clustered segments.
        compaction_seconds: CPU time of compaction.
    """

    def __init__(self, documents: int) -> None:
        chance = random.Random(1)
        self._value = chance.randbytes(_VALUE_BYTES)
        self._keys = [b"\0key-%09d" % number for number in range(documents)]
        self._empty = read_own_memory()
        self.bucket = BucketStore(
            "b", vbuckets=_VBUCKETS, clock=time.time_ns, new_vbuuid=lambda: chance.getrandbits(60) + 1
        )
        self.bucket.log.room.compact = lambda: None  # `compact` runs it between changes, and measures it
        self.peak = 0
        self.copied = 0
        self.compaction_seconds = 0.0
        self.write(range(documents))
        self.peak, self.copied, self.compaction_seconds = 0, 0, 0.0

    def write(self, numbers: range | list[int]) -> None:
        vbuckets, keys, value = self.bucket.vbuckets, self._keys, self._value
        for done, number in enumerate(numbers):
            vbuckets[number % _VBUCKETS].set(keys[number], value)
            if done % _BETWEEN_COMPACTIONS == 0:
                self.compact()

    def compact(self) -> None:
        began = time.process_time()
        while (piece := self.bucket.compactor.next_piece()) is not None:
            is_rewriting = piece.sources[0].is_clustered
            held = sum(source.size for source in piece.sources)
            dead = sum(source.dead_bytes for source in piece.sources)
            piece.run()
            self.peak = max(self.peak, self.memory)
            piece.finish()
            self.copied += held - dead if is_rewriting else 0
        self.compaction_seconds += time.process_time() - began
        self.peak = max(self.peak, self.memory)

    @property
    def memory(self) -> int:
        return read_own_memory() - self._empty

    @property
    def live(self) -> int:
        """Bytes of live frames, and of their rows and keys."""
        segments = self.bucket.log.segments
        rows = sum(vbucket.changes.keys.nbytes for vbucket in self.bucket.vbuckets)
        return segments.frame_bytes - segments.dead_bytes + segments.index_bytes + rows


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser("What do uniform overwrites of a bucket in memory cost the store?")
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=3, help="changes of each document, on average")
    chosen = parser.parse_args(arguments)
    report = Report("What do uniform overwrites of a bucket in memory cost the store?", chosen)
    chance = random.Random(2)
    order = [chance.randrange(chosen.documents) for _ in range(chosen.documents * chosen.turns)]
    run = OverwrittenBucket(chosen.documents)
    began = time.process_time()
    run.write(order)
    seconds = time.process_time() - began
    each = 1e6 / len(order)
    report.add_row(
        "CPU of a change", f"{seconds * each:.1f} us, {run.compaction_seconds * each:.1f} us of it compaction"
    )
    report.add_row("copied", f"{run.copied / 1e6:.0f} MB, for {len(order) * _VALUE_BYTES / 1e6:.0f} MB of new values")
    report.add_row(
        "memory, times keys, rows and live frames",
        f"{run.memory / run.live:.2f} at the end, {max(run.peak, run.memory) / run.live:.2f} at most",
    )
    report.finish()


if __name__ == "__main__":
    main()
