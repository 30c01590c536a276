"""Keys of requests and keys of the store.

A connection that has agreed on collections sends each key with the id of its collection in front. The store has its
keys in the same form. A connection without collections sends bare keys, which are all in the default collection.
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

KeyReader = Callable[[bytes], bytes]
"""Returns the store's key of a request's key. Raises StatusError for an invalid key."""

MAX_COLLECTION_KEY: Final = 246
"""Bytes of a key without its collection id, outside the default collection. Source: kv_engine limits.h."""

_RESERVED_IDS = range(1, 8)  # Source: kv_engine, CollectionID::isReserved


def make_key_reader(
    login: Login, bucket: ServedBucket | None, view: ManifestView | None, *privileges: Privilege
) -> KeyReader:
    """Return the reader of a session's keys. It is valid until the session's user, bucket or features change.

    The reader raises InvalidArguments for a key that is empty or too long, and RemoteProtocolError for a malformed
    prefix. It also raises UnknownCollection, AccessDenied and NoBucket.

    Args:
        login: the login of the session.
        bucket: the selected bucket, or None.
        view: the user's view of the manifest; None for a connection without collections.
        *privileges: the privileges that each document needs, all of them.
    """
    user = login.effective_user
    if user is None or bucket is None:
        return _refuse_key
    access = _CollectionAccess(login, user, bucket, view, privileges)
    return _make_bare_reader(access) if view is None else _make_prefixed_reader(access)


class _CollectionAccess:
    """Checks whether a user has some privileges in the collections of a bucket.

    Attributes:
        store: the bucket.
        has_whole_bucket: whether the user has the privileges in the whole bucket.
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
        self.has_whole_bucket = all(user.has_privilege(privilege, bucket.store.name) for privilege in privileges)
        self._login = login
        self._user = user
        self._bucket = bucket
        self._view = view
        self._privileges = privileges

    def check(self, collection_id: int) -> None:
        """Check the access to one collection.

        Raises:
            InvalidArguments: the id is reserved.
            UnknownCollection: the user does not see the collection.
            AccessDenied: the user lacks a privilege.
        """
        if collection_id in _RESERVED_IDS:
            raise InvalidArguments(f"collection id {collection_id}, which is reserved")
        store, view, login = self.store, self._view, self._login
        # A client without collections knows the default collection, so a missing privilege is an access error.
        manifest = view.get(self._bucket, login.effective_user) if view is not None else store.manifests.current
        collection = manifest.collections.get(collection_id)
        if collection is None:
            raise make_unknown_collection_error(collection_id, store.manifests.current)
        if not self.has_whole_bucket:
            scope = store.manifests.current.scopes_by_id[collection.scope_id].name
            if not all(self._user.has_privilege(one, store.name, scope, collection.name) for one in self._privileges):
                raise AccessDenied(f"collection {scope}.{collection.name}: not for {login.effective_user_name}")


# The readers are closures, since each request calls one: attribute look-ups would cost more.


def _make_bare_reader(access: _CollectionAccess) -> KeyReader:
    """Return a reader of bare keys, which are all in the default collection."""
    manifests, everywhere = access.store.manifests, access.has_whole_bucket

    def read_bare_key(key: bytes) -> bytes:
        if len(key) > MAX_KEY:
            raise _make_too_long_error(key, MAX_KEY)
        if not everywhere or DEFAULT_COLLECTION not in manifests.current.collections:
            access.check(DEFAULT_COLLECTION)
        return DEFAULT_PREFIX + key

    return read_bare_key


def _make_prefixed_reader(access: _CollectionAccess) -> KeyReader:
    """Return a reader of keys with the id of their collection in front."""
    manifests, everywhere = access.store.manifests, access.has_whole_bucket

    def read_prefixed_key(key: bytes) -> bytes:
        collection_id, rest = split_collection_key(key)
        if len(rest) > MAX_COLLECTION_KEY and (collection_id or len(rest) > MAX_KEY):
            raise _make_too_long_error(rest, MAX_COLLECTION_KEY if collection_id else MAX_KEY)
        if not rest:
            raise InvalidArguments("empty key after the collection id")
        if not everywhere or collection_id not in manifests.current.collections:
            access.check(collection_id)
        return key

    return read_prefixed_key


def _refuse_key(key: bytes) -> bytes:
    raise NoBucket


def _make_too_long_error(key: bytes, limit: int) -> StatusError:
    return InvalidArguments(f"key of {len(key)} bytes, limit {limit}")


def make_unknown_collection_error(collection_id: int, manifest: Manifest) -> UnknownCollection:
    """Return the error for a collection that a manifest does not have."""
    text = f"no collection 0x{collection_id:x} in manifest {manifest.uid:x}"
    return UnknownCollection(text, body=manifest.error_body)
