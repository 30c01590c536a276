"""The settings of a bucket, with their defaults and limits."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.options import number, one_of, option, whole_number

MAX_TTL = 2**31 - 1
"""The largest time to live of documents, in seconds."""

_LARGEST_SEGMENT = 1024 * 1024 * 1024  # its offsets, and twice them, fit into Arrow's 31 bits
_MODES = ("seqno", "lww")  # the names that Couchbase's REST API has for them


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """The settings of a bucket. A bucket in memory ignores those about files.

    Attributes:
        segment_bytes: the largest size of a log file, from 1 byte to 1 GiB.
        commit_seconds: the longest time that a change waits for a common sync with others, in seconds.
        commit_count: the number of waiting changes that are synced without waiting longer, at least 1.
        purge_age: the age in seconds at which tombstones may be dropped.
        retention_seconds: superseded frames stay for so many seconds; None: no limit. 0: no limit either, if there is
            one in bytes; otherwise they do not stay.
        retention_bytes: superseded frames stay until so many bytes of the log have followed; None or 0: no limit. A
            frame stays only while both limits allow it.
        conflict_resolution: `seqno` (the version with more changes wins) or `lww` (the last write wins).
        memory_bytes: the memory quota in bytes; None: no quota.
        max_ttl: the longest time to live of documents in seconds, where their collection has no limit of its own; 0: no
            limit.
        auto_delete: while memory is short, the documents whose last change is oldest are deleted.
    """

    segment_bytes: int = 64 * 1024 * 1024
    commit_seconds: float = option(
        number(0, metavar="N", scale=0.001),
        "milliseconds that a change waits for a common sync with others",
        default=0.005,
        flag="--commit-ms",
    )
    commit_count: int = option(whole_number(1), "number of changes that are synced without waiting", default=1000)
    purge_age: float = option(number(0), "age in seconds at which deletions are purged", default=3 * 24 * 60 * 60.0)
    retention_seconds: float | None = option(
        number(0),
        "seconds for which older versions stay in the history",
        default=0.0,
        shown="0, not at all",
        flag="--retention",
    )
    retention_bytes: int | None = option(
        whole_number(0),
        "older versions leave the history early when so many bytes of the log have followed",
        default=None,
        shown="no limit",
    )
    conflict_resolution: str = option(
        one_of(*_MODES),
        "version that wins a conflict: the one with more changes (seqno) or the last write (lww)",
        default="seqno",
    )
    memory_bytes: int | None = option(
        whole_number(1, metavar="BYTES"),
        "memory of each bucket above which it refuses changes",
        default=None,
        shown="no limit",
        flag="--memory",
    )
    max_ttl: int = 0
    auto_delete: bool = False

    @property
    def keeps_history(self) -> bool:
        """Whether superseded frames stay for some time. Source: kv_engine, KVBucket::isHistoryRetentionEnabled."""
        return self.retention_seconds != 0 or bool(self.retention_bytes)

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
