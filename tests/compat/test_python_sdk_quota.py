"""Ephemeral buckets at their quota: filled by Couchbase's Python SDK, followed by go-dcp.

java-dcp-client with persistence polling gets no changes from an ephemeral bucket, nor from one of a Couchbase server.
"""

import base64
import random
from datetime import timedelta

import pytest

from tests.compat.installed import require_package
from tests.compat.test_go_dcp import collect_keys, follow_bucket
from tests.node.wire_client import connected as memcached_client

require_package("couchbase")

from couchbase.exceptions import TemporaryFailException
from couchbase.management.buckets import BucketType, CreateBucketSettings, EvictionPolicyType
from couchbase.options import UpsertOptions
from couchbase.transcoder import RawStringTranscoder

QUOTA_MB = 100
VALUE = base64.b64encode(random.Random(1).randbytes(3 << 18)).decode()  # 1 MiB that the client does not compress
RAW = UpsertOptions(transcoder=RawStringTranscoder(), timeout=timedelta(seconds=20))


@pytest.fixture
def make_collection(connect_cluster, node):
    """Return a function that creates an ephemeral bucket with an eviction policy. It returns the default collection."""
    buckets = connect_cluster(node.url).buckets()
    created = []

    def make_collection(name, policy):
        settings = CreateBucketSettings(
            name=name,
            bucket_type=BucketType.EPHEMERAL,
            ram_quota_mb=QUOTA_MB,
            num_replicas=0,
            eviction_policy=policy,
        )
        buckets.create_bucket(settings)
        created.append(name)
        assert buckets.get_bucket(name).eviction_policy == policy
        return connect_cluster(node.url).bucket(name).default_collection()

    yield make_collection
    for name in created:
        buckets.drop_bucket(name)


def test_without_eviction_the_client_reports_a_temporary_failure(make_collection, node):
    """The client maps ENOMEM to that failure, and does not retry. A concurrent rewrite causes ETMPFAIL: it retries."""
    collection = make_collection("failing", EvictionPolicyType.NO_EVICTION)
    stored = 0
    with pytest.raises(TemporaryFailException, match="'status_code': 130, 'retry_attempts'"):  # noqa: PT012 - any of the upserts may fail
        while True:
            collection.upsert(f"k{stored}", VALUE, RAW)
            stored += 1
    with memcached_client(node, "failing") as client:
        assert client.stats()["ep_oom_errors"] == "1"
    assert QUOTA_MB * 0.8 < stored <= QUOTA_MB
    assert all(collection.exists(f"k{number}").exists for number in range(stored))
    for number in range(stored // 4):
        collection.remove(f"k{number}")
    assert collection.upsert("again", VALUE, RAW).success


def test_evicted_documents_are_deletions_to_a_consumer(make_collection, node):
    collection = make_collection("evicting", EvictionPolicyType.NOT_RECENTLY_USED)
    before, count = 70, 110
    for number in range(before):
        assert collection.upsert(f"k{number}", VALUE, RAW).success
    with follow_bucket(node, "evicting", "static") as program:
        program.read_until(lambda lines: sum(map(is_mutation, lines)) == before)
        for number in range(before, count):
            assert collection.upsert(f"k{number}", VALUE, RAW).success
        evicted = {f"k{number}" for number in range(count) if not collection.exists(f"k{number}").exists}
        assert 0 < len(evicted) < before
        assert "k0" in evicted
        deleted: set[str] = set()
        while deleted != evicted:
            lines = [line for line in program.read_until(bool) if not is_mutation(line)]
            assert not collect_keys(lines, "expiration")
            deleted |= collect_keys(lines, "deletion")
            assert deleted <= evicted
    with memcached_client(node, "evicting") as client:
        assert client.stats()["vb_active_auto_delete_count"] == str(len(evicted))


def is_mutation(line):
    """Return whether a line is a mutation, without parsing its megabyte."""
    return line.startswith('{"event":"mutation"')
