"""A connection's keys and the bucket's: what stands in a request's frame, and what the store knows the document by.

A connection that has agreed on collections sends each key with its collection's id in front, which is how the store has
it. To one that has not, all there is is the default collection, and its keys are bare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.errors import AccessDenied, InvalidArguments, NoBucket, StatusError, UnknownCollection
from penstock.node.auth import Login, Privilege, User
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.visible_manifest import ManifestView
from penstock.store.definition.manifest import Manifest
from penstock.wire.codec.constants import MAX_KEY
from penstock.wire.values.collection_key import DEFAULT_COLLECTION, DEFAULT_PREFIX, split_collection_key

__all__ = ["MAX_COLLECTION_KEY", "KeyReader", "key_reader", "unknown_collection"]

KeyReader = Callable[[bytes], bytes]
"""Returns what the store knows a request's document by. Raises StatusError for a key that cannot be."""

MAX_COLLECTION_KEY: Final = 246
"""Bytes of a key behind the id of a collection that is not the default one. Source: kv_engine limits.h."""


def key_reader(
    login: Login, bucket: ServedBucket | None, view: ManifestView | None, *privileges: Privilege
) -> KeyReader:
    """Return how a session's keys are to be read, until its user, bucket or features are others.

    view: the user's view of the manifest, None where keys have no collection in front. privileges: those that a
    document needs, all of them. What is read raises InvalidArguments for a key that is empty
    or too long, UnknownCollection, AccessDenied, NoBucket, and RemoteProtocolError for a prefix that is none.
    """
    user = login.acting
    if user is None or bucket is None:
        return _nowhere
    access = _CollectionAccess(login, user, bucket, view, privileges)
    return _bare_reader(access) if view is None else _prefixed_reader(access)


class _CollectionAccess:
    """Whether a user has all of some privileges in the collections of a bucket.

    Attributes:
        store: the bucket.
        everywhere: the user has them in the whole bucket.
    """

    def __init__(
        self,
        login: Login,
        user: User,
        bucket: ServedBucket,
        view: ManifestView | None,
        privileges: tuple[Privilege, ...],
    ) -> None:
        self.store = bucket.store
        self.everywhere = all(user.may(privilege, bucket.store.name) for privilege in privileges)
        self._login = login
        self._user = user
        self._bucket = bucket
        self._view = view
        self._privileges = privileges

    def check(self, collection_id: int) -> None:
        """Raise UnknownCollection for a collection that the user does not see, AccessDenied for one that is denied."""
        store, view, login = self.store, self._view, self._login
        # A client without collections knows the default one: to it, that one is not hidden but denied.
        manifest = view.of(self._bucket, login.acting) if view is not None else store.manifests.current
        collection = manifest.collections.get(collection_id)
        if collection is None:
            raise unknown_collection(collection_id, store.manifests.current)
        if not self.everywhere:
            scope = store.manifests.current.scopes_by_id[collection.scope_id].name
            if not all(self._user.may(one, store.name, scope, collection.name) for one in self._privileges):
                raise AccessDenied(f"collection {scope}.{collection.name}: not for {login.acting_name}")


# The readers are closures: one is called for each request.


def _bare_reader(access: _CollectionAccess) -> KeyReader:
    """Return a reader of keys that are all in the default collection."""
    store, everywhere = access.store, access.everywhere

    def bare(key: bytes) -> bytes:
        if not everywhere or DEFAULT_COLLECTION not in store.manifests.current.collections:
            access.check(DEFAULT_COLLECTION)
        if len(key) > MAX_KEY:
            raise _too_long(key, MAX_KEY)
        return DEFAULT_PREFIX + key

    return bare


def _prefixed_reader(access: _CollectionAccess) -> KeyReader:
    """Return a reader of keys that have their collection's id in front."""
    store, everywhere = access.store, access.everywhere

    def prefixed(key: bytes) -> bytes:
        collection_id, rest = split_collection_key(key)
        if not everywhere or collection_id not in store.manifests.current.collections:
            access.check(collection_id)
        if len(rest) > MAX_COLLECTION_KEY and (collection_id or len(rest) > MAX_KEY):
            raise _too_long(rest, MAX_COLLECTION_KEY if collection_id else MAX_KEY)
        if not rest:
            raise InvalidArguments("a collection's id without a key behind it")
        return key

    return prefixed


def _nowhere(key: bytes) -> bytes:
    raise NoBucket


def _too_long(key: bytes, limit: int) -> StatusError:
    return InvalidArguments(f"key of {len(key)} bytes, limit {limit}")


def unknown_collection(collection_id: int, manifest: Manifest) -> UnknownCollection:
    text = f"no collection 0x{collection_id:x} in manifest {manifest.uid:x}"
    return UnknownCollection(text, body=manifest.said_uid)
