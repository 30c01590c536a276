"""Ephemeral buckets at their quota: filled by Couchbase's Python client, followed by go-dcp.

java-dcp-client with persistence polling gets nothing from an ephemeral bucket, here and from real servers.
"""

import base64
import random
from datetime import timedelta

import pytest

from tests.compat.installed import need
from tests.compat.test_go_dcp import follow, keys_of
from tests.node.wire_client import connected as memcached_client

need("couchbase")

from couchbase.exceptions import TemporaryFailException  # noqa: E402
from couchbase.management.buckets import BucketType, CreateBucketSettings, EvictionPolicyType  # noqa: E402
from couchbase.options import UpsertOptions  # noqa: E402
from couchbase.transcoder import RawStringTranscoder  # noqa: E402

QUOTA_MB = 100
VALUE = base64.b64encode(random.Random(1).randbytes(3 << 18)).decode()  # 1 MiB that the client does not compress
RAW = UpsertOptions(transcoder=RawStringTranscoder(), timeout=timedelta(seconds=20))


@pytest.fixture
def full(connected, node):
    """Make an ephemeral bucket with an eviction policy, and return its default collection."""
    buckets = connected(node.url).buckets()
    made = []

    def make(name, policy):
        settings = CreateBucketSettings(
            name=name,
            bucket_type=BucketType.EPHEMERAL,
            ram_quota_mb=QUOTA_MB,
            num_replicas=0,
            eviction_policy=policy,
        )
        buckets.create_bucket(settings)
        made.append(name)
        assert buckets.get_bucket(name).eviction_policy == policy
        return connected(node.url).bucket(name).default_collection()

    yield make
    for name in made:
        buckets.drop_bucket(name)


def test_without_eviction_the_client_reports_a_temporary_failure(full, node):
    """It knows ENOMEM as that, and does not try again. It tries again after ETMPFAIL, if a rewrite runs just then."""
    collection = full("failing", EvictionPolicyType.NO_EVICTION)
    stored = 0
    with pytest.raises(TemporaryFailException, match="'status_code': 130, 'retry_attempts'"):  # noqa: PT012 - which of them fails is the question
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


def test_evicted_documents_are_deletions_to_a_consumer(full, node):
    collection = full("evicting", EvictionPolicyType.NOT_RECENTLY_USED)
    before, count = 70, 110
    for number in range(before):
        assert collection.upsert(f"k{number}", VALUE, RAW).success
    with follow(node, "evicting", "static") as program:
        program.read_until(lambda lines: sum(map(is_mutation, lines)) == before)
        for number in range(before, count):
            assert collection.upsert(f"k{number}", VALUE, RAW).success
        gone = {f"k{number}" for number in range(count) if not collection.exists(f"k{number}").exists}
        assert 0 < len(gone) < before
        assert "k0" in gone
        deleted: set[str] = set()
        while deleted != gone:
            lines = [line for line in program.read_until(bool) if not is_mutation(line)]
            assert not keys_of(lines, "expiration")
            deleted |= keys_of(lines, "deletion")
            assert deleted <= gone
    with memcached_client(node, "evicting") as client:
        assert client.stats()["vb_active_auto_delete_count"] == str(len(gone))


def is_mutation(line):
    """Tell it without parsing the line, which has a megabyte."""
    return line.startswith('{"event":"mutation"')
