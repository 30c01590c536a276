"""A bridge: a node that follows another one in any dialect, and is followed in all of them."""

import asyncio
import json
import threading
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.client.bucket import Bucket
from penstock.errors import Error, Unreachable, UsageError
from penstock.node import Node
from penstock.node.follow import common_seqno
from penstock.node.served import VbucketEvent
from penstock.store.failover import create_entry
from penstock.wire.constants import Opcode, Status, VbucketState
from penstock.wire.dcp import StreamReq
from penstock.wire.kv import FailoverEntry, Flush, GetClusterConfig, SetVbucket, Stat, pack_failover_log
from penstock.wire.layout import decode
from penstock.wire.schema import Event
from tests.client.peer import Script, in_loop, reply
from tests.client.producer import LOG, accept, marker, mutations, rollback
from tests.node.wire_client import SECONDS, connected

ACTIVE, REPLICA, PENDING, DEAD = VbucketState
STREAMED = ("dcp", "upr", "upr-draft")
"""The dialects in which a copy has the history of the original."""
DIALECTS = (*STREAMED, "tap")
VBUCKETS = 4
FAR = 2_000_000_000  # an expiry, epoch seconds

vbuuids = count(1)


# What tests do


def run(node, work):
    """Return what `work` returns on the node's event loop, where all but its address belongs."""

    async def on_loop():
        return work()

    return asyncio.run_coroutine_threadsafe(on_loop(), node.loop).result(SECONDS)


class Watch:
    """Is told of everything that happens to a bucket."""

    def __init__(self, served):
        self.served = served
        self.happened = asyncio.Event()
        served.listeners.add(self)

    def vbucket_changed(self, vbucket, event):
        self.happened.set()

    async def until(self, condition):
        async with asyncio.timeout(SECONDS * 2):
            while not condition():
                self.happened.clear()
                for vbucket in self.served.store.vbuckets:
                    self.served.wait(Waiter(vbucket, self.happened))
                await self.happened.wait()
        self.served.listeners.discard(self)


class Waiter:
    def __init__(self, vbucket, happened):
        self.vbucket = vbucket
        self.happened = happened

    def wake(self):
        self.happened.set()


def until(node, condition):
    """Wait until something is so of the node's bucket, looking after every change."""
    (served,) = node.buckets.values()

    async def wait():
        await Watch(served).until(condition)

    asyncio.run_coroutine_threadsafe(wait(), node.loop).result(SECONDS * 3)


def histories(node):
    """What must be the same in a copy of the history: failover logs and seqnos."""
    (served,) = node.buckets.values()
    return [
        (vbucket.failover_log, vbucket.high_seqno, vbucket.whole_seqno, vbucket.items)
        for vbucket in served.store.vbuckets
    ]


def documents(node):
    """What must be the same in any copy: the newest version of every document."""
    (served,) = node.buckets.values()
    return {
        (vbucket.id, key): item._replace(seqno=0)
        for vbucket in served.store.vbuckets
        for key in list(vbucket._newest)
        if (item := vbucket.get(key)) is not None
    }


def is_like(node, original, protocol):
    """Return whether a bridge has everything; the original must be at rest."""
    part = documents if protocol == "tap" else histories
    expected = run(original, lambda: part(original))
    return lambda: part(node) == expected


def follow(node, original, protocol):
    until(node, is_like(node, original, protocol))
    if protocol != "tap":  # where a connection that is about to begin makes the copy empty once more
        assert run(node, lambda: documents(node)) == run(original, lambda: documents(original))


def write(url, work):
    async def connect():
        async with penstock.connect(url) as bucket:
            await work(bucket)

    asyncio.run(connect())


async def fill(bucket: Bucket, turn=0):
    """Write, overwrite and remove some documents, of every kind."""
    await bucket.upsert_many([(f"key-{number}", b"%d of %d" % (number, turn)) for number in range(60)], flags=7)
    await bucket.upsert_many([(f"key-{number}", b"again") for number in range(0, 60, 3)], expiry=FAR)
    await bucket.remove_many([f"key-{number}" for number in range(0, 60, 5)])


def set_state(node, vbucket, state):
    with connected(node, "beer") as client:
        assert client.status(SetVbucket(vbucket=vbucket, state=state)) == Status.SUCCESS


def lose(node, number, seqno):
    """Let a vbucket go on at a seqno that it had passed, on a new branch, as after a failover to a copy behind it."""
    served = node.buckets["beer"]
    vbucket = served.store.vbuckets[number]

    def go_back():
        vbucket.rollback(seqno)
        vbucket.failover_log = create_entry(vbucket.failover_log, 2**40 + next(vbuuids), vbucket.high_seqno)
        served.tell(vbucket, VbucketEvent.STATE_CHANGED)

    run(node, go_back)


@contextmanager
def original(**options):
    with Node.running(["beer"], VBUCKETS, **options) as node:
        yield node


@contextmanager
def bridge(node, protocol, **options):
    with Node.running(follow=node.url("beer"), follow_protocol=protocol, **options) as copy:
        yield copy


class Reader:
    """A consumer on a thread of its own, which keeps what documents there are, until it has met a certain one."""

    def __init__(self, url, protocol):
        self.documents = {}
        self.rollbacks = 0
        self._thread = threading.Thread(target=self._read, args=(url, protocol), daemon=True)
        self._thread.start()

    def _read(self, url, protocol):
        for batch in penstock.read_changes(url, protocol=protocol):
            for row in batch.to_pylist():
                self._fold(row)
                if row["key"] == b"the end":
                    return

    def _fold(self, row):
        if row["event"] == Event.ROLLBACK:
            self.rollbacks += 1
            kept = {place: each for place, each in self.documents.items() if place[0] != row["vbucket"]}
            assert row["seqno"] == 0, "this consumer keeps no older versions"
            self.documents = kept
        elif row["event"] == Event.MUTATION:
            self.documents[row["vbucket"], row["key"]] = row["value"], row["cas"]
        else:
            self.documents.pop((row["vbucket"], row["key"]), None)

    def finish(self):
        self._thread.join(SECONDS * 2)
        assert not self._thread.is_alive()
        return self.documents


def read(url, protocol):
    """Return the newest change of every key that a consumer of a dialect gets."""
    found = {}
    for batch in penstock.read_changes(url, stop="now", protocol=protocol):
        for row in batch.to_pylist():
            names = ("event", "value", "cas", "rev_seqno", "flags", "expiry", "seqno", "vbuuid")
            found[row["vbucket"], row["key"]] = {name: row[name] for name in names}
    return found


# Following


@pytest.mark.parametrize("protocol", DIALECTS)
def test_every_consumer_gets_from_the_bridge_what_it_gets_from_the_original(protocol):
    with original() as first:
        write(first.url("beer"), fill)
        with bridge(first, protocol) as second:
            follow(second, first, protocol)
            write(first.url("beer"), lambda bucket: fill(bucket, 1))
            follow(second, first, protocol)
            for asked in DIALECTS:
                expected, found = read(first.url("beer"), asked), read(second.url("beer"), asked)
                if protocol == "tap":  # a backfill has no tombstones, and the copy seqnos of its own
                    for rows in (expected, found):
                        for place in [place for place, row in rows.items() if row["event"] != Event.MUTATION]:
                            del rows[place]
                        for row in rows.values():
                            row["seqno"] = row["vbuuid"] = None
                assert found == expected != {}


def test_a_bridge_can_be_followed_by_a_bridge():
    with ExitStack() as nodes:
        first = nodes.enter_context(original())
        chain = [first]
        for protocol in ("upr-draft", "dcp", "upr"):
            chain.append(nodes.enter_context(bridge(chain[-1], protocol)))
        write(first.url("beer"), fill)
        follow(chain[-1], first, "upr")
        lose(first, 1, 3)
        write(first.url("beer"), fill)
        follow(chain[-1], first, "upr")


@pytest.mark.parametrize("protocol", DIALECTS)
def test_its_vbuckets_are_replicas(protocol):
    with original() as first, bridge(first, protocol) as second, connected(second, "beer") as client:
        assert client.get(b"k").specific == Status.NOT_MY_VBUCKET
        assert client.set(b"k", b"v").specific == Status.NOT_MY_VBUCKET
        assert set(client.stats("vbucket").values()) == {"replica"}
        config = json.loads(client.ask(GetClusterConfig()).value)
        assert config["vBucketServerMap"]["vBucketMap"] == [[-1]] * VBUCKETS
        set_state(second, 2, ACTIVE)
        config = json.loads(client.ask(GetClusterConfig()).value)
        assert config["vBucketServerMap"]["vBucketMap"] == [[-1], [-1], [0], [-1]]


@pytest.mark.parametrize("protocol", DIALECTS)
def test_a_flush(protocol):
    with original() as first, bridge(first, protocol) as second:
        write(first.url("beer"), fill)
        follow(second, first, protocol)
        readers = [Reader(second.url("beer"), asked) for asked in DIALECTS]

        async def begin_anew(bucket):
            await bucket.flush()
            await bucket.upsert("new", b"")
            await bucket.upsert("the end", b"")

        write(first.url("beer"), begin_anew)
        follow(second, first, protocol)
        assert len(run(second, lambda: documents(second))) == 2
        for reader in readers:
            assert {key for _, key in reader.finish()} <= {b"new", b"the end"}


@pytest.mark.parametrize("protocol", DIALECTS)
def test_an_original_that_comes_back_with_another_history(protocol):
    with original() as first:
        port = first.kv_port
        write(first.url("beer"), fill)
        stack = ExitStack()
        second = stack.enter_context(bridge(first, protocol))
        follow(second, first, protocol)
        served = run(second, lambda: documents(second))
        readers = [Reader(second.url("beer"), asked) for asked in DIALECTS]
    with stack:
        assert run(second, lambda: documents(second)) == served  # it goes on serving
        with original(port=port) as first:
            write(first.url("beer"), lambda bucket: bucket.upsert("key-1", b"other"))
            write(first.url("beer"), lambda bucket: bucket.upsert("the end", b""))
            follow(second, first, protocol)
            for reader in readers:
                reader.finish()


@pytest.mark.parametrize("protocol", STREAMED)
def test_a_rollback_goes_back_no_further_than_it_has_to(protocol):
    with original() as first, bridge(first, protocol) as second:

        async def one_by_one(bucket):
            for number in range(40):
                await bucket.upsert(f"key-{number % 8}", b"%d" % number)

        write(first.url("beer"), one_by_one)
        follow(second, first, protocol)
        high = run(first, lambda: histories(first)[0][1])
        assert high > 2
        lose(first, 0, high - 2)
        until(second, is_like(second, first, protocol))
        assert run(second, lambda: second.bridge.rollbacks) == 1
        write(first.url("beer"), fill)
        follow(second, first, protocol)


@pytest.mark.parametrize("protocol", STREAMED)
def test_no_snapshot_ends_where_the_original_has_hidden_something(protocol):
    with original() as first:
        with connected(first, "beer") as client:
            for key in (b"a", b"b", b"a"):
                client.set(key, b"v", vbucket=0)
        with bridge(first, protocol) as second:
            follow(second, first, protocol)
            with connected(second, "beer") as client:
                client.open().stream(0, end=2)
                assert [getattr(change, "by_seqno", None) for change in client.changes()] == [None, 2, 3]


@pytest.mark.parametrize("protocol", STREAMED)
def test_a_promoted_vbucket_is_not_followed_until_it_is_a_replica_again(protocol):
    with original() as first, bridge(first, protocol) as second, connected(second, "beer") as client:
        write(first.url("beer"), fill)
        follow(second, first, protocol)
        before = run(second, lambda: histories(second)[0])
        set_state(second, 0, ACTIVE)
        assert client.set(b"own", b"v", vbucket=0).specific == Status.SUCCESS
        write(first.url("beer"), lambda bucket: fill(bucket, 1))
        expected = run(first, lambda: histories(first)[1:])
        until(second, lambda: histories(second)[1:] == expected)
        log, high, _, items = run(second, lambda: histories(second)[0])
        assert (high, items) == (before[1] + 1, before[3] + 1)
        assert (log[0].seqno, log[1:]) == (before[1], before[0])
        set_state(second, 0, REPLICA)
        follow(second, first, protocol)


def test_what_others_write_to_a_copy_does_not_last():
    with original() as first, bridge(first, "dcp") as second:
        vbucket = second.buckets["beer"].store.vbuckets[0]
        run(second, lambda: [vbucket.apply(Event.MUTATION, b"k%d" % n, cas=1, rev_seqno=1) for n in range(100)])
        write(first.url("beer"), fill)
        follow(second, first, "dcp")


def test_a_promoted_vbucket_over_tap():
    with original() as first, bridge(first, "tap") as second, connected(second, "beer") as client:
        write(first.url("beer"), fill)
        follow(second, first, "tap")
        set_state(second, 0, ACTIVE)
        assert client.set(b"own", b"v", vbucket=0).specific == Status.SUCCESS
        high = run(second, lambda: histories(second)[0][1])
        write(first.url("beer"), lambda bucket: fill(bucket, 1))
        expected = {place: item for place, item in run(first, lambda: documents(first)).items() if place[0]}
        until(second, lambda: {p: item for p, item in documents(second).items() if p[0]} == expected)
        assert run(second, lambda: histories(second)[0][1]) == high
        assert run(second, lambda: second.bridge.connections) == 1
        set_state(second, 0, REPLICA)
        follow(second, first, "tap")


def test_all_promoted_and_one_given_back():
    with original() as first, bridge(first, "dcp") as second:
        for number in range(VBUCKETS):
            set_state(second, number, ACTIVE)
        write(first.url("beer"), fill)
        set_state(second, 3, PENDING)
        expected = run(first, lambda: histories(first)[3])
        until(second, lambda: histories(second)[3] == expected)
        assert run(second, lambda: [high for _, high, *_ in histories(second)[:3]]) == [0, 0, 0]


def test_a_failover_that_loses_nothing_is_no_rollback():
    with original() as first, bridge(first, "dcp") as second:
        write(first.url("beer"), fill)
        follow(second, first, "dcp")
        set_state(first, 0, REPLICA)
        set_state(first, 0, ACTIVE)
        follow(second, first, "dcp")
        assert run(second, lambda: len(histories(second)[0][0])) == 2
        assert run(second, lambda: second.bridge.rollbacks) == 0


# An upstream that is a script


class Original(Script):
    """A peer with one vbucket, whose streams a test answers: `serve(peer, request)`."""

    def __init__(self, serve):
        super().__init__(self.respond, vbuckets=1)
        self.serve = serve
        self.asked = []

    def respond(self, peer, frame):
        if frame.opcode == Opcode.GET_FAILOVER_LOG:
            return reply(frame, value=pack_failover_log(LOG))
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            request = decode(frame)
            assert isinstance(request, StreamReq)
            self.asked.append((request.start_seqno, request.vbuuid, request.snap_start, request.snap_end))
            return self.serve(peer, request)
        return None


@asynccontextmanager
async def copy_of(script):
    node = await Node.start(port=0, follow=script.url())
    try:
        (served,) = node.buckets.values()
        yield node, Watch(served), served.store.vbuckets[0]
    finally:
        await node.stop()


@in_loop
async def test_what_is_in_the_middle_of_a_snapshot_is_not_served_and_comes_again():
    def serve(peer, request):
        if request.start_seqno:
            return accept(request, LOG) + marker(request, 3, 900) + mutations(request, 5, 900)
        begun = marker(request, 1, 2) + mutations(request, 1, 2) + marker(request, 3, 900)
        return accept(request, LOG) + begun + mutations(request, 4, *range(6, 400))

    async with Original(serve) as script, copy_of(script) as (_, watch, vbucket):
        await watch.until(lambda: vbucket.high_seqno == 399)
        assert vbucket.whole_seqno == 2
        assert [vbucket.snapshot(0, end).end_seqno for end in (1, 2, 3, 399)] == [1, 2, 2, 2]
        script.peers[-1].transport.abort()
        await watch.until(lambda: vbucket.whole_seqno == 900)
        assert script.asked == [(0, 0, 0, 0), (2, 11, 2, 2)]
        assert [vbucket.snapshot(0, end).end_seqno for end in (1, 5, 900)] == [900, 900, 900]
        assert vbucket.items == 4


@in_loop
async def test_a_log_is_the_copys_before_anything_is_stored():
    newer = (FailoverEntry(12, 0), FailoverEntry(11, 0))

    def serve(peer, request):
        return accept(request, newer)

    async with Original(serve) as script, copy_of(script) as (_, watch, vbucket):
        await watch.until(lambda: vbucket.failover_log == newer)
        assert vbucket.high_seqno == 0


@in_loop
async def test_an_upstream_without_its_history_begins_anew():
    def serve(peer, request):
        if request.start_seqno:
            return rollback(request, 1)
        up_to = 4 if len(script.asked) == 1 else 2
        return accept(request, LOG) + marker(request, 1, up_to) + mutations(request, *range(1, up_to + 1))

    async with (
        Original(serve) as script,
        copy_of(script) as (node, watch, vbucket),
    ):
        await watch.until(lambda: vbucket.whole_seqno == 4)
        script.peers[-1].transport.abort()
        await watch.until(lambda: vbucket.whole_seqno == 2)
        assert [start for start, *_ in script.asked] == [0, 4, 0]
        assert node.bridge.rollbacks == 1
        assert vbucket.failover_log == LOG


@in_loop
async def test_garbage_ends_it():
    def serve(peer, request):
        return accept(request, LOG) + marker(request, 1, 2) + mutations(request, 3)

    async with Original(serve) as script, copy_of(script) as (node, _, vbucket):
        await asyncio.wait([node.bridge.task], timeout=SECONDS)
        assert "by_seqno 3 behind its snapshot's end 2" in str(node.bridge.task.exception())
        assert vbucket.high_seqno == 0


# What it says


def test_it_says_whom_it_follows():
    with original() as first, bridge(first, "upr") as second:
        write(first.url("beer"), fill)
        follow(second, first, "upr")
        with connected(second, "beer") as client:
            stats = client.stats("follow")
        assert first.url("beer") == stats["url"]
        assert (stats["dialect"], stats["connected"], stats["connections"]) == ("upr", "true", "1")
        assert int(stats["vb_0:seqno"]) == histories(first)[0][1] == int(stats["vb_0:whole_seqno"])
        with connected(first, "beer") as client:
            frame = client.ask(Stat(key=b"follow"))
            assert frame.specific == Status.KEY_ENOENT


def test_the_dialect_may_stand_in_the_connection_string():
    with original() as first, Node.running(follow=first.url("beer") + "?protocol=upr-draft") as second:
        assert second.bridge is not None
        assert second.bridge.dialect == "upr-draft"


# What cannot be followed


def test_an_original_that_is_not_there():
    with original() as first:
        url = first.url("beer")
    with pytest.raises(Unreachable, match=r"limit 0\.01 s"), Node.running(follow=url + "?retrySeconds=0.01"):
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
def test_what_cannot_be_followed(url, buckets, protocol, message):
    with (
        original() as first,
        pytest.raises(UsageError, match=message),
        Node.running(buckets, follow=url.format(first.url("beer").removesuffix("/beer")), follow_protocol=protocol),
    ):
        pass


@pytest.mark.parametrize(
    ("buckets", "vbuckets", "message"),
    [
        (["wine"], VBUCKETS, "cannot follow .*: no bucket 'beer'"),
        (["beer"], 2 * VBUCKETS, "8 vbuckets now, it had 4"),
    ],
)
def test_following_ends_where_no_retry_helps(buckets, vbuckets, message):
    with original() as first:
        stack = ExitStack()
        second = stack.enter_context(bridge(first, "dcp"))
        port = first.kv_port
        write(first.url("beer"), fill)
        follow(second, first, "dcp")
    with stack, Node.running(buckets, vbuckets, port=port):

        async def ended():
            await asyncio.wait([second.bridge.task], timeout=SECONDS)
            return second.bridge.task.exception()

        found = asyncio.run_coroutine_threadsafe(ended(), second.loop).result(SECONDS * 2)
        with pytest.raises(Error, match=message):
            raise found
        assert read(second.url("beer"), "dcp")  # it goes on serving


def test_it_has_other_buckets_as_well():
    with original() as first, Node.running(["own"], 8, follow=first.url("beer")) as second:
        assert {name: len(served.store.vbuckets) for name, served in second.buckets.items()} == {"own": 8, "beer": 4}
        write(second.url("own"), fill)


# Which part of two histories is the same


class Branching:
    """A history, each change named by a number that no other change has."""

    def __init__(self, changes=(), log=None):
        self.changes = list(changes)
        self.log = log or create_entry((), next(vbuuids), 0)

    def write(self, nchanges):
        self.changes += [next(vbuuids) for _ in range(nchanges)]

    def fail_over(self, seqno):
        del self.changes[seqno:]
        self.log = create_entry(self.log, next(vbuuids), len(self.changes))


acts = st.lists(
    st.one_of(st.tuples(st.just("write"), st.integers(1, 5)), st.tuples(st.just("back"), st.integers(0, 8)))
)


def act(history, done):
    for kind, number in done[:8]:
        if kind == "write":
            history.write(number)
        else:
            history.fail_over(max(0, len(history.changes) - number))


@given(acts, st.integers(0, 30), acts, acts)
def test_two_histories_are_the_same_up_to_where_one_left_their_last_common_branch(before, seqno, own, theirs):
    original = Branching()
    act(original, before)
    seqno = min(seqno, len(original.changes))
    copy = Branching(original.changes[:seqno], original.log)
    act(original, theirs)
    if own:
        copy.fail_over(seqno)
        act(copy, own)
    same = 0
    for mine, other in zip(copy.changes, original.changes, strict=False):
        if mine != other:
            break
        same += 1
    assert common_seqno(copy.log, len(copy.changes), original.log) == same


# Anything may happen

KEYS = [b"a", b"b", b"c"]
events = st.lists(
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
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(events)
def test_whatever_happens_it_becomes_like_the_original(protocol, happening):
    with Node.running(["beer"], 2) as first, bridge(first, protocol) as second:
        with connected(first, "beer") as client:
            for kind, what, vbucket in happening:
                if kind == "set":
                    assert client.set(what, b"v", vbucket=vbucket).specific == Status.SUCCESS
                elif kind == "delete":
                    client.delete(what, vbucket=vbucket)
                elif kind == "lose" and protocol != "tap":  # which cannot say so
                    high = run(first, lambda vb=vbucket: histories(first)[vb][1])
                    lose(first, vbucket, max(0, high - what))
                elif kind == "flush":
                    client.ask(Flush())
                elif kind == "promote":
                    set_state(second, vbucket, ACTIVE)
                    with connected(second, "beer") as own:
                        own.set(b"own", b"v", vbucket=vbucket)
                    set_state(second, vbucket, REPLICA)
                elif kind == "settle":
                    follow(second, first, protocol)
        follow(second, first, protocol)
