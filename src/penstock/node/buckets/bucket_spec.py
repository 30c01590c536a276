"""What a bucket is to be like: its definition, as it is asked for, kept and shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from penstock.errors import UsageError
from penstock.store.definition.bucket_settings import MAX_TTL, Settings

__all__ = ["EVICTION", "KINDS", "MAX_REPLICAS", "BucketSpec", "check_name"]

KINDS = ("couchbase", "ephemeral", "memcached")
MAX_REPLICAS = 3
_BACKENDS = ("couchstore", "magma")
EVICTION = {
    "couchbase": ("valueOnly", "fullEviction"),
    "ephemeral": ("noEviction", "nruEviction"),
    "memcached": ("noEviction", "nruEviction", "valueOnly", "fullEviction"),
}
"""Eviction policies by the type of a bucket. With nruEviction old documents are deleted while memory is short; others
differ only in their name, since values on disk are always read from there."""

_NAME = re.compile(r"[A-Za-z0-9_.%-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSpec:
    """kind: `couchbase` is on disk where the node has a data directory; `ephemeral` never is; `memcached` neither, and
    is a plain cache of one vbucket for clients that know nothing of vbuckets.

    vbuckets: a power of two up to 65536. conflict_resolution: `seqno` or `lww`; quota_bytes: what it may take up in
    memory; retention_seconds, retention_bytes: of the history, as in Settings; all of these None: as the node's others.
    flush_enabled: whether all of it may be deleted at once; None: where only this machine reaches the node. replicas:
    how many copies it is to have; there are none on one node. max_ttl: seconds that a document lives at most, 0 for
    any. storage_backend: a name that clients ask for and want to see again. eviction: one of EVICTION, None: the first
    one of its kind. Raises UsageError for anything else.
    """

    name: str
    kind: str = "couchbase"
    vbuckets: int = 1024
    conflict_resolution: str | None = None
    quota_bytes: int | None = None
    flush_enabled: bool | None = None
    replicas: int = 0
    max_ttl: int = 0
    retention_seconds: float | None = None
    retention_bytes: int | None = None
    storage_backend: str = "couchstore"
    eviction: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.kind not in KINDS:
            raise UsageError(f"bucket type {self.kind!r}: expected {', '.join(KINDS)}")
        if self.plain_cache:
            object.__setattr__(self, "vbuckets", 1)
        if not 1 <= self.vbuckets <= 65536 or self.vbuckets & (self.vbuckets - 1):
            raise UsageError(f"{self.vbuckets} vbuckets: expected a power of two from 1 to 65536")
        if not 0 <= self.replicas <= MAX_REPLICAS:
            raise UsageError(f"{self.replicas} replicas: expected 0 to {MAX_REPLICAS}")
        if not 0 <= self.max_ttl <= MAX_TTL:
            raise UsageError(f"a time to live of {self.max_ttl} s: expected 0 to {MAX_TTL}")
        for what in ("quota_bytes", "retention_seconds", "retention_bytes"):
            number = getattr(self, what)
            if number is not None and not number >= 0:
                raise UsageError(f"{what} {number}: expected 0 or more")
        if self.flush_enabled not in (None, False, True):
            raise UsageError(f"flush_enabled {self.flush_enabled!r}: expected true or false")
        if self.conflict_resolution not in (None, "seqno", "lww"):
            raise UsageError(f"conflict resolution {self.conflict_resolution!r}: expected seqno or lww")
        if self.storage_backend not in _BACKENDS:
            raise UsageError(f"storage backend {self.storage_backend!r}: expected {' or '.join(_BACKENDS)}")

        if self.eviction is not None and self.eviction not in EVICTION[self.kind]:
            expected = " or ".join(EVICTION[self.kind])
            raise UsageError(f"eviction policy {self.eviction!r} of a bucket of type {self.kind}: expected {expected}")

    @property
    def eviction_policy(self) -> str:
        return self.eviction or EVICTION[self.kind][0]

    @property
    def plain_cache(self) -> bool:
        return self.kind == "memcached"

    @property
    def persistent(self) -> bool:
        """Whether it is on disk where there is one. Without a disk, a change counts as persisted once it is stored."""
        return self.kind == "couchbase"

    def settings(self, base: Settings) -> Settings:
        """Return what the store is to do, from what it does for buckets that do not say it."""
        own: dict[str, Any] = {
            "conflict_resolution": self.conflict_resolution,
            "memory_bytes": self.quota_bytes,
            "retention_seconds": self.retention_seconds,
            "retention_bytes": self.retention_bytes,
            "max_ttl": self.max_ttl or None,
            "auto_delete": self.eviction_policy == "nruEviction" or None,
        }
        return replace(base, **{name: value for name, value in own.items() if value is not None})

    def properties(self) -> dict[str, Any]:
        """Return what is kept with the bucket: all that is not as it is unless said, and not said there already."""
        plain = BucketSpec(name=self.name, kind=self.kind, vbuckets=self.vbuckets)
        said = {name: value for name, value in asdict(self).items() if value != getattr(plain, name)}
        return {"kind": self.kind, **said}

    @classmethod
    def of(cls, name: str, vbuckets: int, properties: Mapping[str, Any]) -> BucketSpec:
        """Return the spec of a bucket with these properties. What a later version may have added is left out.

        Raises UsageError if they are none of a bucket.
        """
        known = {field.name: properties[field.name] for field in fields(cls) if field.name in properties}
        try:
            return cls(**{**known, "name": name, "vbuckets": vbuckets})
        except TypeError as error:
            raise UsageError(f"bucket {name}: its properties are none of a bucket: {error}") from None


def check_name(name: str) -> None:
    """Raise UsageError unless a bucket can be called that, and its directory too."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"bucket {name!r}: expected 1 to 100 of the characters A-Z a-z 0-9 _ . % -")
    if not name.strip("."):
        raise UsageError(f"bucket {name!r}: expected a name that is not dots alone")
