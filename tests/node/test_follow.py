"""Bridges: a node that mirrors another node over one dialect, and serves consumers in all dialects."""

import asyncio
import json
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.client.bucket import Bucket
from penstock.client.connect.address import parse_address
from penstock.client.login.credentials import Credentials
from penstock.errors import AccessDenied, Error, Unreachable, UsageError
from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.mirror import delivery_writer
from penstock.store.history.failover_log import create_entry
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Event
from penstock.wire.messages.kv import Flush, GetClusterConfig, SetVbucket, Stat
from penstock.wire.messages.observe import CompactDb
from tests.client.old_server import COUCHBASE_2_5, OldServer
from tests.examples import scaled
from tests.node.watch import run, until
from tests.node.wire_client import connected
from tests.patience import PATIENCE

ACTIVE, REPLICA, PENDING, DEAD = VbucketState
STREAMED = ("dcp", "upr", "upr-draft")
"""Dialects in which the copy gets the history of the upstream."""
DIALECTS = (*STREAMED, "tap")
VBUCKETS = 4
FAR = 2_000_000_000  # an expiry, epoch seconds

vbuuids = count(1)


# Actions of the tests


def get_histories(node):
    """Return the failover logs, seqnos and counts of documents, which are equal in a copy of the history."""
    (served,) = node.buckets.values()
    return [
        (vbucket.history.failover_log, vbucket.changes.high_seqno, vbucket.history.whole_seqno, vbucket.changes.items)
        for vbucket in served.store.vbuckets
    ]


def get_documents(node):
    """Return the newest version of every document, which is equal in any copy."""
    (served,) = node.buckets.values()
    return {
        (vbucket.id, key): item._replace(seqno=0)
        for vbucket in served.store.vbuckets
        for key in list(vbucket.changes.keys.load_all())
        if (item := vbucket.get(key)) is not None
    }


def make_copy_check(node, upstream, protocol):
    """Return a function that checks whether a bridge has all changes of its upstream.

    The upstream must not change meanwhile.
    """
    get_state = get_documents if protocol == "tap" else get_histories
    expected = run(upstream, lambda: get_state(upstream))
    return lambda: get_state(node) == expected


def wait_until_copied(node, upstream, protocol):
    until(node, make_copy_check(node, upstream, protocol))
    if protocol != "tap":  # over TAP, a new connection may empty the copy again
        assert run(node, lambda: get_documents(node)) == run(upstream, lambda: get_documents(upstream))


def write_to(url, work):
    async def connect():
        async with penstock.connect(url) as bucket:
            await work(bucket)

    asyncio.run(connect())


async def fill_bucket(bucket: Bucket, turn=0):
    """Insert, overwrite and remove documents, some with an expiry."""
    await bucket.upsert_many([(f"key-{number}", b"%d of %d" % (number, turn)) for number in range(60)], flags=7)
    await bucket.upsert_many([(f"key-{number}", b"again") for number in range(0, 60, 3)], expiry=FAR)
    await bucket.remove_many([f"key-{number}" for number in range(0, 60, 5)])


def set_state(node, vbucket, state):
    with connected(node, "beer") as client:
        assert client.status(SetVbucket(vbucket=vbucket, state=state)) == Status.SUCCESS


def fail_over_to(node, number, seqno):
    """Roll a vbucket back to a seqno and start a new branch, as after a failover to a copy that has fewer changes."""
    served = node.buckets["beer"]
    vbucket = served.store.vbuckets[number]

    def go_back():
        vbucket.rollback(seqno)
        vbucket.history.failover_log = create_entry(
            vbucket.history.failover_log, 2**40 + next(vbuuids), vbucket.changes.high_seqno
        )
        served.report_event(vbucket, VbucketEvent.STATE_CHANGED)

    run(node, go_back)


@contextmanager
def run_upstream(**options):
    with Node.running(["beer"], VBUCKETS, **options) as node:
        yield node


@contextmanager
def run_bridge(node, protocol, **options):
    with Node.running(follow=node.url("beer"), protocol=protocol, **options) as copy:
        yield copy


class ReaderThread:
    """Consumer in its own thread, which rebuilds the documents until it receives the key `the end`.

    Attributes:
        documents: value and cas by vbucket and key.
        rollbacks: number of received rollbacks.
    """

    def __init__(self, url, protocol):
        self.documents = {}
        self.rollbacks = 0
        self._thread = threading.Thread(target=self._read, args=(url, protocol), daemon=True)
        self._thread.start()

    def _read(self, url, protocol):
        for batch in penstock.read_changes(url, protocol=protocol):
            for row in batch.to_pylist():
                self._apply(row)
                if row["key"] == b"the end":
                    return

    def _apply(self, row):
        if row["event"] == Event.ROLLBACK:
            self.rollbacks += 1
            kept = {place: each for place, each in self.documents.items() if place[0] != row["vbucket"]}
            assert row["seqno"] == 0, "a rollback to 0, since this consumer keeps no older versions"
            self.documents = kept
        elif row["event"] == Event.MUTATION:
            self.documents[row["vbucket"], row["key"]] = row["value"], row["cas"]
        else:
            self.documents.pop((row["vbucket"], row["key"]), None)

    def finish(self):
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.documents


def read_newest(url, protocol):
    """Return the newest change of every key that a consumer receives over a dialect."""
    found = {}
    for batch in penstock.read_changes(url, stop="now", protocol=protocol):
        for row in batch.to_pylist():
            names = ("event", "value", "cas", "rev_seqno", "flags", "expiry", "seqno", "vbuuid")
            found[row["vbucket"], row["key"]] = {name: row[name] for name in names}
    return found


# Following


@pytest.mark.parametrize("protocol", DIALECTS)
def test_consumers_receive_the_same_from_bridge_and_upstream(protocol):
    with run_upstream() as first:
        write_to(first.url("beer"), fill_bucket)
        with run_bridge(first, protocol) as second:
            wait_until_copied(second, first, protocol)
            write_to(first.url("beer"), lambda bucket: fill_bucket(bucket, 1))
            wait_until_copied(second, first, protocol)
            for consumer_protocol in DIALECTS:
                expected = read_newest(first.url("beer"), consumer_protocol)
                found = read_newest(second.url("beer"), consumer_protocol)
                if protocol == "tap":  # TAP sends no tombstones in a backfill, and the copy has its own seqnos
                    for rows in (expected, found):
                        for place in [place for place, row in rows.items() if row["event"] != Event.MUTATION]:
                            del rows[place]
                        for row in rows.values():
                            row["seqno"] = row["vbuuid"] = None
                assert found == expected != {}


def test_bridge_can_follow_a_bridge():
    with ExitStack() as nodes:
        first = nodes.enter_context(run_upstream())
        chain = [first]
        for protocol in ("upr-draft", "dcp", "upr"):
            chain.append(nodes.enter_context(run_bridge(chain[-1], protocol)))
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(chain[-1], first, "upr")
        fail_over_to(first, 1, 3)
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(chain[-1], first, "upr")


@pytest.mark.parametrize("protocol", DIALECTS)
def test_mirrored_vbuckets_are_replicas(protocol):
    with run_upstream() as first, run_bridge(first, protocol) as second, connected(second, "beer") as client:
        assert client.get(b"k").specific == Status.NOT_MY_VBUCKET
        assert client.set(b"k", b"v").specific == Status.NOT_MY_VBUCKET
        assert set(client.stats("vbucket").values()) == {"replica"}
        config = json.loads(client.ask(GetClusterConfig()).value)
        assert config["vBucketServerMap"]["vBucketMap"] == [[-1]] * VBUCKETS
        set_state(second, 2, ACTIVE)
        config = json.loads(client.ask(GetClusterConfig()).value)
        assert config["vBucketServerMap"]["vBucketMap"] == [[-1], [-1], [0], [-1]]


@pytest.mark.parametrize("protocol", DIALECTS)
def test_flush_of_the_upstream_empties_the_copy(protocol):
    with run_upstream() as first, run_bridge(first, protocol) as second:
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(second, first, protocol)
        readers = [ReaderThread(second.url("beer"), consumer_protocol) for consumer_protocol in DIALECTS]

        async def start_again(bucket):
            await bucket.flush()
            await bucket.upsert("new", b"")
            await bucket.upsert("the end", b"")

        write_to(first.url("beer"), start_again)
        wait_until_copied(second, first, protocol)
        assert len(run(second, lambda: get_documents(second))) == 2
        for reader in readers:
            assert {key for _, key in reader.finish()} <= {b"new", b"the end"}


@pytest.mark.parametrize("protocol", DIALECTS)
def test_restarted_upstream_with_another_history_is_copied(protocol):
    with run_upstream() as first:
        port = first.kv_port
        write_to(first.url("beer"), fill_bucket)
        stack = ExitStack()
        second = stack.enter_context(run_bridge(first, protocol))
        wait_until_copied(second, first, protocol)
        served = run(second, lambda: get_documents(second))
        readers = [ReaderThread(second.url("beer"), consumer_protocol) for consumer_protocol in DIALECTS]
    with stack:
        assert run(second, lambda: get_documents(second)) == served  # the bridge keeps serving
        with run_upstream(port=port) as first:
            write_to(first.url("beer"), lambda bucket: bucket.upsert("key-1", b"other"))
            write_to(first.url("beer"), lambda bucket: bucket.upsert("the end", b""))
            wait_until_copied(second, first, protocol)
            for reader in readers:
                reader.finish()


@pytest.mark.parametrize("protocol", STREAMED)
def test_rollback_goes_back_to_the_common_point(protocol):
    with run_upstream() as first, run_bridge(first, protocol) as second:

        async def one_by_one(bucket):
            for number in range(40):
                await bucket.upsert(f"key-{number % 8}", b"%d" % number)

        write_to(first.url("beer"), one_by_one)
        wait_until_copied(second, first, protocol)
        high = run(first, lambda: get_histories(first)[0][1])
        assert high > 2
        fail_over_to(first, 0, high - 2)
        until(second, make_copy_check(second, first, protocol))
        assert run(second, lambda: second.bridge.copies.rollbacks) == 1
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(second, first, protocol)


@pytest.mark.parametrize("protocol", STREAMED)
def test_copy_that_cannot_roll_back_restarts_from_zero(tmp_path, protocol):
    """The copy has no older versions to return to, and the upstream sends only the changes after the rollback."""
    with run_upstream() as first, run_bridge(first, protocol, data_dir=tmp_path) as second:
        with connected(first, "beer") as client:
            for value in (b"1", b"2", b"3", b"4"):
                for key in (b"a", b"b"):
                    assert client.set(key, value).specific == Status.SUCCESS
                    wait_until_copied(second, first, protocol)  # each change is a snapshot of its own
        with connected(second, "beer") as client:
            assert client.status(CompactDb()) == Status.SUCCESS
        fail_over_to(first, 0, 5)
        until(second, make_copy_check(second, first, protocol))
        assert run(second, lambda: get_documents(second)) == run(first, lambda: get_documents(first))


@pytest.mark.parametrize("protocol", STREAMED)
def test_snapshots_end_where_the_upstream_hides_nothing(protocol):
    with run_upstream() as first:
        with connected(first, "beer") as client:
            for key in (b"a", b"b", b"a"):
                client.set(key, b"v", vbucket=0)
        with run_bridge(first, protocol) as second:
            wait_until_copied(second, first, protocol)
            with connected(second, "beer") as client:
                client.open().stream(0, end=2)
                assert [getattr(change, "by_seqno", None) for change in client.changes()] == [None, 2, 3]


@pytest.mark.parametrize("protocol", STREAMED)
def test_promoted_vbucket_is_followed_again_as_a_replica(protocol):
    with run_upstream() as first, run_bridge(first, protocol) as second, connected(second, "beer") as client:
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(second, first, protocol)
        before = run(second, lambda: get_histories(second)[0])
        set_state(second, 0, ACTIVE)
        assert client.set(b"own", b"v", vbucket=0).specific == Status.SUCCESS
        write_to(first.url("beer"), lambda bucket: fill_bucket(bucket, 1))
        expected = run(first, lambda: get_histories(first)[1:])
        until(second, lambda: get_histories(second)[1:] == expected)
        log, high, _, items = run(second, lambda: get_histories(second)[0])
        assert (high, items) == (before[1] + 1, before[3] + 1)
        assert (log[0].seqno, log[1:]) == (before[1], before[0])
        set_state(second, 0, REPLICA)
        wait_until_copied(second, first, protocol)


def test_foreign_writes_to_a_copy_are_rolled_back():
    with run_upstream() as first, run_bridge(first, "dcp") as second:
        vbucket = second.buckets["beer"].store.vbuckets[0]
        run(
            second, lambda: [vbucket.incoming.apply(Event.MUTATION, b"k%d" % n, cas=1, rev_seqno=1) for n in range(100)]
        )
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(second, first, "dcp")


def test_foreign_writes_between_connections_are_rolled_back():
    with run_upstream() as first, run_bridge(first, "dcp") as second:
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(second, first, "dcp")
        copies, vbucket = second.bridge.copies, second.buckets["beer"].store.vbuckets[0]
        run(second, lambda: copies.mirrored.discard(0))  # as after the end of the connection
        write_to(first.url("beer"), lambda bucket: fill_bucket(bucket, 1))
        expected = run(first, lambda: get_histories(first)[1:])
        until(second, lambda: get_histories(second)[1:] == expected)

        def write_foreign():
            vbucket.incoming.apply(Event.MUTATION, b"own", cas=1, rev_seqno=1)
            copies.restart.set()

        run(second, write_foreign)
        wait_until_copied(second, first, "dcp")


class Intruder:
    """Writes to a copy directly after the bridge has changed the copy's branches."""

    def __init__(self, node):
        self.loop = node.loop
        self.served = node.buckets["beer"]
        self.vbucket = self.served.store.vbuckets[0]

    def provoke(self, copies):
        """Give the copy a branch of its own, and make the bridge connect again."""
        history = self.vbucket.history
        history.failover_log = create_entry(
            history.failover_log, 2**40 + next(vbuuids), self.vbucket.changes.high_seqno
        )
        self.served.listeners[self] = None
        copies.restart.set()

    def vbucket_changed(self, vbucket, event):
        self.served.listeners.pop(self)
        self.loop.call_soon(self.write_foreign)

    def write_foreign(self):
        self.vbucket.incoming.apply(Event.MUTATION, b"own", cas=1, rev_seqno=1)


def test_foreign_writes_during_a_comparison_are_rolled_back(monkeypatch):
    monkeypatch.setattr(delivery_writer, "_SLICE_SECONDS", 0.0)
    with run_upstream() as first, run_bridge(first, "dcp") as second:
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(second, first, "dcp")
        copies, intruder = second.bridge.copies, Intruder(second)
        run(second, lambda: copies.mirrored.discard(0))
        write_to(first.url("beer"), lambda bucket: fill_bucket(bucket, 1))
        expected = run(first, lambda: get_histories(first)[1:])
        until(second, lambda: get_histories(second)[1:] == expected)
        run(second, lambda: intruder.provoke(copies))
        wait_until_copied(second, first, "dcp")


def test_promoted_vbucket_is_not_followed_over_tap():
    with run_upstream() as first, run_bridge(first, "tap") as second, connected(second, "beer") as client:
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(second, first, "tap")
        set_state(second, 0, ACTIVE)
        assert client.set(b"own", b"v", vbucket=0).specific == Status.SUCCESS
        high = run(second, lambda: get_histories(second)[0][1])
        write_to(first.url("beer"), lambda bucket: fill_bucket(bucket, 1))
        expected = {place: item for place, item in run(first, lambda: get_documents(first)).items() if place[0]}
        until(second, lambda: {p: item for p, item in get_documents(second).items() if p[0]} == expected)
        assert run(second, lambda: get_histories(second)[0][1]) == high
        assert run(second, lambda: second.bridge.connections) == 1
        set_state(second, 0, REPLICA)
        wait_until_copied(second, first, "tap")


def test_demoted_vbucket_is_followed_again():
    with run_upstream() as first, run_bridge(first, "dcp") as second:
        for number in range(VBUCKETS):
            set_state(second, number, ACTIVE)
        write_to(first.url("beer"), fill_bucket)
        set_state(second, 3, PENDING)
        expected = run(first, lambda: get_histories(first)[3])
        until(second, lambda: get_histories(second)[3] == expected)
        assert run(second, lambda: [high for _, high, *_ in get_histories(second)[:3]]) == [0, 0, 0]


def test_failover_without_loss_is_no_rollback():
    with run_upstream() as first, run_bridge(first, "dcp") as second:
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(second, first, "dcp")
        set_state(first, 0, REPLICA)
        set_state(first, 0, ACTIVE)
        wait_until_copied(second, first, "dcp")
        assert run(second, lambda: len(get_histories(second)[0][0])) == 2
        assert run(second, lambda: second.bridge.copies.rollbacks) == 0


# Reports


def test_statistics_show_the_upstream():
    with run_upstream() as first, run_bridge(first, "upr") as second:
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(second, first, "upr")
        with connected(second, "beer") as client:
            stats = client.stats("follow")
        assert first.url("beer") == stats["url"]
        assert (stats["dialect"], stats["connected"], stats["connections"]) == ("upr", "true", "1")
        assert int(stats["vb_0:seqno"]) == get_histories(first)[0][1] == int(stats["vb_0:whole_seqno"])
        with connected(first, "beer") as client:
            frame = client.ask(Stat(key=b"follow"))
            assert frame.specific == Status.KEY_ENOENT


def test_connection_string_can_choose_the_dialect():
    with run_upstream() as first, Node.running(follow=first.url("beer") + "?protocol=upr-draft") as second:
        assert second.bridge is not None
        assert second.bridge.dialect == "upr-draft"


# Unsuitable upstreams


def test_missing_upstream_is_reported():
    with run_upstream() as first:
        url = first.url("beer")
    with pytest.raises(Unreachable, match=r"limit 0\.01 s"), Node.running(follow=url + "?retrySeconds=0.01"):
        pass


def test_server_without_the_dialect_cannot_be_followed():
    with (
        run_upstream() as first,
        OldServer(first, COUCHBASE_2_5) as server,
        pytest.raises(UsageError, match=r"is Couchbase 2.5.1, which has no DCP: try protocol=tap"),
        Node.running(follow=server.url()),
    ):
        pass


@pytest.mark.parametrize(
    ("url", "buckets", "protocol", "message"),
    [
        ("{}/wine", None, None, "no bucket 'wine'"),
        ("{}/beer", ["beer"], None, "named twice"),
        ("{}/beer", None, "http", "'http', expected one of tap"),
        ("http://", None, None, "expected couchbase://"),
    ],
)
def test_unsuitable_upstreams_are_refused(url, buckets, protocol, message):
    with (
        run_upstream() as first,
        pytest.raises(UsageError, match=message),
        Node.running(buckets, follow=url.format(first.url("beer").removesuffix("/beer")), protocol=protocol),
    ):
        pass


@pytest.mark.parametrize(
    ("buckets", "vbuckets", "message"),
    [
        (
            ["wine"],
            VBUCKETS,
            r"cannot follow .*: .* did not serve for .* \(limit 0.3 s\); last failure: no bucket 'beer'",
        ),
        (["beer"], 2 * VBUCKETS, "8 vbuckets now, it had 4"),
    ],
)
def test_lasting_error_ends_following(buckets, vbuckets, message):
    with run_upstream() as first:
        stack = ExitStack()
        second = stack.enter_context(Node.running(follow=first.url("beer") + "?retrySeconds=0.3"))
        port = first.kv_port
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(second, first, "dcp")
    with stack, Node.running(buckets, vbuckets, port=port):
        assert second.bridge is not None
        task = second.bridge.task

        async def wait_for_end():
            await asyncio.wait([task], timeout=PATIENCE)
            return task.exception()

        found = asyncio.run_coroutine_threadsafe(wait_for_end(), second.loop).result(PATIENCE)
        with pytest.raises(Error, match=message):
            raise found
        assert read_newest(second.url("beer"), "dcp")  # the bridge keeps serving


def test_bridge_node_serves_other_buckets():
    with run_upstream() as first, Node.running(["own"], 8, follow=first.url("beer")) as second:
        assert {name: len(served.store.vbuckets) for name, served in second.buckets.items()} == {"own": 8, "beer": 4}
        write_to(second.url("own"), fill_bucket)


# Random actions

KEYS = [b"a", b"b", b"c"]
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(KEYS), st.integers(0, 1)),
        st.tuples(st.just("delete"), st.sampled_from(KEYS), st.integers(0, 1)),
        st.tuples(st.just("lose"), st.integers(0, 5), st.integers(0, 1)),
        st.tuples(st.just("flush"), st.none(), st.none()),
        st.tuples(st.just("promote"), st.none(), st.integers(0, 1)),
        st.tuples(st.just("settle"), st.none(), st.none()),
    ),
    max_size=25,
)


@pytest.mark.parametrize("protocol", DIALECTS)
@settings(max_examples=scaled(15), suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS)
def test_copy_converges_to_the_upstream(protocol, actions):
    with Node.running(["beer"], 2) as first, run_bridge(first, protocol) as second:
        with connected(first, "beer") as client:
            for kind, argument, vbucket in actions:
                if kind == "set":
                    assert client.set(argument, b"v", vbucket=vbucket).specific == Status.SUCCESS
                elif kind == "delete":
                    client.delete(argument, vbucket=vbucket)
                elif kind == "lose" and protocol != "tap":  # TAP has no message for a rollback
                    high = run(first, lambda vb=vbucket: get_histories(first)[vb][1])
                    fail_over_to(first, vbucket, max(0, high - argument))
                elif kind == "flush":
                    client.ask(Flush())
                elif kind == "promote":
                    set_state(second, vbucket, ACTIVE)
                    with connected(second, "beer") as own:
                        own.set(b"own", b"v", vbucket=vbucket)
                    set_state(second, vbucket, REPLICA)
                elif kind == "settle":
                    wait_until_copied(second, first, protocol)
        wait_until_copied(second, first, protocol)


def test_upstream_with_a_login_is_followed(tmp_path):
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        accounts["bridge"] = make_account(User.from_texts("bridge", ["data_dcp_reader[beer]"]), "bridge's", 4096)
    with Node.running(["beer"], vbuckets=4, users=path) as first:
        address = parse_address(first.url("beer"), Credentials("bridge", "bridge's"))
        with Node.running(follow=address) as second, connected(second, "beer") as client:
            assert client.stats("follow")["url"] == first.url("beer")
            assert "bridge's" not in repr(second.options)
        with pytest.raises(AccessDenied), Node.running(follow=replace(address, credentials=None)):
            pass
