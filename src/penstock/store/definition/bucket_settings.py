"""What a bucket can be told to do differently."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.options import number, one_of, option, whole_number

__all__ = ["MAX_TTL", "BucketSettings"]

MAX_TTL = 2**31 - 1
"""The longest time to live of documents, in seconds."""

_LARGEST_SEGMENT = 1024 * 1024 * 1024  # its offsets, and twice them, fit into Arrow's 31 bits
_MODES = ("seqno", "lww")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """The settings of a bucket; in memory those about files do not matter.

    Attributes:
        segment_bytes: the greatest size of a file of the log, 1 byte to 1 GiB.
        retention_seconds, retention_bytes: superseded frames stay while both allow it; None: no limit of that kind.
        max_ttl: seconds that documents live at most, where their collection does not say; 0: any time.
        auto_delete: while memory is short, the documents that were changed longest ago are deleted.
    """

    segment_bytes: int = 64 * 1024 * 1024
    commit_seconds: float = option(
        number(0, metavar="N", scale=0.001),
        "milliseconds that a change waits for others to be synced with",
        default=0.005,
        flag="--commit-ms",
    )
    commit_count: int = option(whole_number(1), "so many changes are synced without waiting", default=1000)
    purge_age: float = option(number(0), "deletions are forgotten when they are older", default=3 * 24 * 60 * 60.0)
    retention_seconds: float | None = option(
        number(0),
        "older versions stay so long in the history",
        default=0.0,
        shown="0, not at all",
        flag="--retention",
    )
    retention_bytes: int | None = option(
        whole_number(0), "but for those that so much of the log has followed", default=None, shown="no limit"
    )
    conflict_resolution: str = option(
        one_of(*_MODES),
        "which version wins, here or from elsewhere: the one changed most often, or last (lww)",
        default="seqno",
    )
    memory_bytes: int | None = option(
        whole_number(1, metavar="BYTES"),
        "what each bucket may take up in memory before it refuses changes",
        default=None,
        shown="no limit",
        flag="--memory",
    )
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
