"""The scopes and collections of a bucket whose vbuckets copy another node's."""

from __future__ import annotations

import logging

from penstock.errors import CannotApplyManifest
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.store.documents.vbucket import Vbucket

logger = logging.getLogger("penstock.node")


def adopt_manifest(served: ServedBucket, vbucket: Vbucket) -> None:
    """Give a bucket the scopes and collections of one of its vbuckets, if they are newer.

    All events of one manifest change name the previous uid, except the last event. So a newer uid means a whole
    manifest.
    """
    if (vbucket.collections.manifest_uid or 0) <= served.store.manifests.current.uid:
        return
    served.changed.add(vbucket.id)
    try:
        served.change_manifest(vbucket.collections.read_manifest())
    except CannotApplyManifest as error:
        logger.warning("bucket %s keeps its own collections: %s", served.store.name, error)
