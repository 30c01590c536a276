"""The definition of a bucket, as it is requested, stored and shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from penstock.errors import UsageError
from penstock.names import check_new_bucket
from penstock.store.definition.bucket_settings import MAX_TTL, BucketSettings
from penstock.store.definition.manifest import DEFAULT_MANIFEST, DEFAULT_NAME, Manifest

KINDS = ("couchbase", "ephemeral", "memcached")
MAX_REPLICAS = 3
_BACKENDS = ("couchstore", "magma")
EVICTION_POLICIES = {
    "couchbase": ("valueOnly", "fullEviction"),
    "ephemeral": ("noEviction", "nruEviction"),
    "memcached": ("noEviction", "nruEviction", "valueOnly", "fullEviction"),
}
"""Eviction policies by the type of a bucket; the first one is the default. With nruEviction, old documents are deleted
while memory is short. The others differ only in their names: values on disk are always read from disk."""

_UUID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSpec:
    """The definition of a bucket. None stands for the node's default.

    Attributes:
        name: 1 to 100 of the characters `A-Z a-z 0-9 _ . % -`.
        kind: `couchbase` is on disk if the node has a data directory; `ephemeral` is in memory. `memcached` is a plain
            cache in memory: one vbucket, for clients that do not know vbuckets.
        vbuckets: a power of two, up to 65536.
        conflict_resolution: `seqno` or `lww`.
        quota_bytes: limit of its memory.
        flush_enabled: whether FLUSH is permitted. Default: only if the listeners are on loopback.
        replicas: number of copies, 0 to 3. A single node cannot keep them.
        max_ttl: the longest time to live of documents in seconds; 0: no limit.
        retention_seconds: age of the history that compaction keeps, as in Settings.
        retention_bytes: size of the history that compaction keeps, as in Settings.
        history_default: whether new collections have change history, and the default collection of a new bucket.
        storage_backend: a name that clients send and expect to read again. `magma` is the one with change history.
        eviction: one of EVICTION_POLICIES for the kind. Default: the first one.
        uuid: the uuid that all nodes of a cluster report. Default: the node chooses it.

    Raises:
        UsageError: a value is invalid.
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
    history_default: bool | None = None
    storage_backend: str = "couchstore"
    eviction: str | None = None
    uuid: str | None = None

    def __post_init__(self) -> None:
        check_new_bucket(self.name)
        if self.kind not in KINDS:
            raise UsageError(f"bucket type {self.kind!r}: expected {', '.join(KINDS)}")
        if self.is_plain_cache:
            object.__setattr__(self, "vbuckets", 1)
        if not 1 <= self.vbuckets <= 65536 or self.vbuckets & (self.vbuckets - 1):
            raise UsageError(f"{self.vbuckets} vbuckets: expected a power of two from 1 to 65536")
        if not 0 <= self.replicas <= MAX_REPLICAS:
            raise UsageError(f"{self.replicas} replicas: expected 0 to {MAX_REPLICAS}")
        if not 0 <= self.max_ttl <= MAX_TTL:
            raise UsageError(f"time to live of {self.max_ttl} s: expected 0 to {MAX_TTL}")
        for name in ("quota_bytes", "retention_seconds", "retention_bytes"):
            number = getattr(self, name)
            if number is not None and not number >= 0:
                raise UsageError(f"{name} {number}: expected 0 or more")
        _check_flags(flush_enabled=self.flush_enabled, history_default=self.history_default)
        if self.conflict_resolution not in (None, "seqno", "lww"):
            raise UsageError(f"conflict resolution {self.conflict_resolution!r}: expected seqno or lww")
        _check_uuid(self.uuid)
        if self.storage_backend not in _BACKENDS:
            raise UsageError(f"storage backend {self.storage_backend!r}: expected {' or '.join(_BACKENDS)}")
        if self.eviction is not None and self.eviction not in EVICTION_POLICIES[self.kind]:
            expected = " or ".join(EVICTION_POLICIES[self.kind])
            raise UsageError(f"eviction policy {self.eviction!r} of a bucket of type {self.kind}: expected {expected}")

    @property
    def eviction_policy(self) -> str:
        """The eviction policy, or the default of the bucket's kind."""
        return self.eviction or EVICTION_POLICIES[self.kind][0]

    @property
    def is_plain_cache(self) -> bool:
        """Whether the bucket is a plain cache of one vbucket."""
        return self.kind == "memcached"

    @property
    def has_history(self) -> bool:
        """Whether change history can be configured. Source: ns_server, which offers it for Magma."""
        return self.storage_backend == "magma" and self.is_persistent

    def make_first_manifest(self) -> Manifest:
        """Return the manifest of a new bucket. Source: ns_server, collections.erl, default_manifest."""
        if not self.history_default:
            return DEFAULT_MANIFEST
        return DEFAULT_MANIFEST.with_history(DEFAULT_NAME, DEFAULT_NAME, True)

    @property
    def is_persistent(self) -> bool:
        """Whether the bucket is on disk if the node has a data directory.

        Without a data directory, a change of such a bucket counts as persisted once it is stored.
        """
        return self.kind == "couchbase"

    def make_settings(self, base: BucketSettings) -> BucketSettings:
        """Return the settings of the bucket's store.

        Args:
            base: the node's default settings.
        """
        own: dict[str, Any] = {
            "conflict_resolution": self.conflict_resolution,
            "memory_bytes": self.quota_bytes,
            "retention_seconds": self.retention_seconds,
            "retention_bytes": self.retention_bytes,
            "max_ttl": self.max_ttl or None,
            "auto_delete": self.eviction_policy == "nruEviction" or None,
        }
        return replace(base, **{name: value for name, value in own.items() if value is not None})

    def list_properties(self) -> dict[str, Any]:
        """Return the properties to store with the bucket: the values that differ from the defaults.

        The name and the number of vbuckets are stored elsewhere.
        """
        plain = BucketSpec(name=self.name, kind=self.kind, vbuckets=self.vbuckets)
        changed = {name: value for name, value in asdict(self).items() if value != getattr(plain, name)}
        return {"kind": self.kind, **changed}

    @classmethod
    def from_properties(cls, name: str, vbuckets: int, properties: Mapping[str, Any]) -> BucketSpec:
        """Return the spec of a bucket with stored properties.

        Unknown properties, such as those of later versions, are ignored.

        Raises:
            UsageError: a property is invalid.
        """
        known = {field.name: properties[field.name] for field in fields(cls) if field.name in properties}
        try:
            return cls(**{**known, "name": name, "vbuckets": vbuckets})
        except TypeError as error:
            raise UsageError(f"bucket {name}: invalid properties: {error}") from None


def _check_flags(**flags: bool | None) -> None:
    for name, flag in flags.items():
        if flag not in (None, False, True):
            raise UsageError(f"{name} {flag!r}: expected true or false")


def _check_uuid(uuid: str | None) -> None:
    if uuid is not None and not _UUID.fullmatch(uuid):
        raise UsageError(f"uuid {uuid!r} of a bucket: expected 32 hexadecimal digits")
