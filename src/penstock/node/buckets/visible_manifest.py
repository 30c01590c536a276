"""The part of a bucket's scopes and collections that a user may know of.

Source: kv_engine, Collections::Manifest::to_json with an IsVisibleFunction; rbac/privileges.cc, FailNoPrivileges: a
collection in which a user has no privilege at all is unknown to that user.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import is_

from penstock.node.auth import OF_DOCUMENTS, User
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.store.definition.manifest import Manifest, Scope

__all__ = ["ManifestView", "visible_manifest"]


def visible_manifest(manifest: Manifest, user: User | None, bucket: str) -> Manifest:
    """Return the manifest as a user sees it: the same uid, without collections in which the user has no privilege.

    A scope is visible if all of it is, also what will be in it, or if one of its collections is.

    Args:
        manifest: the whole manifest of the bucket. It is returned as it is to a user of the whole bucket.
        user: None before login: nothing is visible.
        bucket: the bucket's name.
    """
    if user is not None and _sees(user, bucket):
        return manifest
    return replace(manifest, scopes=() if user is None else tuple(_visible_scopes(manifest, user, bucket)))


class ManifestView:
    """The last answer of `visible_manifest`, for a connection that asks with every request."""

    def __init__(self) -> None:
        self._asked: tuple[object, object, object] = (None, None, None)
        self._visible: Manifest

    def of(self, bucket: ServedBucket, user: User | None) -> Manifest:
        """Return the manifest of a bucket as a user sees it."""
        asked = (bucket, bucket.store.manifests.current, user)
        if not all(map(is_, asked, self._asked)):
            self._asked = asked
            self._visible = visible_manifest(bucket.store.manifests.current, user, bucket.store.name)
        return self._visible


def _visible_scopes(manifest: Manifest, user: User, bucket: str) -> Iterator[Scope]:
    for scope in manifest.scopes:
        if _sees(user, bucket, scope.name):
            yield scope
        elif seen := tuple(one for one in scope.collections if _sees(user, bucket, scope.name, one.name)):
            yield replace(scope, collections=seen)


def _sees(user: User, bucket: str, scope: str | None = None, collection: str | None = None) -> bool:
    return any(user.may(privilege, bucket, scope, collection) for privilege in OF_DOCUMENTS)
