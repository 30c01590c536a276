"""The scopes and collections of a bucket that a user may know of.

A collection in which a user has no privilege is unknown to that user. Source: kv_engine, Collections::Manifest::to_json
with an IsVisibleFunction; rbac/privileges.cc, FailNoPrivileges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import is_

from penstock.node.auth import DOCUMENT_PRIVILEGES, User
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.store.definition.manifest import Manifest, Scope


def filter_manifest(manifest: Manifest, user: User | None, bucket: str) -> Manifest:
    """Return the manifest as a user sees it: the same uid, without collections in which the user has no privilege.

    A scope is visible if the user has a privilege for the whole scope, or if one of its collections is visible.

    Args:
        manifest: the whole manifest of the bucket. It is returned unchanged to a user of the whole bucket.
        user: None before login: nothing is visible.
        bucket: the bucket's name.
    """
    if user is not None and _can_see(user, bucket):
        return manifest
    return replace(manifest, scopes=() if user is None else tuple(_filter_scopes(manifest, user, bucket)))


class ManifestView:
    """Remembers the last result of `filter_manifest`, for a connection that needs it with every request."""

    def __init__(self) -> None:
        self._asked: tuple[object, object, object] = (None, None, None)
        self._visible: Manifest

    def get(self, bucket: ServedBucket, user: User | None) -> Manifest:
        """Return the manifest of a bucket as a user sees it."""
        asked = (bucket, bucket.store.manifests.current, user)
        if not all(map(is_, asked, self._asked)):
            self._asked = asked
            self._visible = filter_manifest(bucket.store.manifests.current, user, bucket.store.name)
        return self._visible


def _filter_scopes(manifest: Manifest, user: User, bucket: str) -> Iterator[Scope]:
    for scope in manifest.scopes:
        if _can_see(user, bucket, scope.name):
            yield scope
        elif seen := tuple(one for one in scope.collections if _can_see(user, bucket, scope.name, one.name)):
            yield replace(scope, collections=seen)


def _can_see(user: User, bucket: str, scope: str | None = None, collection: str | None = None) -> bool:
    return any(user.has_privilege(privilege, bucket, scope, collection) for privilege in DOCUMENT_PRIVILEGES)
