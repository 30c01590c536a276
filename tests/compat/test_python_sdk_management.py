"""Couchbase's Python SDK: management of scopes, collections, buckets and users over HTTP."""

from datetime import timedelta

import pytest

from tests.compat.installed import require_package

require_package("couchbase")

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.exceptions import (
    BucketAlreadyExistsException,
    BucketDoesNotExistException,
    BucketNotFlushableException,
    CollectionAlreadyExistsException,
    CollectionNotFoundException,
    DocumentNotFoundException,
    KeyspaceNotFoundException,
    ScopeAlreadyExistsException,
    ScopeNotFoundException,
    UnAmbiguousTimeoutException,
    UserNotFoundException,
)
from couchbase.management.buckets import BucketSettings, BucketType, CreateBucketSettings
from couchbase.management.collections import CreateCollectionSettings, UpdateCollectionSettings
from couchbase.management.users import Role
from couchbase.management.users import User as SdkUser
from couchbase.options import ClusterOptions

from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users

DROPPED_ERRORS = (
    KeyspaceNotFoundException,
    CollectionNotFoundException,
    ScopeNotFoundException,
    UnAmbiguousTimeoutException,
)
SHORT_TIMEOUT = timedelta(seconds=2)


@pytest.fixture
def manager(bucket):
    return bucket.collections()


def list_collection_names(manager):
    """Return the names of all collections, each as `scope.collection`."""
    return {f"{scope.name}.{one.name}" for scope in manager.get_all_scopes() for one in scope.collections}


def test_collections_are_created_changed_and_dropped(bucket, manager, collection):
    manager.create_scope("brewing")
    manager.create_collection("brewing", "beers")
    manager.create_collection("brewing", "hops")
    assert {"_default._default", "brewing.beers", "brewing.hops"} <= list_collection_names(manager)
    beers, hops = (bucket.scope("brewing").collection(name) for name in ("beers", "hops"))
    beers.upsert("k", "a beer")
    hops.upsert("k", "a hop")
    assert (beers.get("k").value, hops.get("k").value) == ("a beer", "a hop")
    assert not collection.exists("k").exists
    manager.drop_collection("brewing", "hops")
    assert "brewing.hops" not in list_collection_names(manager)
    with pytest.raises(DROPPED_ERRORS):
        hops.get("k", timeout=SHORT_TIMEOUT)
    assert beers.get("k").value == "a beer"
    manager.create_collection("brewing", "hops")  # again: a new collection with the same name
    with pytest.raises(DocumentNotFoundException):
        hops.get("k")
    manager.drop_scope("brewing")
    assert not {name for name in list_collection_names(manager) if name.startswith("brewing.")}
    with pytest.raises(DROPPED_ERRORS):
        beers.get("k", timeout=SHORT_TIMEOUT)


def test_existing_and_missing_collections_are_reported(manager):
    manager.create_scope("twice")
    with pytest.raises(ScopeAlreadyExistsException):
        manager.create_scope("twice")
    manager.create_collection("twice", "c")
    with pytest.raises(CollectionAlreadyExistsException):
        manager.create_collection("twice", "c")
    with pytest.raises(ScopeNotFoundException):
        manager.create_collection("nowhere", "c")
    with pytest.raises(CollectionNotFoundException):
        manager.drop_collection("twice", "nothing")
    with pytest.raises(ScopeNotFoundException):
        manager.drop_scope("nowhere")
    manager.drop_scope("twice")


def test_collection_max_ttl_expires_documents(bucket, manager, wait_until):
    manager.create_scope("short")
    manager.create_collection("short", "lived", CreateCollectionSettings(max_expiry=timedelta(seconds=1)))
    (scope,) = [scope for scope in manager.get_all_scopes() if scope.name == "short"]
    assert [one.max_expiry for one in scope.collections] == [timedelta(seconds=1)]
    collection = bucket.scope("short").collection("lived")
    collection.upsert("k", 1)
    wait_until(lambda: not collection.exists("k").exists)
    manager.update_collection("short", "lived", UpdateCollectionSettings(max_expiry=timedelta(hours=1)))
    (scope,) = [scope for scope in manager.get_all_scopes() if scope.name == "short"]
    assert [one.max_expiry for one in scope.collections] == [timedelta(hours=1)]
    manager.drop_scope("short")


def test_buckets_are_created_changed_and_dropped(cluster, wait_until):
    manager = cluster.buckets()
    settings = CreateBucketSettings(
        name="made", bucket_type=BucketType.EPHEMERAL, ram_quota_mb=100, num_replicas=0, flush_enabled=True
    )
    manager.create_bucket(settings)
    with pytest.raises(BucketAlreadyExistsException):
        manager.create_bucket(settings)
    wait_until(lambda: "made" in {one.name for one in manager.get_all_buckets()})
    found = manager.get_bucket("made")
    assert (found.name, found.bucket_type, found.num_replicas) == ("made", BucketType.EPHEMERAL, 0)
    assert found.flush_enabled
    collection = cluster.bucket("made").default_collection()
    collection.upsert("k", 1)
    manager.flush_bucket("made")
    wait_until(lambda: not collection.exists("k").exists)
    collection.upsert("k", 2)
    manager.update_bucket(BucketSettings(name="made", flush_enabled=False, ram_quota_mb=128))
    with pytest.raises(BucketNotFlushableException):
        manager.flush_bucket("made")
    assert collection.get("k").value == 2
    manager.drop_bucket("made")
    with pytest.raises(BucketDoesNotExistException):
        manager.get_bucket("made")
    with pytest.raises(BucketDoesNotExistException):
        manager.drop_bucket("made")


def test_initial_buckets_are_listed(cluster):
    assert {"default", "beer"} <= {one.name for one in cluster.buckets().get_all_buckets()}


def test_bucket_settings_that_were_read_can_be_sent_back(cluster):
    buckets = cluster.buckets()
    settings = buckets.get_bucket("beer")
    assert settings.ram_quota_mb >= 100
    buckets.update_bucket(settings)
    assert buckets.get_bucket("beer") == settings


def test_users_are_created_changed_and_dropped(tmp_path):
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        accounts["root"] = make_account(User.from_texts("root", ["admin"]), "wonderland")
    with Node.running(["beer"], vbuckets=16, users=path) as node:
        cluster = Cluster(
            f"couchbase://127.0.0.1:{node.kv_port}", ClusterOptions(PasswordAuthenticator("root", "wonderland"))
        )
        try:
            cluster.bucket("beer")
            users = cluster.users()
            bob = SdkUser(username="bob", password="secret", roles=[Role(name="data_reader", bucket="beer")])
            users.upsert_user(bob)
            assert {one.user.username for one in users.get_all_users()} == {"bob", "root"}
            assert [role.name for role in users.get_user("bob").user.roles] == ["data_reader"]
            assert "data_dcp_reader" in {described.role.name for described in users.get_roles()}
            users.drop_user("bob")
            with pytest.raises(UserNotFoundException):
                users.get_user("bob")
        finally:
            cluster.close()
