"""Changes that are appended in runs leave the same bucket as changes that are applied one by one."""

import tempfile
from itertools import accumulate, count
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.history.event_frames import pack_events
from penstock.store.log.logged_frames import FrameRun
from penstock.wire.codec.constants import MAX_SEQNO, SystemEventKind, VbucketState
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import DeletionV2, Expiration, Mutation
from penstock.wire.messages.system_event import CreatedCollection
from tests.examples import scaled
from tests.store.model import START, make_bucket, read_all

KEYS = st.sampled_from([b"\0a", b"\0bb", b"\0ccc", b"\x08a", b"\x09a"])
CHANGES = st.one_of(
    st.builds(Mutation, key=KEYS, value=st.binary(max_size=90), cas=st.integers(1, 99), rev_seqno=st.integers(0, 9)),
    st.builds(DeletionV2, key=KEYS, cas=st.integers(1, 99), rev_seqno=st.integers(0, 9), delete_time=st.just(77)),
    st.builds(Expiration, key=KEYS, cas=st.integers(1, 99), rev_seqno=st.integers(0, 9), delete_time=st.just(77)),
)
RUNS = st.lists(st.lists(st.tuples(CHANGES, st.sampled_from([1, 1, 1, 2, 5])), min_size=1, max_size=40), max_size=5)
EVENTS = {Mutation: Event.MUTATION, DeletionV2: Event.DELETION, Expiration: Event.EXPIRATION}
SEGMENT_BYTES = 1024
"""A run fills several segments."""


def open_bucket(path):
    vbuuids = count(1)
    return BucketStore.open(
        path,
        "b",
        vbuckets=4,
        clock=lambda: START,
        new_vbuuid=lambda: next(vbuuids),
        settings=BucketSettings(segment_bytes=SEGMENT_BYTES, purge_age=10**12),
    )


def number_changes(runs):
    """Return the runs with ascending seqnos."""
    steps = iter(list(accumulate(step for run in runs for _, step in run)))
    return [[replace_seqno(change, next(steps)) for change, _ in run] for run in runs]


def replace_seqno(change, seqno):
    fields = {name: getattr(change, name) for name in ("key", "value", "cas", "rev_seqno")}
    times = {} if isinstance(change, Mutation) else {"delete_time": change.delete_time}
    return type(change)(**fields, **times, by_seqno=seqno + 1, vbucket=1)


def apply_each(vbucket, changes, end):
    for change in changes:
        vbucket.incoming.apply(
            EVENTS[type(change)],
            change.key,
            change.value,
            cas=change.cas,
            rev_seqno=change.rev_seqno,
            seqno=change.by_seqno,
            snapshot_end=end,
            hides=True,
            delete_time=getattr(change, "delete_time", 0),
        )


def apply_together(vbucket, changes, end):
    frames = [change.encode() for change in changes]
    run = FrameRun(
        keys=[change.key for change in changes],
        seqnos=np.array([change.by_seqno for change in changes], np.int64),
        data=b"".join(frames),
        bounds=np.array([0, *accumulate(map(len, frames))], np.int64),
        is_mutation=np.array([isinstance(change, Mutation) for change in changes]),
    )
    vbucket.changes.clock.observe(max(change.cas for change in changes))
    vbucket.incoming.apply_run(run, snapshot_end=end, hides=True)


def begin_collection(vbucket):
    """Store the event of collection 8, so that the vbucket counts collections."""
    subject = CreatedCollection(manifest_uid=1, scope_id=0, collection_id=8, name="sold")
    (event,) = pack_events([(SystemEventKind.COLLECTION_BEGIN, subject)])
    flags = int(event.kind)
    vbucket.incoming.apply(Event.MUTATION, event.key, event.value, cas=1, rev_seqno=1, seqno=1, flags=flags)


def describe(bucket):
    """Return the content of vbucket 1 and its counters."""
    vbucket = bucket.vbuckets[1]
    changes, index, state = vbucket.changes, vbucket.history.index, vbucket.changes.collection_state
    newest = {}
    for key in (b"\0a", b"\0bb", b"\0ccc", b"\x08a", b"\x09a"):
        seqno = changes.newest.get(key)
        found = None if seqno is None else index.find(seqno)
        newest[key] = seqno, found is not None and found[0].superseded_at[found[1]]
    return {
        "history": vbucket.history.to_dict(),
        "items": changes.items,
        "high_seqno": changes.high_seqno,
        "newest": newest,
        "collections": None if state is None else (state.highs, state.items),
        "dead": bucket.log.segments.dead_bytes,
        "frames": read_all(vbucket.history.open_snapshot(0, MAX_SEQNO)),
    }


def begin_replicas(buckets, *, counts_collections):
    for bucket in buckets:
        bucket.vbuckets[1].set_state(VbucketState.REPLICA)
        if counts_collections:
            begin_collection(bucket.vbuckets[1])
            assert bucket.vbuckets[1].changes.collection_state is not None


def check_both_ways(buckets, runs):
    """Apply the changes one by one to the first bucket, and in runs to the second one."""
    for bucket, apply in zip(buckets, (apply_each, apply_together), strict=True):
        for changes in runs:
            apply(bucket.vbuckets[1], changes, changes[-1].by_seqno)
    one_by_one, together = map(describe, buckets)
    assert together == one_by_one


@settings(max_examples=scaled(150), deadline=None)
@given(runs=RUNS, counts_collections=st.booleans())
def test_runs_in_memory_and_single_changes_leave_equal_buckets(runs, counts_collections):
    buckets = [make_bucket(segment_bytes=SEGMENT_BYTES) for _ in range(2)]
    begin_replicas(buckets, counts_collections=counts_collections)
    check_both_ways(buckets, number_changes(runs))


@settings(max_examples=scaled(25), deadline=None)
@given(runs=RUNS, place=st.integers(0, 5), counts_collections=st.booleans())
def test_runs_on_disk_and_single_changes_leave_equal_buckets(runs, place, counts_collections):
    numbered = number_changes(runs)
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory, name) for name in ("each", "together")]
        buckets = [open_bucket(path) for path in paths]
        begin_replicas(buckets, counts_collections=counts_collections)
        for part in (numbered[:place], numbered[place:], numbered[:0]):
            check_both_ways(buckets, part)
            for bucket in buckets:
                bucket.close()
            buckets = [open_bucket(path) for path in paths]  # their keys are not loaded yet
        for bucket in buckets:
            bucket.close()
