"""For how long documents may live, where a bucket or a collection limits that."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.store.definition.manifest import Manifest
from penstock.store.history.collection_state import collection_of

__all__ = ["TimeLimits", "time_limits"]


class TimeLimits:
    """bucket: seconds, 0 for any time. collections: by their ids those that say something else."""

    def __init__(self, bucket: int, collections: Mapping[int, int]) -> None:
        self._bucket = bucket
        self._collections = collections

    def applied(self, key: bytes, expiry: int, now: int) -> int:
        """Return when a document that is stored `now` is to expire. Times: epoch seconds; 0 for never.

        Source: kv_engine Collections::VB::Manifest::processExpiryTime.
        """
        limit = self._collections.get(collection_of(key), self._bucket)
        if limit and not 0 < expiry <= now + limit:
            return now + limit
        return expiry


def time_limits(manifest: Manifest, bucket: int) -> TimeLimits | None:
    """Return the limits that are in force; None if there are none. bucket: as of TimeLimits."""
    said = {number: one.max_ttl for number, one in manifest.collections.items() if one.max_ttl is not None}
    return TimeLimits(bucket, said) if bucket or any(said.values()) else None
