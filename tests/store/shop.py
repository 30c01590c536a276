"""A manifest with collections for tests, and functions that read or change the vbuckets of a bucket with it."""

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


def make_key(collection: int, name: str = "k") -> bytes:
    """Return the key of a document with its collection as prefix."""
    return pack_collection_id(collection) + name.encode()


def read_changes(vbucket: Vbucket, start: int = 0) -> list[Mutation | Tombstone]:
    """Return a vbucket's changes above the seqno `start`, with system events."""
    return read_all(vbucket.history.open_snapshot(start, vbucket.changes.high_seqno))


def read_system_events(vbucket: Vbucket, start: int = 0) -> list[EventFrame]:
    """Return the system events among a vbucket's changes above the seqno `start`."""
    events = []
    for change in read_changes(vbucket, start):
        event = read_event(change.key, change.value, change.flags if isinstance(change, Mutation) else None)
        events += [] if event is None else [event]
    return events


def erase_dropped(bucket: BucketStore) -> None:
    """Erase all documents of dropped collections."""
    while bucket.eraser.erase_some():
        pass


def change_items_ttl(bucket: BucketStore, seconds: int = 7) -> Manifest:
    """Change the time limit of the collection `items`, and return the new manifest."""
    bucket.rollout.set_manifest(bucket.manifests.current.with_max_ttl("shop", "items", seconds))
    return bucket.manifests.current


def copy_changes(source: Vbucket, copy: Vbucket, snapshot_end: int | None = None) -> None:
    """Apply the source's changes above the copy's high seqno to the copy.

    Args:
        source: vbucket to read.
        copy: vbucket that receives the changes.
        snapshot_end: seqno that all changes have as the end of their snapshot; None: each is a snapshot by itself.
    """
    for change in read_changes(source, copy.changes.high_seqno):
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
