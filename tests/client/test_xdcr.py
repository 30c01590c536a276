"""Replication between two buckets on two nodes, with different numbers of vbuckets."""

import asyncio
import logging
from contextlib import contextmanager

import pytest

import penstock
from penstock import BucketReplication, Node, XdcrOptions, connect
from penstock.client.connect.address import parse_address
from penstock.client.documents.document import compute_vbucket
from penstock.client.documents.window_writer import RefusedRows
from penstock.client.login.credentials import Credentials
from penstock.errors import Error, NoSuchCollection, PositionOfOtherBucket, Unreachable, UsageError
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.wire.codec.constants import MAX_VALUE, Feature
from penstock.wire.codec.flags import Datatype, WithMetaFlag
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import DelWithMeta, SetWithMeta
from penstock.wire.messages.observe import StopPersistence
from penstock.wire.values.snappy import deflate
from tests.client.peer import RestartableNode, in_loop
from tests.client.replicated import create_bucket, create_collections, read_values, read_versions, replicate
from tests.node.disks import copy_files
from tests.node.serve_process import wait_for
from tests.node.wire_client import connected
from tests.patience import PATIENCE
from tests.waiting import wait_until

SOURCE_VBUCKETS, TARGET_VBUCKETS = 8, 32


@pytest.fixture
def nodes():
    with (
        Node.running(["beer"], vbuckets=SOURCE_VBUCKETS) as source,
        Node.running(["beer"], vbuckets=TARGET_VBUCKETS) as target,
    ):
        yield source, target


@pytest.fixture
def urls(nodes):
    return tuple(node.url("beer") for node in nodes)


def store(url, documents, removed=(), **options):
    async def write():
        async with connect(url) as bucket:
            await bucket.upsert_many(list(documents.items()), **options)
            await bucket.remove_many(list(removed))

    asyncio.run(write())


@contextmanager
def meta_client(node):
    """A client whose requests may have any datatype."""
    with connected(node, "beer") as client:
        yield client.hello(Feature.XATTR, Feature.JSON, Feature.SNAPPY)


def set_with_meta(client, key, value, **fields):
    vbucket = compute_vbucket(key, SOURCE_VBUCKETS)
    request = SetWithMeta(vbucket=vbucket, key=key, value=value, **{"flags": 0, "expiry": 0, **fields})
    assert client.status(request) == Status.SUCCESS


def numbered(first, behind, text="value"):
    return {f"key-{number}": b'{"n": %d, "text": "%s"}' % (number, text.encode()) for number in range(first, behind)}


# Exact copies


def test_documents_and_deletions_arrive_with_their_metadata(nodes, urls):
    store(urls[0], numbered(0, 3000), expiry=2_000_000_000)
    store(urls[0], numbered(0, 500, "again"), removed=[f"key-{number}" for number in range(200, 300)])
    done = replicate(*urls)
    assert (done.written, done.older, done.refused) == (3000, 0, 0)
    assert read_versions(urls[1]) == read_versions(urls[0])
    again = replicate(*urls)
    assert (again.written, again.older, again.received) == (0, 3000, 3000)


DOCUMENTS = {
    b"text": (b"no JSON", 0),
    b"json": (b'{"a": 1}', Datatype.JSON),
    b"xattrs": (pack_xattrs({"_sync": b"1", "user": b'{"x": 2}'}, b'{"a": 2}'), Datatype.XATTR | Datatype.JSON),
    b"binary with xattrs": (pack_xattrs({"_sync": b"1"}, b"\xff\x00"), Datatype.XATTR),
    b"compressed": (deflate(b'{"a": "%s"}' % (b"b" * 1000)), Datatype.SNAPPY | Datatype.JSON),
    b"empty": (b"", 0),
}


def test_datatypes_and_attributes_arrive_exactly(nodes, urls):
    with meta_client(nodes[0]) as client:
        for number, (key, (value, datatype)) in enumerate(DOCUMENTS.items(), 1):
            fields = {"flags": 7 * number, "expiry": 2_000_000_000 + number, "rev_seqno": 10 * number}
            set_with_meta(client, key, value, datatype=datatype, new_cas=1 << 40 | number, **fields)
        gone = DelWithMeta(
            vbucket=compute_vbucket(b"gone", SOURCE_VBUCKETS),
            key=b"gone",
            value=pack_xattrs({"_sync": b"3"}, b""),
            datatype=Datatype.XATTR,
            flags=0,
            rev_seqno=2**50,
            new_cas=2**60,
            delete_time=1_700_000_000,
            options=WithMetaFlag.IS_EXPIRATION,
        )
        assert client.status(gone) == Status.SUCCESS
    assert replicate(*urls).written == len(DOCUMENTS) + 1
    versions = read_versions(urls[0])
    assert len(versions) == len(DOCUMENTS) + 1
    assert read_versions(urls[1]) == versions
    assert versions["_default", "_default", b"gone"][0] == "expiration"
    assert dict(versions["_default", "_default", b"xattrs"][-1]) == {"_sync": b"1", "user": b'{"x": 2}'}


def test_only_newer_versions_replace_those_of_the_target(nodes, urls):
    for value in (b"1", b"2", b"3"):
        store(urls[1], {"often": value})
    store(urls[0], {"often": b"source", "rare": b"source"})
    done = replicate(*urls)
    assert (done.written, done.older) == (1, 1)
    assert read_values(urls[1]) == {b"often": b"3", b"rare": b"source"}


def test_last_write_wins_in_buckets_with_lww(nodes):
    for node in nodes:
        create_bucket(node, "last", conflictResolutionType="lww")
    urls = [node.url("last") for node in nodes]
    for value in (b"1", b"2", b"3"):
        store(urls[1], {"key": value})
    store(urls[0], {"key": b"last"})
    assert replicate(*urls).written == 1
    assert read_versions(urls[1]) == read_versions(urls[0])
    assert read_values(urls[1]) == {b"key": b"last"}


def test_buckets_with_different_conflict_resolution_are_refused(nodes, urls):
    create_bucket(nodes[1], "last", conflictResolutionType="lww")
    with pytest.raises(UsageError, match="conflict resolution of the source is seqno, of the target lww"):
        replicate(urls[0], nodes[1].url("last"))


@pytest.mark.parametrize(
    ("old", "new"), [("", ""), ("127.0.0.1", "localhost"), ("couchbase://", "couchbase://localhost:1,")]
)
def test_a_bucket_is_not_replicated_to_itself(urls, old, new):
    with pytest.raises(UsageError, match="are the same bucket, expected different buckets"):
        replicate(urls[0], urls[0].replace(old, new))


def read_branch(node):
    return node.call(lambda: node.buckets["beer"].store.vbuckets[0].history.failover_log[0])


def test_a_bucket_is_not_replicated_to_its_mirror(nodes, urls):
    """The mirror has another uuid, and the same history: each change would come back by it."""
    store(urls[0], numbered(0, 3))
    with Node.running(follow=urls[0]) as mirror:
        wait_for(lambda: read_branch(mirror) == read_branch(nodes[0]), "the history of the source")
        with pytest.raises(UsageError, match="are the same bucket"):
            replicate(mirror.url("beer"), urls[0])


def test_a_state_of_another_source_is_refused(nodes, urls, tmp_path):
    """A bucket of the same name has other documents under the same seqnos."""
    state = str(tmp_path / "state")
    store(urls[0], numbered(0, 3))
    replicate(*urls, state=state)
    create_bucket(nodes[0], "second")
    with pytest.raises(PositionOfOtherBucket, match="found the bucket uuid "):
        replicate(nodes[0].url("second"), urls[1], state=state)


# Choice


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filter_key": "^key-1.$"}, {b"key-%d" % number for number in range(10, 20)}),
        ({"filter_value": "n < 5 OR text = 'b'"}, {b"key-%d" % number for number in [*range(5), 30, 31]}),
        ({"filter_key": "0$", "filter_key_exclude": "^key-[3-9]"}, {b"key-0", b"key-10", b"key-20"}),
        ({"filter_key": "0$", "filter_value": "n >= 20"}, {b"key-20", b"key-30"}),
    ],
)
def test_filters_choose_documents(urls, options, expected):
    store(urls[0], numbered(0, 30) | numbered(30, 32, "b") | {"plain": b"no JSON"})
    done = replicate(*urls, **options)
    assert read_values(urls[1]).keys() == expected
    assert (done.written, done.filtered) == (len(expected), 33 - len(expected))


def test_deletions_can_be_left_out(urls):
    store(urls[0], numbered(0, 4))
    replicate(*urls)
    store(urls[0], {}, removed=["key-1"])
    assert replicate(*urls, skip_deletions=True).filtered == 1
    assert b"key-1" in read_values(urls[1])
    assert replicate(*urls, filter_value="n = 99").written == 1, "a deletion matches every filter of values"
    assert b"key-1" not in read_values(urls[1])


def fill_collections(url, *names):
    async def write():
        async with penstock.BulkWriter(url) as writer:
            for name in names:
                assert not (await writer.upsert([f"in {name}"], [b"{}"], collection=name)).faults

    asyncio.run(write())


def places(url):
    return {(f"{scope}.{name}", key.decode()) for scope, name, key in read_versions(url)}


def test_collections_keep_their_names_or_are_mapped(nodes, urls):
    create_collections(nodes[0], "beer", "shop.hats", "shop.shoes", "lab.notes")
    create_collections(nodes[1], "beer", "shop.hats", "shop.shoes", "lab.notes", "old.caps", "old.shoes")
    names = ("shop.hats", "shop.shoes", "lab.notes")
    fill_collections(urls[0], *names)
    done = replicate(*urls, mapping=("shop=old", "shop.hats=old.caps"))
    assert (done.written, done.filtered) == (2, 1)
    assert places(urls[1]) == {("old.caps", "in shop.hats"), ("old.shoes", "in shop.shoes")}
    assert replicate(*urls).written == 3
    assert {(name, f"in {name}") for name in names} < places(urls[1])


def test_a_missing_collection_is_an_error(nodes, urls):
    create_collections(nodes[0], "beer", "shop.hats")
    fill_collections(urls[0], "shop.hats")
    with pytest.raises(Error, match=r"no collection 'shop\.hats' in .*; create it"):
        replicate(*urls)


@pytest.mark.parametrize(
    ("rule", "missing"), [("shop.hat=shop.hats", "collection 'shop.hat'"), ("shpo=shop", "scope 'shpo'")]
)
def test_mapping_of_a_name_that_the_source_lacks_is_an_error(nodes, urls, rule, missing):
    """A mapping that matches nothing replicates nothing."""
    create_collections(nodes[0], "beer", "shop.hats")
    with pytest.raises(NoSuchCollection, match=f"beer has no {missing}, which the mapping names"):
        replicate(*urls, mapping=("_default=_default", rule))
    assert replicate(*urls, mapping=("_default=_default", rule), missing_collection="wait").written == 0


def test_replication_waits_for_a_missing_collection(nodes, urls, caplog):
    create_collections(nodes[0], "beer", "shop.hats")
    fill_collections(urls[0], "shop.hats")
    store(urls[0], numbered(0, 50))

    async def run():
        options = XdcrOptions(until="now", missing_collection="wait")
        running = asyncio.create_task(BucketReplication(urls[0], urls[1], options).run())
        await wait_until(lambda: "waiting for it" in caplog.text, running)
        await asyncio.to_thread(create_collections, nodes[1], "beer", "shop.hats")
        return await running

    with caplog.at_level(logging.INFO, "penstock.client"):
        done = asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert done.refused == 0
    assert read_versions(urls[1]) == read_versions(urls[0])


def test_refused_documents_are_reported_and_the_others_arrive(nodes, urls):
    # Inflated, body and attributes together are longer than a request may be.
    long = deflate(pack_xattrs({"_sync": b'"%s"' % (b"s" * 500_000)}, b"x" * (MAX_VALUE - 100)))
    with meta_client(nodes[0]) as client:
        set_with_meta(client, b"long", long, datatype=Datatype.XATTR | Datatype.SNAPPY, rev_seqno=1, new_cas=5)
        set_with_meta(client, b"short", b"1", rev_seqno=1, new_cas=6)
    reported: list[RefusedRows] = []

    async def run():
        return await BucketReplication(urls[0], urls[1], XdcrOptions(until="now"), on_refused=reported.append).run()

    done = asyncio.run(run())
    assert (done.written, done.refused) == (1, 1)
    assert read_values(urls[1]) == {b"short": b"1"}
    (text,) = done.refusals
    assert text.startswith("key b'long': value of ")
    assert [(each.rows["key"].to_pylist(), each.faults[0].status) for each in reported] == [([b"long"], Status.E2BIG)]


def test_a_target_that_refuses_every_change_ends_the_replication(urls, tmp_path):
    store(urls[0], numbered(0, 10))
    with change_users(tmp_path / "users") as accounts:
        accounts["reader"] = make_account(User.from_texts("reader", ["data_dcp_reader[*]"]), "password", 4096)
    with Node.running(["beer"], vbuckets=4, users=tmp_path / "users") as closed:
        target = parse_address(closed.url("beer"), Credentials("reader", "password"))
        with pytest.raises(Error, match="refuses changes: EACCESS"):
            replicate(urls[0], target)


def test_roles_of_source_and_target_suffice(tmp_path):
    with change_users(tmp_path / "users") as accounts:
        for role in ("data_dcp_reader", "replication_target"):
            accounts[role] = make_account(User.from_texts(role, [f"{role}[*]"]), "password", 4096)
        accounts["admin"] = make_account(User.from_texts("admin", ["admin"]), "password", 4096)
    with Node.running(["one", "other"], vbuckets=4, users=tmp_path / "users") as node:

        async def fill():
            async with connect(node.url("one"), username="admin", password="password") as bucket:
                await bucket.upsert("key", b"value")

        asyncio.run(fill())
        source, target = (
            parse_address(node.url(name), Credentials(user, "password"))
            for name, user in (("one", "data_dcp_reader"), ("other", "replication_target"))
        )
        assert replicate(source, target).written == 1


# State


def test_a_later_replication_resumes_at_its_state(urls, tmp_path):
    state = str(tmp_path / "state")
    store(urls[0], numbered(0, 100))
    assert replicate(*urls, state=state).received == 100
    assert replicate(*urls, state=state).received == 0
    store(urls[0], numbered(95, 110, "new"), removed=["key-3"])
    assert replicate(*urls, state=state).written == 16
    assert read_versions(urls[1]) == read_versions(urls[0])


def test_a_state_of_other_options_or_a_damaged_state_is_refused(urls, tmp_path):
    state = tmp_path / "state"
    store(urls[0], numbered(0, 3))
    replicate(*urls, state=str(state), filter_key="1")
    with pytest.raises(UsageError, match="with other options: filter_key; remove it"):
        replicate(*urls, state=str(state))
    for content in (
        "",
        "[]",
        "{",
        '{"format": 2}',
        '{"format": 1, "selection": {}, "positions": [], "target_ends": {}}',
    ):
        state.write_text(content)
        with pytest.raises(Error, match="is not a state file of a replication"):
            replicate(*urls, state=str(state), filter_key="1")


def test_a_target_that_lost_its_documents_gets_them_again(tmp_path):
    state = str(tmp_path / "state")
    with Node.running(["beer"], vbuckets=SOURCE_VBUCKETS) as source:
        store(source.url("beer"), numbered(0, 100))
        for _ in range(2):
            with Node.running(["beer"], vbuckets=TARGET_VBUCKETS) as target:
                assert replicate(source.url("beer"), target.url("beer"), state=state).written == 100


def test_changes_that_a_target_lost_in_a_crash_are_sent_again(nodes, tmp_path):
    state, data = str(tmp_path / "state"), tmp_path / "data"
    source = nodes[0].url("beer")
    with Node.running(["beer"], vbuckets=TARGET_VBUCKETS, data_dir=data) as target:
        store(source, numbered(0, 50))
        assert replicate(source, target.url("beer"), state=state).written == 50
        copy_files(target, "beer", tmp_path / "crashed")
        store(source, numbered(50, 80))
        assert replicate(source, target.url("beer"), state=state).written == 30
    with Node.running(["beer"], vbuckets=TARGET_VBUCKETS, data_dir=tmp_path / "crashed") as target:
        assert read_values(target.url("beer")).keys() == numbered_keys(0, 50)
        assert replicate(source, target.url("beer"), state=state).written == 30
        assert read_versions(target.url("beer")) == read_versions(source)


def test_a_checkpoint_waits_for_the_disk_of_the_target(nodes, tmp_path):
    """The target acknowledges changes that its disk never gets. So the state must not include them."""
    state, data = str(tmp_path / "state"), tmp_path / "data"
    source = nodes[0].url("beer")
    with Node.running(["beer"], vbuckets=TARGET_VBUCKETS, data_dir=data) as target:
        url = target.url("beer") + "?retrySeconds=0.2"
        store(source, numbered(0, 50))
        replicate(source, url, state=state)
        with connected(target, "beer") as client:
            assert client.status(StopPersistence()) == Status.SUCCESS
        store(source, numbered(50, 80))
        with pytest.raises(Unreachable, match="changes in memory that are not on its disk"):
            replicate(source, url, state=state)
        assert read_values(url).keys() == numbered_keys(0, 80)
        copy_files(target, "beer", tmp_path / "crashed")
    with Node.running(["beer"], vbuckets=TARGET_VBUCKETS, data_dir=tmp_path / "crashed") as target:
        done = replicate(source, target.url("beer"), state=state)
        assert (done.received, done.written) == (30, 30)
        assert read_versions(target.url("beer")) == read_versions(source)


def test_a_source_that_lost_changes_is_followed_on_its_new_branch(nodes, tmp_path):
    """The changes of the lost branch stay at the target until a newer version replaces them, as in Couchbase."""
    state, data, target = str(tmp_path / "state"), tmp_path / "data", nodes[1].url("beer")
    with Node.running(["beer"], vbuckets=SOURCE_VBUCKETS, data_dir=data) as source:
        store(source.url("beer"), numbered(0, 20))
        replicate(source.url("beer"), target, state=state)
        copy_files(source, "beer", tmp_path / "crashed")
        store(source.url("beer"), numbered(10, 30, "lost"))
        assert replicate(source.url("beer"), target, state=state).written == 20
    with Node.running(["beer"], vbuckets=SOURCE_VBUCKETS, data_dir=tmp_path / "crashed") as source:
        url = source.url("beer")
        store(url, numbered(25, 40, "new"))
        for _ in range(2):  # the third version of these documents is newer than the lost second one
            store(url, numbered(10, 20, "new"))
        assert replicate(url, target, state=state).refused == 0
        expected = numbered(0, 10) | numbered(10, 20, "new") | numbered(20, 25, "lost") | numbered(25, 40, "new")
        assert {key.decode(): value for key, value in read_values(target).items()} == expected


# Persisted changes


def test_changes_wait_for_the_disk_of_the_source(nodes, tmp_path):
    target = nodes[1].url("beer")
    with Node.running(["beer"], vbuckets=SOURCE_VBUCKETS, data_dir=tmp_path) as source:
        url = source.url("beer") + "?retrySeconds=0.2"
        store(url, numbered(0, 10))
        replicate(url, target)
        with connected(source, "beer") as client:
            assert client.status(StopPersistence()) == Status.SUCCESS
            store(url, numbered(10, 20))
            with pytest.raises(Unreachable, match="its changes are not on disk"):
                replicate(url, target)
            assert read_values(target).keys() == numbered_keys(0, 10)
            assert replicate(url, target, unpersisted=True).written == 10
            assert read_values(target).keys() == numbered_keys(0, 20)


def numbered_keys(first, behind):
    return {f"key-{number}".encode() for number in range(first, behind)}


# Two ways


def test_two_ways_settle(urls, tmp_path):
    store(urls[0], numbered(0, 60, "a"))
    store(urls[1], numbered(30, 90, "b"))
    store(urls[1], numbered(40, 50, "newer"))
    states = [str(tmp_path / name) for name in "ab"]
    for source, target, state in ((*urls, states[0]), (*urls[::-1], states[1]), (*urls, states[0])):
        replicate(source, target, state=state)
    assert read_versions(urls[1]) == read_versions(urls[0])
    high = [count_changes(url) for url in urls]
    for source, target, state in ((*urls, states[0]), (*urls[::-1], states[1])) * 2:
        assert replicate(source, target, state=state).written == 0
    assert [count_changes(url) for url in urls] == high


def count_changes(url):
    async def count():
        async with connect(url) as bucket:
            return sum((await bucket.high_seqnos()).values())

    return asyncio.run(count())


@in_loop
async def test_continuous_replication_both_ways_converges(nodes):
    urls = [node.url("beer") for node in nodes]
    both = [BucketReplication(*urls), BucketReplication(*urls[::-1])]
    running = [asyncio.create_task(each.run()) for each in both]
    async with connect(urls[0]) as one, connect(urls[1]) as other:
        for number in range(30):
            await one.upsert(f"k{number % 7}", b"one")
            await other.upsert(f"k{number % 5}", b"other")
        await wait_until(lambda: all(each.progress.received for each in both), *running)
        while any([await each.count_lag() for each in both]):
            assert not any(task.done() for task in running)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    assert await asyncio.to_thread(read_versions, urls[0]) == await asyncio.to_thread(read_versions, urls[1])


@in_loop
async def test_restarted_target_gets_lost_changes_while_others_arrive(tmp_path):
    target = RestartableNode(vbuckets=16)
    options = XdcrOptions(state=str(tmp_path / "state"))
    with Node.running(["beer"], vbuckets=4) as source:
        async with connect(source.url("beer")) as bucket:
            replication = BucketReplication(source.url("beer"), target.url(), options)
            running = asyncio.create_task(replication.run())
            for turn in range(3):
                await bucket.upsert_many([(f"{turn}-{number}", b"x") for number in range(100)])
                await wait_until(lambda: replication.progress.written >= 100, running)
                await target.restart()
            await bucket.upsert("last", b"y")
            expected = await asyncio.to_thread(read_versions, source.url("beer"))
            while await asyncio.to_thread(read_versions, target.url()) != expected:
                assert not running.done()
        running.cancel()
        await asyncio.wait([running])
    await asyncio.to_thread(target.stop)
