"""Couchbase's Python SDK: documents, counters, expiry times, locks and durability."""

from datetime import timedelta

import pytest

from tests.compat.installed import require_package
from tests.node.wire_client import connected
from tests.patience import PATIENCE

require_package("couchbase")

from couchbase import subdocument
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.diagnostics import ClusterState, PingState, ServiceType
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import (
    AuthenticationException,
    BucketNotFoundException,
    CasMismatchException,
    CouchbaseException,
    DocumentExistsException,
    DocumentLockedException,
    DocumentNotFoundException,
    DocumentNotLockedException,
    DurabilityImpossibleException,
    DurabilityInvalidLevelException,
    InvalidArgumentException,
    UnAmbiguousTimeoutException,
)
from couchbase.management.buckets import BucketType, CreateBucketSettings
from couchbase.options import (
    ClusterOptions,
    ClusterTimeoutOptions,
    DecrementOptions,
    DeltaValue,
    GetOptions,
    IncrementOptions,
    PingOptions,
    ReplaceOptions,
    SignedInt64,
    UpsertOptions,
)
from couchbase.transcoder import RawBinaryTranscoder, RawStringTranscoder

DURABLE = [
    DurabilityLevel.MAJORITY,
    DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE,
    DurabilityLevel.PERSIST_TO_MAJORITY,
]
SHORT_TIMEOUTS = ClusterTimeoutOptions(bootstrap_timeout=timedelta(seconds=5), connect_timeout=timedelta(seconds=5))
"""Short timeouts for connections that fail."""


@pytest.fixture
def another_cluster(node):
    """A separate connection for temporary buckets: a client requests the map of each bucket that it has opened."""
    options = ClusterOptions(PasswordAuthenticator(node.user, node.password), timeout_options=SHORT_TIMEOUTS)
    cluster = Cluster(node.url, options)
    yield cluster
    cluster.close()


@pytest.fixture
def patient_collection(collection, node):
    """The default collection, empty. The SDK's default of 2.5 s is short for 18 MiB on a busy machine."""
    timeouts = ClusterTimeoutOptions(kv_timeout=timedelta(seconds=PATIENCE))
    authenticator = PasswordAuthenticator(node.user, node.password)
    cluster = Cluster(node.url, ClusterOptions(authenticator, timeout_options=timeouts))
    yield cluster.bucket("default").default_collection()
    cluster.close()


def test_large_document_is_stored_changed_and_deleted(patient_collection):
    collection = patient_collection
    text = "y" * (18 << 20)
    inserted = collection.insert("large", {"n": 1, "text": text})
    found = collection.get("large")
    assert found.content_as[dict] == {"n": 1, "text": text}
    assert found.cas == inserted.cas
    counted = collection.mutate_in("large", [subdocument.increment("n", 4), subdocument.upsert("_x", 1, xattr=True)])
    looked_up = collection.lookup_in("large", [subdocument.get("n"), subdocument.count(""), subdocument.get("text")])
    assert [looked_up.content_as[kind](at) for at, kind in enumerate((int, int, str))] == [5, 2, text]
    assert looked_up.cas == counted.cas
    with pytest.raises(CasMismatchException):
        collection.replace("large", {"text": text}, ReplaceOptions(cas=inserted.cas))
    collection.replace("large", {"text": text}, ReplaceOptions(cas=counted.cas))
    assert collection.get("large").content_as[dict] == {"text": text}
    assert collection.lookup_in("large", [subdocument.get("_x", xattr=True)]).content_as[int](0) == 1
    whole = [subdocument.get("")] * 2
    with pytest.raises(CouchbaseException):  # a reply would be longer than a frame may be
        collection.lookup_in("large", whole)
    binary = collection.binary()
    collection.upsert("bytes", b"z" * (18 << 20), UpsertOptions(transcoder=RawBinaryTranscoder()))
    binary.append("bytes", b"!")
    read = collection.get("bytes", GetOptions(transcoder=RawBinaryTranscoder()))
    assert read.content_as[bytes] == b"z" * (18 << 20) + b"!"
    collection.remove("large")
    with pytest.raises(DocumentNotFoundException):
        collection.get("large")


def test_document_is_stored_changed_and_deleted(collection):
    inserted = collection.insert("k", {"n": 1})
    found = collection.get("k")
    assert found.content_as[dict] == {"n": 1}
    assert found.cas == inserted.cas
    replaced = collection.replace("k", {"n": 2}, ReplaceOptions(cas=found.cas))
    assert replaced.cas > inserted.cas
    assert collection.exists("k").exists
    removed = collection.remove("k")
    assert removed.cas > replaced.cas
    assert not collection.exists("k").exists
    with pytest.raises(DocumentNotFoundException):
        collection.get("k")


def test_change_returns_a_mutation_token(collection, bucket):
    first, second = (collection.upsert("k", n).mutation_token() for n in range(2))
    assert first.bucket_name == bucket.name
    assert (first.partition_id, first.partition_uuid) == (second.partition_id, second.partition_uuid)
    assert second.sequence_number > first.sequence_number


def test_invalid_operations_are_refused(collection):
    collection.upsert("k", 1)
    cas = collection.get("k").cas
    with pytest.raises(DocumentExistsException):
        collection.insert("k", 2)
    with pytest.raises(DocumentNotFoundException):
        collection.replace("nowhere", 2)
    with pytest.raises(DocumentNotFoundException):
        collection.remove("nowhere")
    with pytest.raises(CasMismatchException):
        collection.replace("k", 2, ReplaceOptions(cas=cas - 1))
    with pytest.raises(CasMismatchException):
        collection.remove("k", cas=cas - 1)
    assert collection.get("k").cas == cas


def test_raw_documents_are_kept(collection):
    binary, text = bytes(range(256)), "über den Dächern"
    collection.upsert("binary", binary, UpsertOptions(transcoder=RawBinaryTranscoder()))
    collection.upsert("text", text, UpsertOptions(transcoder=RawStringTranscoder()))
    assert collection.get("binary", GetOptions(transcoder=RawBinaryTranscoder())).value == binary
    assert collection.get("text", GetOptions(transcoder=RawStringTranscoder())).value == text


def test_compressed_document_is_stored(collection):
    large = {"lines": ["the same again and again"] * 20_000}
    collection.upsert("large", large)
    assert collection.get("large").content_as[dict] == large


def test_document_parts_are_read_and_changed(collection):
    collection.upsert("k", {"a": 1, "b": {"c": 2, "d": 3}})
    assert collection.get("k", GetOptions(project=["a", "b.c"])).content_as[dict] == {"a": 1, "b": {"c": 2}}


def test_append_and_prepend_extend_a_document(collection):
    raw = RawStringTranscoder()
    collection.upsert("k", "b", UpsertOptions(transcoder=raw))
    collection.binary().append("k", "c")
    collection.binary().prepend("k", "a")
    assert collection.get("k", GetOptions(transcoder=raw)).value == "abc"
    with pytest.raises(DocumentNotFoundException):
        collection.binary().append("nowhere", "c")


def test_counters_count(collection):
    binary = collection.binary()
    assert binary.increment("n", IncrementOptions(initial=SignedInt64(7))).content == 7
    assert binary.increment("n", IncrementOptions(delta=DeltaValue(5))).content == 12
    assert binary.decrement("n", DecrementOptions(delta=DeltaValue(2))).content == 10
    assert binary.decrement("n", DecrementOptions(delta=DeltaValue(99))).content == 0
    assert collection.get("n").value == 0
    with pytest.raises(DocumentNotFoundException):
        binary.increment("nowhere", IncrementOptions(initial=SignedInt64(-1)))


def read_expiry(collection, key):
    """Return the expiry time of a document, in seconds since the epoch; None: it does not expire."""
    found = collection.get(key, GetOptions(with_expiry=True)).expiry_time
    return None if found is None else found.timestamp()


def test_expiry_is_set_and_changed(collection, now):
    collection.upsert("k", 1, UpsertOptions(expiry=timedelta(hours=1)))
    assert read_expiry(collection, "k") == pytest.approx(now() + 3600, abs=60)
    collection.touch("k", timedelta(hours=2))
    assert read_expiry(collection, "k") == pytest.approx(now() + 7200, abs=60)
    assert collection.get_and_touch("k", timedelta(days=60)).value == 1
    assert read_expiry(collection, "k") == pytest.approx(now() + 60 * 86400, abs=60)
    collection.replace("k", 2, ReplaceOptions(preserve_expiry=True))
    assert read_expiry(collection, "k") == pytest.approx(now() + 60 * 86400, abs=60)
    collection.replace("k", 3)
    assert read_expiry(collection, "k") is None
    with pytest.raises(DocumentNotFoundException):
        collection.touch("nowhere", timedelta(hours=1))


def test_expired_document_is_not_found(collection, wait_until):
    collection.upsert("k", 1, UpsertOptions(expiry=timedelta(seconds=1)))
    wait_until(lambda: not collection.exists("k").exists)
    with pytest.raises(DocumentNotFoundException):
        collection.get("k")


def test_locked_document_refuses_changes(collection):
    collection.upsert("k", 1)
    locked = collection.get_and_lock("k", timedelta(seconds=20))
    assert locked.value == 1
    with pytest.raises((DocumentLockedException, UnAmbiguousTimeoutException)):
        collection.get_and_lock("k", timedelta(seconds=20), timeout=timedelta(milliseconds=300))
    with pytest.raises((DocumentLockedException, CasMismatchException)):
        collection.unlock("k", locked.cas + 1)
    collection.unlock("k", locked.cas)
    with pytest.raises(DocumentNotLockedException):
        collection.unlock("k", locked.cas)
    again = collection.get_and_lock("k", timedelta(seconds=20))
    assert collection.replace("k", 2, ReplaceOptions(cas=again.cas)).success
    assert collection.upsert("k", 3).success  # the replace has unlocked it


@pytest.mark.parametrize("level", DURABLE)
def test_bucket_on_disk_accepts_durable_writes(durable_collection, level):
    durable = ServerDurability(level)
    cas = durable_collection.upsert("k", 1, UpsertOptions(durability=durable)).cas
    assert durable_collection.replace("k", 2, ReplaceOptions(cas=cas, durability=durable)).success
    counting = IncrementOptions(durability=durable, initial=SignedInt64(7))
    assert durable_collection.binary().increment(f"n-{level}", counting).content == 7
    assert durable_collection.remove("k", durability=durable).success


@pytest.mark.parametrize("level", DURABLE)
def test_bucket_in_memory_accepts_durable_writes(collection, level):
    assert collection.upsert("k", 1, UpsertOptions(durability=ServerDurability(level))).success


def test_ephemeral_bucket_persists_nothing(another_cluster):
    settings = CreateBucketSettings(name="passing", bucket_type=BucketType.EPHEMERAL, ram_quota_mb=100, num_replicas=0)
    another_cluster.buckets().create_bucket(settings)
    collection = another_cluster.bucket("passing").default_collection()
    for level in DURABLE[1:]:
        with pytest.raises(DurabilityInvalidLevelException):
            collection.upsert("k", 1, UpsertOptions(durability=ServerDurability(level)))
    assert not collection.exists("k").exists
    another_cluster.buckets().drop_bucket("passing")


def test_impossible_majority_is_reported(another_cluster):
    """A bucket with one replica needs two nodes for a majority."""
    another_cluster.buckets().create_bucket(CreateBucketSettings(name="replicated", num_replicas=1, ram_quota_mb=100))
    collection = another_cluster.bucket("replicated").default_collection()
    assert collection.upsert("k", 1).success
    with pytest.raises(DurabilityImpossibleException):
        collection.upsert("k", 2, UpsertOptions(durability=ServerDurability(DurabilityLevel.MAJORITY)))
    assert collection.get("k").value == 1
    another_cluster.buckets().drop_bucket("replicated")


def test_many_documents_are_stored_and_read(collection):
    documents = {f"key-{number}": {"n": number, "text": "x" * number} for number in range(1000)}
    assert collection.upsert_multi(documents).all_ok
    found = collection.get_multi(list(documents))
    assert found.all_ok
    assert {key: result.value for key, result in found.results.items()} == documents
    missing = collection.get_multi(["key-1", "nowhere"])
    assert not missing.all_ok
    assert isinstance(missing.exceptions["nowhere"], DocumentNotFoundException)


def test_limits_of_keys_and_values_are_reported(collection):
    raw = RawBinaryTranscoder()
    for length in (1, 246):
        collection.upsert("k" * length, length)
        assert collection.get("k" * length).value == length
    with pytest.raises(InvalidArgumentException):
        collection.upsert("k" * 251, 1)
    big = bytes(range(256)) * (20 * 4096)
    collection.upsert("big", big, UpsertOptions(transcoder=raw))
    assert collection.get("big", GetOptions(transcoder=raw)).value == big


def test_ping_and_diagnostics(cluster, bucket, collection):
    collection.upsert("k", 1)  # opens a connection
    reports = bucket.ping(PingOptions(service_types=[ServiceType.KeyValue])).endpoints[ServiceType.KeyValue]
    assert reports
    assert {report.state for report in reports} == {PingState.OK}
    assert cluster.diagnostics().state is ClusterState.Online


def test_missing_replica_is_reported(collection):
    collection.upsert("k", 1)
    assert collection.get_any_replica("k").value == 1
    assert [(found.value, found.is_replica) for found in collection.get_all_replicas("k")] == [(1, False)]


def test_missing_bucket_is_reported(another_cluster):
    """The client retries until its timeout, because the bucket may be created meanwhile."""
    with pytest.raises((BucketNotFoundException, UnAmbiguousTimeoutException)):
        another_cluster.bucket("nowhere")


@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_wrong_password_is_refused(tls_node, user):
    options = ClusterOptions(PasswordAuthenticator(user, "wrong"), timeout_options=SHORT_TIMEOUTS)
    with pytest.raises(AuthenticationException):
        Cluster(tls_node.plain_url, options)


def test_client_connects_over_tls(tls_node, connect_cluster):
    cluster = connect_cluster(tls_node.url, "alice", "wonderland", cert_path=str(tls_node.files / "ca.pem"))
    collection = cluster.bucket("default").default_collection()
    collection.upsert("over TLS", {"n": 1})
    assert collection.get("over TLS").content_as[dict] == {"n": 1}
    assert [scope.name for scope in cluster.bucket("default").collections().get_all_scopes()] == ["_default"]


def test_client_certificate_logs_in(tls_node, connect_cluster):
    files = {
        name: str(tls_node.files / file)
        for name, file in (("cert_path", "client.pem"), ("key_path", "client.key"), ("trust_store_path", "ca.pem"))
    }
    collection = connect_cluster(tls_node.url, **files).bucket("default").default_collection()
    collection.upsert("by certificate", 1)
    assert collection.get("by certificate").value == 1


def test_untrusted_certificate_is_refused(tls_node):
    options = ClusterOptions(PasswordAuthenticator("alice", "wonderland"), timeout_options=SHORT_TIMEOUTS)
    with pytest.raises((CouchbaseException, UnAmbiguousTimeoutException)):
        Cluster(tls_node.url, options)


def test_reader_cannot_write(tls_node, connect_cluster):
    connect_cluster(tls_node.plain_url, "alice", "wonderland").bucket("default").default_collection().upsert(
        "read me", 1
    )
    collection = connect_cluster(tls_node.plain_url, "reader", "only-that").bucket("default").default_collection()
    assert collection.get("read me").value == 1
    with pytest.raises(AuthenticationException):
        collection.upsert("read me", 2)
    assert collection.get("read me").value == 1


def test_documents_of_two_nodes_are_reached(connect_cluster, penstock_cluster):
    """Each node has half of the vbuckets: the client finds the node of a document by the cluster map."""
    cluster = penstock_cluster(2, vbuckets=64, bucket="beer")
    collection = connect_cluster(cluster.url).bucket("beer").default_collection()
    documents = {f"key-{number}": {"n": number} for number in range(300)}
    assert collection.upsert_multi(documents).all_ok
    found = collection.get_multi(list(documents)).results
    assert {key: result.value for key, result in found.items()} == documents
    counts = []
    for each in cluster.nodes:
        with connected(each.node, "beer") as client:
            counts.append(int(client.stats()["curr_items"]))
    assert sum(counts) == len(documents)
    assert min(counts) > 100
