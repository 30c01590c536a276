"""Vbuckets that no node serves: batch and streaming reads wait for them and fail, or skip and report them."""

import json

import pytest

from penstock.client.documents.document import compute_vbucket
from penstock.errors import Unreachable
from penstock.spark.pipeline.definition.definition import define_bucket_pipeline
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.source.offsets import Offset
from penstock.spark.source.readers import latest_offsets
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import SetVbucket
from tests.node.wire_client import connected
from tests.spark.buckets import Documents, read_batch

VBUCKETS = 16
STORED = {f"k{number}": b"v" for number in range(200)}
OF_3 = {key for key in STORED if compute_vbucket(key.encode(), VBUCKETS) == 3}
NAMED = r"did not serve for .*: vbucket 3 \(1 of 16\) is not served by"


@pytest.fixture
def documents(node):
    """Return a bucket with documents whose vbucket 3 is dead."""
    with Documents.of(node.url("default")) as documents:
        documents.store(STORED)
        set_state(node, VbucketState.DEAD)
        yield documents


def set_state(node, state):
    with connected(node, "default") as client:
        assert client.status(SetVbucket(vbucket=3, state=state)) == Status.SUCCESS


def test_batch_read_fails_and_names_the_vbucket(documents):
    with pytest.raises(Unreachable, match=NAMED):
        read_batch(documents.url, retrySeconds="0.2")
    with pytest.raises(Unreachable, match=NAMED):
        read_batch(documents.url, retrySeconds="0.2", protocol="tap")
    assert read_batch(documents.url, retrySeconds="0.2", vbuckets="0-2").num_rows


@pytest.mark.parametrize("protocol", ["dcp", "tap"])
def test_batch_read_can_skip_the_vbucket(documents, protocol):
    rows = read_batch(documents.url, missingVbuckets="skip", protocol=protocol)
    assert {key.decode() for key in rows["key"].to_pylist()} == STORED.keys() - OF_3


def test_latest_offsets_fail_or_skip_the_vbucket(documents):
    with pytest.raises(Unreachable, match=NAMED):
        latest_offsets({"url": documents.url, "retrySeconds": "0.2"})
    found = json.loads(latest_offsets({"url": documents.url, "missingVbuckets": "skip"}))
    assert Offset.from_json(found).vbuckets[3].seqno == 0


def test_stream_fails_and_names_the_vbucket(documents, follow):
    with pytest.raises(Unreachable, match=NAMED):
        follow(documents.url, retrySeconds="0.2").step()


def keys_of(tables):
    return {key.decode() for table in tables for key in table["key"].to_pylist()}


def test_stream_reads_a_skipped_vbucket_once_it_is_served(node, documents, follow):
    query = follow(documents.url, missingVbuckets="skip")
    assert keys_of(query.all()) == STORED.keys() - OF_3
    set_state(node, VbucketState.ACTIVE)
    assert keys_of(query.all()) == OF_3


def test_available_now_reads_a_skipped_vbucket_if_it_is_served_again(node, documents, follow):
    query = follow(documents.url, missingVbuckets="skip", maxChangesPerTrigger="50")
    query.start = query.reader.initialOffset()
    query.reader.prepareForTriggerAvailableNow()
    first = query.step()
    set_state(node, VbucketState.ACTIVE)
    assert keys_of([first, *query.all()]) == STORED.keys()
    query.reader.prepareForTriggerAvailableNow()
    set_state(node, VbucketState.DEAD)
    assert query.all() == []


def test_pipeline_with_available_now_fails_or_skips_the_vbucket(documents, spark, tmp_path):
    with pytest.raises(Unreachable, match=NAMED):
        run_pipeline(
            define_bucket_pipeline(str(tmp_path / "a"), url=documents.url, retry_seconds=0.2),
            available_now=True,
            spark=spark,
        )
    definition = define_bucket_pipeline(str(tmp_path / "b"), url=documents.url, missing_vbuckets="skip")
    (progress,) = run_pipeline(definition, available_now=True, spark=spark)
    assert (progress.rows, progress.missing_vbuckets) == (len(STORED) - len(OF_3), (3,))
