"""What a bucket can be told to do differently."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.store.definition.manifest import MAX_TTL

__all__ = ["Settings"]

_LARGEST_SEGMENT = 1024 * 1024 * 1024  # its offsets, and twice them, fit into Arrow's 31 bits
_MODES = ("seqno", "lww")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of a bucket; in memory those about files do not matter.

    segment_bytes: of a file of the log, at most, 1 byte to 1 GiB. commit_seconds, commit_count: changes are written and
    synced together once the oldest has waited so long, or so many have gathered. purge_age: seconds that a tombstone
    stays. retention_seconds, retention_bytes: frames that were superseded stay while that was less than so many
    seconds ago, and the log since then has at most so many bytes; None: no limit of that kind. conflict_resolution:
    `seqno` or `lww` (last write wins), for changes that come with their meta data. memory_bytes: what the bucket may
    occupy in memory, None for any. max_ttl: seconds that documents live at most, where their collection does not say;
    0: any time. auto_delete: while memory is short, the documents that were changed longest ago are deleted.
    """

    segment_bytes: int = 64 * 1024 * 1024
    commit_seconds: float = 0.005
    commit_count: int = 1000
    purge_age: float = 3 * 24 * 60 * 60.0
    retention_seconds: float | None = 0.0
    retention_bytes: int | None = None
    conflict_resolution: str = "seqno"
    memory_bytes: int | None = None
    max_ttl: int = 0
    auto_delete: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes <= _LARGEST_SEGMENT:
            raise UsageError(f"segments of {self.segment_bytes} bytes: expected 1 to {_LARGEST_SEGMENT}")
        if self.commit_count < 1:
            raise UsageError(f"a commit of {self.commit_count} changes: expected at least 1")
        for name in ("commit_seconds", "purge_age", "retention_seconds", "retention_bytes", "memory_bytes"):
            number = getattr(self, name)
            if number is not None and not number >= 0:
                raise UsageError(f"{name} {number}: expected 0 or more")
        if not 0 <= self.max_ttl <= MAX_TTL:
            raise UsageError(f"a max_ttl of {self.max_ttl} seconds: expected 0 to {MAX_TTL}")
        if self.conflict_resolution not in _MODES:
            raise UsageError(f"conflict resolution {self.conflict_resolution!r}: expected {' or '.join(_MODES)}")
