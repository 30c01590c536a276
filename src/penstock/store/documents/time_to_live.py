"""The longest time to live of documents, as a bucket or a collection limits it."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.store.definition.manifest import Manifest
from penstock.store.history.collection_state import read_collection


class TimeLimits:
    """The limits of a bucket and its collections.

    Args:
        bucket: seconds, 0 for no limit.
        collections: the limits, by id, of collections that have their own.
    """

    def __init__(self, bucket: int, collections: Mapping[int, int]) -> None:
        self._bucket = bucket
        self._collections = collections

    def apply(self, key: bytes, expiry: int, now: int) -> int:
        """Return when a document that is stored `now` expires. Times: epoch seconds; 0 for never.

        Source: kv_engine Collections::VB::Manifest::processExpiryTime.
        """
        limit = self._collections.get(read_collection(key), self._bucket)
        if limit and not 0 < expiry <= now + limit:
            return now + limit
        return expiry


def make_time_limits(manifest: Manifest, bucket: int) -> TimeLimits | None:
    """Return the limits of a manifest and a bucket; None if there are none. bucket: as of TimeLimits."""
    collections = {number: one.max_ttl for number, one in manifest.collections.items() if one.max_ttl is not None}
    return TimeLimits(bucket, collections) if bucket or any(collections.values()) else None
