"""A bucket with collections to try things on, and what its vbuckets tell."""

from penstock.store.bucket_store import BucketStore
from penstock.store.definition.manifest import DEFAULT_MANIFEST, Manifest
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.event_frames import EventFrame, read_event
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from penstock.wire.values.collection_key import pack_collection_id
from tests.store.model import START, Tombstone, read_all

NOW = START // 10**9
SHOP = DEFAULT_MANIFEST.with_scope("shop").with_collection("shop", "items").with_collection("shop", "users")
ITEMS, USERS = 9, 10


def key(collection: int, name: str = "k") -> bytes:
    return pack_collection_id(collection) + name.encode()


def all_of(vbucket: Vbucket, start: int = 0) -> list[Mutation | Tombstone]:
    return read_all(vbucket.history.open_snapshot(start, vbucket.changes.high_seqno))


def told(vbucket: Vbucket, start: int = 0) -> list[EventFrame]:
    """Return the system events among a vbucket's changes."""
    events = []
    for change in all_of(vbucket, start):
        event = read_event(change.key, change.value, change.flags if isinstance(change, Mutation) else None)
        events += [] if event is None else [event]
    return events


def erase(bucket: BucketStore) -> None:
    while bucket.eraser.erase_some():
        pass


def modified(bucket: BucketStore, seconds: int = 7) -> Manifest:
    """Let a bucket with a shop have another time limit for its items; return its manifest."""
    bucket.rollout.set_manifest(bucket.manifests.current.with_max_ttl("shop", "items", seconds))
    return bucket.manifests.current


def follow(source: Vbucket, copy: Vbucket, snapshot_end: int | None = None) -> None:
    for change in all_of(source, copy.changes.high_seqno):
        mutation = isinstance(change, Mutation)
        copy.incoming.apply(
            Event.MUTATION if mutation else Event.DELETION,
            *(change.key, change.value),
            cas=change.cas,
            rev_seqno=change.rev_seqno,
            seqno=change.by_seqno,
            snapshot_end=snapshot_end,
            flags=change.flags if isinstance(change, Mutation) else 0,
            delete_time=0 if isinstance(change, Mutation) else change.delete_time,
        )
