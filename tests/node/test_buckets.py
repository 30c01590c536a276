"""Buckets that are created, changed, flushed and deleted while a node runs."""

import asyncio
import json
import subprocess
import sys
import threading

import pytest

from penstock.errors import NotSupported, StoreDamaged, StoreRefused, UsageError
from penstock.node import Node
from penstock.node.auth.roles import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.node.buckets.bucket_list import MAX_BUCKETS
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Flush, GetClusterConfig, Noop, SelectBucket
from tests.node.wire_client import connected
from tests.patience import PATIENCE

S = Status


def run_on_loop(node, coroutine):
    """Run a coroutine on the node's event loop and return its result."""
    return asyncio.run_coroutine_threadsafe(coroutine, node.loop).result(PATIENCE)


def create_bucket(node, name, **spec):
    return run_on_loop(node, node.buckets.create(BucketSpec(**{"name": name, "vbuckets": 4, **spec})))


def delete_bucket(node, name):
    run_on_loop(node, node.buckets.delete(name))


WRONG = [
    ({"name": "with space"}, "'with space'"),
    ({"name": ".."}, "other characters than dots"),
    ({"name": "~beer"}, "'~beer'"),
    ({"kind": "sasl"}, "'sasl'"),
    ({"vbuckets": 3}, "3 vbuckets"),
    ({"vbuckets": 131072}, "131072"),
    ({"replicas": 4}, "4 replicas"),
    ({"max_ttl": -1}, "-1 s"),
    ({"quota_bytes": -5}, "-5"),
    ({"eviction": "nruEviction"}, "'nruEviction' of a bucket of type couchbase: expected valueOnly or fullEviction"),
    ({"kind": "ephemeral", "eviction": "valueOnly"}, "expected noEviction or nruEviction"),
    ({"retention_seconds": -1.0}, "-1.0"),
    ({"conflict_resolution": "custom"}, "'custom'"),
    ({"storage_backend": "tape"}, "'tape'"),
]


@pytest.mark.parametrize(("fields", "found"), WRONG)
def test_invalid_specs_are_refused_in_one_sentence(fields, found):
    with pytest.raises(UsageError, match="expected") as raised:
        BucketSpec(**{"name": "beer", **fields})
    assert found in str(raised.value)
    assert "\n" not in str(raised.value)


SPECS = [
    BucketSpec(name="beer"),
    BucketSpec(name="beer", kind="ephemeral", vbuckets=16, flush_enabled=False, replicas=2),
    BucketSpec(name="beer", kind="memcached", vbuckets=64),
    BucketSpec(name="beer", conflict_resolution="lww", quota_bytes=5, max_ttl=7, retention_seconds=0.5),
]


@pytest.mark.parametrize("spec", SPECS)
def test_spec_is_restored_from_its_properties(spec):
    kept = json.loads(json.dumps(spec.list_properties()))
    assert BucketSpec.from_properties("beer", spec.vbuckets, {**kept, "of a later version": 1}) == spec


@pytest.mark.parametrize("properties", [{"kind": 5}, {"max_ttl": "x"}, {"quota_bytes": []}, {"flush_enabled": "maybe"}])
def test_invalid_properties_are_refused(properties):
    with pytest.raises(UsageError):
        BucketSpec.from_properties("beer", 4, properties)


def test_properties_list_only_differences_from_the_defaults():
    base = BucketSettings(memory_bytes=9, retention_seconds=3.0, conflict_resolution="lww")
    assert BucketSpec(name="beer").make_settings(base) == base
    own = BucketSpec(name="beer", conflict_resolution="seqno", quota_bytes=5, retention_seconds=0.0, max_ttl=7)
    settings = own.make_settings(base)
    assert (settings.conflict_resolution, settings.memory_bytes, settings.max_ttl) == ("seqno", 5, 7)
    assert settings.retention_seconds == 0.0


def test_bucket_is_created_used_and_deleted(node):
    create_bucket(node, "wine", conflict_resolution="lww")
    with connected(node, "wine") as client, connected(node, "beer") as other:
        assert client.set(b"k", b"v").specific == S.SUCCESS
        assert node.url("wine").endswith("/wine")
        assert json.loads(client.ask(GetClusterConfig()).value)["nodesExt"][0]["services"]["kv"] == node.kv_port
        delete_bucket(node, "wine")
        assert client.ended()
        assert other.status(Noop()) == S.SUCCESS
        assert other.status(SelectBucket(key=b"wine")) == S.KEY_ENOENT
    create_bucket(node, "wine")
    with connected(node, "wine") as client:
        assert client.get(b"k").specific == S.KEY_ENOENT


def test_deleted_bucket_closes_its_streams(node):
    create_bucket(node, "wine")
    with connected(node, "wine") as client:
        client.open()
        assert client.stream(0).specific == S.SUCCESS
        delete_bucket(node, "wine")
        assert client.ended()


def test_invalid_creations_and_deletions_are_refused(node):
    with pytest.raises(UsageError, match="bucket 'beer' exists already"):
        create_bucket(node, "beer")
    with pytest.raises(UsageError, match="no bucket 'wine'; expected one of default, beer"):
        delete_bucket(node, "wine")
    for number in range(MAX_BUCKETS - 2):
        create_bucket(node, f"one-{number}", vbuckets=1)
    with pytest.raises(UsageError, match=f"{MAX_BUCKETS} buckets exist"):
        create_bucket(node, "wine")


def test_concurrent_creations_make_one_bucket(node):
    async def all_at_once():
        making = [node.buckets.create(BucketSpec(name="wine", vbuckets=1)) for _ in range(10)]
        return await asyncio.gather(*making, return_exceptions=True)

    made = run_on_loop(node, all_at_once())
    assert sorted(isinstance(one, UsageError) for one in made) == [False] + [True] * 9


def test_stopping_node_creates_no_bucket():
    async def run_node():
        node = await Node.start(port=0, vbuckets=4)
        await node.stop()
        with pytest.raises(UsageError, match="stopping"):
            await node.buckets.create(BucketSpec(name="wine", vbuckets=4))

    asyncio.run(run_node())


def test_mirror_bucket_cannot_be_deleted(node):
    with Node.running(follow=node.url("beer")) as follower:
        with pytest.raises(UsageError, match="mirrors"):
            delete_bucket(follower, "beer")
        assert "beer" in follower.buckets


@pytest.mark.parametrize("kind", ["couchbase", "ephemeral", "memcached"])
def test_bucket_directory_keeps_the_spec(tmp_path, kind):
    spec = BucketSpec(name="wine", kind=kind, vbuckets=8, flush_enabled=False, replicas=1, quota_bytes=1 << 30)
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node:
        made = run_on_loop(node, node.buckets.create(spec))
        uuid = made.uuid
        with connected(node, "wine") as client:
            client.set(b"k", b"v")

        async def collect():
            made.change_manifest(made.store.manifests.current.with_scope("cellar").with_collection("cellar", "red"))

        run_on_loop(node, collect())
    with Node.running(data_dir=tmp_path) as node:
        assert list(node.buckets) == ["beer", "wine"]
        served = node.buckets["wine"]
        assert (served.spec, served.uuid) == (spec, uuid)
        assert len(served.store.vbuckets) == (1 if kind == "memcached" else 8)
        assert served.store.manifests.current.find("cellar", "red").id == 9
        assert served.store.settings.memory_bytes == 1 << 30
        with connected(node, "wine") as client:
            assert client.status(Flush()) == S.NOT_SUPPORTED
            assert (client.get(b"k").value == b"v") is (kind == "couchbase")
        delete_bucket(node, "wine")
        delete_bucket(node, "beer")
    assert [path.name for path in tmp_path.iterdir()] == ["node.json"]
    with Node.running(data_dir=tmp_path) as node:
        assert list(node.buckets) == ["default"]


def test_remains_of_a_deleted_bucket_are_removed_at_the_start(tmp_path):
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path):
        pass
    (tmp_path / "beer").rename(tmp_path / "~beer-0badcafe")
    (tmp_path / "half").mkdir()  # a bucket whose creation was interrupted
    (tmp_path / "half" / "lock").touch()
    (tmp_path / "notes.txt").write_text("not a bucket")
    with Node.running(["wine"], vbuckets=4, data_dir=tmp_path) as node:
        assert list(node.buckets) == ["wine"]
        create_bucket(node, "half")
    assert {path.name for path in tmp_path.iterdir()} == {"half", "wine", "notes.txt", "node.json"}


def test_copied_bucket_directory_is_left_alone(tmp_path, caplog):
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path):
        pass
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "bucket.json").write_bytes((tmp_path / "beer" / "bucket.json").read_bytes())
    with Node.running(data_dir=tmp_path) as node:
        assert list(node.buckets) == ["beer"]
    assert "is a copy of bucket beer: it is ignored" in caplog.text


def test_two_nodes_can_share_a_data_directory_but_no_bucket(tmp_path, caplog):
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as first:
        create_bucket(first, "fleeting", kind="ephemeral")
        with Node.running(["wine"], vbuckets=4, data_dir=tmp_path) as second:
            assert list(second.buckets) == ["wine"]
            assert caplog.text.count("was not opened") == 2
            with pytest.raises(UsageError, match="'fleeting' exists already"):
                create_bucket(second, "fleeting", kind="ephemeral")
    with pytest.raises(StoreRefused, match="4 vbuckets, not"), Node.running(["beer"], data_dir=tmp_path, vbuckets=16):
        pass


def test_bucket_directory_without_a_readable_record_is_reported(tmp_path, caplog):
    with Node.running(["beer", "wine"], vbuckets=4, data_dir=tmp_path) as node:
        node.buckets["wine"].store.record.set_properties({"kind": "tape"})
    (tmp_path / "beer" / "bucket.json").write_text("{}")
    with pytest.raises(StoreRefused, match="'tape'"), Node.running(data_dir=tmp_path):
        pass
    with (
        pytest.raises(StoreDamaged, match="does not describe a bucket"),
        Node.running(["beer"], vbuckets=4, data_dir=tmp_path),
    ):
        pass
    caplog.clear()
    with Node.running(["water"], vbuckets=4, data_dir=tmp_path) as node:
        assert list(node.buckets) == ["water"]
    assert caplog.text.count("a bucket was not opened") == 2


def test_flush_depends_on_the_bucket_setting(node):
    create_bucket(node, "open", flush_enabled=True)
    create_bucket(node, "shut", flush_enabled=False)
    for name, status in (("open", S.SUCCESS), ("shut", S.NOT_SUPPORTED)):
        with connected(node, name) as client:
            client.set(b"k", b"v")
            assert client.status(Flush()) == status
            assert (client.get(b"k").specific == S.SUCCESS) is (name == "shut")
    with pytest.raises(NotSupported, match="flush is disabled"):
        run_on_loop(node, node.buckets.flush("shut"))
    with connected(node, "open") as client:
        client.set(b"k", b"v")
        run_on_loop(node, node.buckets.flush("open"))
        assert client.get(b"k").specific == S.KEY_ENOENT


async def change_spec(node, spec):
    node.buckets.change_spec(spec)


def test_running_bucket_can_be_changed(tmp_path):
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node:
        served = node.buckets["beer"]
        before = served.cluster_map.revision
        changed = BucketSpec(name="beer", vbuckets=4, quota_bytes=1 << 30, flush_enabled=False, replicas=1, max_ttl=9)
        run_on_loop(node, change_spec(node, changed))
        assert served.store.settings.memory_bytes == 1 << 30
        assert served.store.settings.max_ttl == 9
        assert not served.can_be_flushed
        with connected(node, "beer") as client:
            document = json.loads(client.ask(GetClusterConfig()).value)
        assert document["rev"] > before
        assert document["vBucketServerMap"]["vBucketMap"] == [[0, -1]] * 4
    with Node.running(data_dir=tmp_path) as node:
        assert node.buckets["beer"].spec == changed


def test_plain_cache_has_one_vbucket_and_accepts_all_vbuckets(node):
    create_bucket(node, "cache", kind="memcached", vbuckets=1024)
    with connected(node, "cache") as client:
        for number in range(10):
            assert client.set(b"key-%d" % number, b"v").specific == S.SUCCESS
            assert client.get(b"key-%d" % number).value == b"v"
        document = json.loads(client.ask(GetClusterConfig()).value)
    assert document["nodeLocator"] == "ketama"
    assert "vBucketServerMap" not in document


# Killed nodes

BUSY = """
import asyncio, sys
from penstock.node import Node
from penstock.node.buckets.bucket_spec import BucketSpec

async def run():
    node = await Node.start(port=0, buckets=["beer"], vbuckets=2, data_dir=sys.argv[1])
    for number in range(int(sys.argv[2]), 1000000):
        kind = ("couchbase", "ephemeral")[number % 2]
        await node.buckets.create(BucketSpec(name=f"b{number}", kind=kind, vbuckets=2, replicas=1))
        print("made", number, flush=True)
        if number % 3:
            print("ending", number, flush=True)
            await node.buckets.delete(f"b{number}")
            print("ended", number, flush=True)

asyncio.run(run())
"""


@pytest.mark.process
def test_killed_node_leaves_whole_buckets_or_none(tmp_path):
    data_dir = tmp_path / "data"
    state: dict[int, str] = {}
    for life, lines in enumerate((1, 2, 5, 6, 13)):
        child = subprocess.Popen(
            [sys.executable, "-c", BUSY, str(data_dir), str(100 * life)], stdout=subprocess.PIPE, text=True
        )
        with child, KillTimer(child):
            assert child.stdout is not None
            for _ in range(lines):
                action, number = child.stdout.readline().split()
                state[int(number)] = action
            child.kill()
            for line in child.stdout:  # lines from before its end
                action, number = line.split()
                state[int(number)] = action
        with Node.running(data_dir=data_dir) as node:
            present = {int(name[1:]) for name in node.buckets if name != "beer"}
            for found in present:
                assert state.get(found, "made") != "ended"
                assert node.buckets[f"b{found}"].spec.replicas == 1
                assert (node.buckets[f"b{found}"].spec.kind == "ephemeral") is bool(found % 2)
            assert {made for made, action in state.items() if action == "made"} <= present
        assert not [path.name for path in data_dir.iterdir() if path.name.startswith("~")]


class KillTimer:
    """Kills a process that is still running after PATIENCE seconds."""

    def __init__(self, child):
        self.timer = threading.Timer(PATIENCE, child.kill)

    def __enter__(self):
        self.timer.start()

    def __exit__(self, *error):
        self.timer.cancel()


def test_directory_of_a_former_member_opens_as_a_node_that_stands_alone(tmp_path, caplog):
    """Earlier versions wrote cluster.json beside the buckets, and the cluster's uuid into the file of users."""
    users = tmp_path / "users.json"
    with change_users(users) as accounts:
        accounts["root"] = make_account(User.from_texts("root", ["admin"]), "secret-password")
    users.write_text(json.dumps({**json.loads(users.read_text()), "cluster": "2f"}))
    data = tmp_path / "data"
    with Node.running(["beer"], vbuckets=4, data_dir=data) as node, connected(node, "beer") as client:
        client.set(b"k", b"v")
    (data / "cluster.json").write_text('{"crc32c": 1, "fields": {"node": "1f"}}')
    with Node.running(vbuckets=4, data_dir=data, users=users) as node:
        assert [*node.buckets] == ["beer"]
        assert node.buckets["beer"].store.vbuckets[0].changes.high_seqno == 1
    (record,) = (one for one in caplog.records if "cluster.json" in one.getMessage())
    assert "was a member of a cluster; it serves its buckets alone now" in record.getMessage()
    with change_users(users) as accounts:
        assert [*accounts] == ["root"]
