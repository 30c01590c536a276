"""Replication between nodes through relays: the target gets the same history, also after failures."""

import asyncio
import itertools
import json
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

import penstock
from penstock.client.connect.address import parse_address
from penstock.client.replication.replicator import ReplicationOptions, Replicator
from penstock.errors import UnsupportedServer, UsageError
from penstock.node import Node
from penstock.wire.codec.constants import Dialect, Feature, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import DeletionV2
from penstock.wire.messages.kv import Flush, Get
from penstock.wire.values.snappy import deflate
from tests.client.peer import Script, in_loop
from tests.client.producer import accept, marker, mutations
from tests.client.test_received_maps import count_requests, notifying, push, serve_map
from tests.node.manifests import ALE, ALES, DEFAULT, make_beers, make_key, set_scopes
from tests.node.test_follow import VBUCKETS, get_documents
from tests.node.test_follow_collections import get_history, read_streams, wait_until_copied
from tests.node.test_replication import set_states, write
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.waiting import wait_until


def make_address(node, **options):
    text = "&".join(f"{name}={value}" for name, value in options.items())
    return parse_address(node.url("beer") + (f"?{text}" if text else ""))


def replicate_once(source, target, **options):
    async def main():
        chosen = ReplicationOptions(until_caught_up=True, **options)
        async with Replicator(make_address(source), make_address(target), chosen) as replicator:
            return await replicator.run()

    return asyncio.run(main())


def read_histories(node):
    """Return the streams and positions of all vbuckets, without the times of deletions: UPR has no field for them."""
    streams = [
        [replace(each, delete_time=0) if isinstance(each, DeletionV2) else each for each in stream]
        for stream in read_streams(node)
    ]
    return streams, run(node, lambda: get_history(node))


@pytest.fixture
def active():
    """A node whose vbuckets are active."""
    with Node.running(["beer"], VBUCKETS) as node:
        yield node


@pytest.fixture
def fresh():
    """A new node, whose vbuckets are active and empty."""
    with Node.running(["beer"], VBUCKETS) as node:
        yield node


def test_promoted_replica_stays_active_when_its_replication_connects_again(active, fresh):
    write(active, 0, 300)
    (promoted, *others) = fresh.buckets["beer"].store.vbuckets

    def promote():
        fresh.buckets["beer"].store.vbuckets[0].set_state(VbucketState.ACTIVE)
        for report in fresh.streams("beer"):
            fresh.close_streams(report.name, "beer")

    async def main():
        running: asyncio.Queue[int] = asyncio.Queue()
        options = ReplicationOptions(overwrite=True)
        async with Replicator(make_address(active), make_address(fresh), options) as replicator:
            task = asyncio.create_task(replicator.run(lambda progress: running.put_nowait(progress.running)))
            while await running.get() < VBUCKETS:
                continue
            await asyncio.to_thread(run, fresh, promote)
            while await running.get() == VBUCKETS:
                continue
            while await running.get() < VBUCKETS - 1:  # all others run again
                continue
            task.cancel()

    asyncio.run(main())
    assert promoted.history.state is VbucketState.ACTIVE
    assert {vbucket.history.state for vbucket in others} == {VbucketState.REPLICA}


def test_once_ends_beside_a_running_replication(active, fresh):
    write(active, 0, 300)

    async def main():
        running = asyncio.Event()
        addresses = make_address(active), make_address(fresh)
        async with Replicator(*addresses) as first:
            task = asyncio.create_task(
                first.run(lambda progress: running.set() if progress.running == VBUCKETS else None)
            )
            await running.wait()
            async with Replicator(*addresses, ReplicationOptions(until_caught_up=True)) as second:
                assert (await second.run()).lag == 0
            assert not task.done()
            task.cancel()

    asyncio.run(main())
    assert read_streams(fresh) == read_streams(active)


def test_fresh_node_becomes_a_replica(active, fresh):
    write(active, 0, 300)
    progress = replicate_once(active, fresh)
    assert read_streams(fresh) == read_streams(active)
    assert {vbucket.history.state for vbucket in fresh.buckets["beer"].store.vbuckets} == {VbucketState.REPLICA}
    assert (progress.running, progress.protocol, progress.lag) == (VBUCKETS, "dcp", 0)
    assert progress.nbytes > 0
    write(active, 300, 400)
    replicate_once(active, fresh)
    assert read_streams(fresh) == read_streams(active)


def test_copy_ends_after_a_change_that_is_no_document(active, fresh):
    write(active, 0, 50)

    def create_collection():
        served = active.buckets["beer"]
        served.change_manifest(served.store.manifests.current.with_collection("_default", "ales"))

    run(active, create_collection)
    progress = replicate_once(active, fresh)
    assert read_streams(fresh) == read_streams(active)
    assert progress.lag == 0


def test_chosen_vbuckets_alone_are_replicated(active, fresh):
    write(active, 0, 100)
    replicate_once(active, fresh, vbuckets=[1, 3])
    states = [vbucket.history.state for vbucket in fresh.buckets["beer"].store.vbuckets]
    assert [state is VbucketState.REPLICA for state in states] == [number in (1, 3) for number in range(VBUCKETS)]


def test_active_vbucket_with_changes_is_overwritten_only_on_request(active, fresh):
    write(active, 0, 50)
    write(fresh, 50, 90)
    with pytest.raises(UsageError, match="is active and has"):
        replicate_once(active, fresh)
    replicate_once(active, fresh, overwrite=True)
    assert read_streams(fresh) == read_streams(active)


def test_copy_over_tap_has_all_documents(active, fresh):
    write(active, 0, 300)
    progress = replicate_once(active, fresh, protocol=Dialect.TAP)
    assert run(fresh, lambda: get_documents(fresh)) == run(active, lambda: get_documents(active))
    assert progress.running == VBUCKETS


@asynccontextmanager
async def replicating(source, target, **options):
    """Replicate in the background. Yields the list of all reports."""
    reports: list[Any] = []
    async with Replicator(make_address(source), make_address(target), ReplicationOptions(**options)) as replicator:
        task = asyncio.create_task(replicator.run(reports.append))
        try:
            yield reports
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()


@pytest.mark.parametrize("protocol", [Dialect.DCP, Dialect.UPR])
def test_replication_continues_after_lost_connections(active, fresh, protocol):
    def cut():
        (report,) = active.streams("beer")
        assert active.close_streams(report.name, "beer") == 1

    async def main():
        async with replicating(active, fresh, protocol=protocol) as reports:
            for start in range(0, 300, 100):
                await asyncio.to_thread(write, active, start, start + 100)
                await asyncio.to_thread(wait_until_copied, fresh, active)
                await asyncio.to_thread(run, active, cut)
            await asyncio.to_thread(write, active, 300, 350)
            await asyncio.to_thread(wait_until_copied, fresh, active)
        assert reports[-1].vbuckets == VBUCKETS

    asyncio.run(main())
    assert read_histories(fresh) == read_histories(active)


@pytest.mark.parametrize("protocol", [Dialect.DCP, Dialect.UPR])
def test_ended_stream_begins_again(active, fresh, protocol):
    async def main():
        async with replicating(active, fresh, protocol=protocol):
            await asyncio.to_thread(write, active, 0, 100)
            await asyncio.to_thread(wait_until_copied, fresh, active)
            for state in (VbucketState.DEAD, VbucketState.ACTIVE):
                await asyncio.to_thread(set_states, active, state, [1])
            await asyncio.to_thread(write, active, 100, 200)
            await asyncio.to_thread(wait_until_copied, fresh, active)

    asyncio.run(main())


@pytest.mark.parametrize("protocol", [Dialect.DCP, Dialect.UPR])
def test_stream_that_the_target_closes_begins_again(active, fresh, protocol):
    """Another client promotes a replica and makes it a replica again: neither side may wait for the other's stream."""

    async def main():
        async with replicating(active, fresh, protocol=protocol):
            await asyncio.to_thread(write, active, 0, 100)
            await asyncio.to_thread(wait_until_copied, fresh, active)
            for state in (VbucketState.ACTIVE, VbucketState.REPLICA):
                await asyncio.to_thread(set_states, fresh, state, [1])
            await asyncio.to_thread(write, active, 100, 200)
            await asyncio.to_thread(wait_until_copied, fresh, active)

    asyncio.run(main())


async def write_steadily(url, name, newest):
    """Write documents one after the other until the caller cancels. `newest` gets the last value of each key."""
    async with penstock.connect(url) as bucket:
        for number in itertools.count():
            key, value = b"%s%d" % (name, number % 100), b"%d" % number
            newest[key] = value  # a write that is cancelled may be stored
            await bucket.upsert(key, value)


def count_changes(node):
    return run(node, lambda: sum(vbucket.changes.high_seqno for vbucket in node.buckets["beer"].store.vbuckets))


def test_replication_switches_from_tap_to_dcp_under_load(tmp_path, fresh):
    """The source restarts with DCP while clients write. Each acknowledged write reaches the replica."""
    options = {"buckets": ["beer"], "vbuckets": VBUCKETS, "data_dir": tmp_path}
    newest: dict[bytes, bytes] = {}

    async def main():
        first, second = ExitStack(), ExitStack()
        with second, first:
            source = first.enter_context(Node.running(**options, pin="tap"))
            async with replicating(source, fresh) as reports:
                writers = [
                    asyncio.create_task(write_steadily(source.url("beer"), name, newest)) for name in (b"a", b"b", b"c")
                ]
                await wait_until(
                    lambda: reports and reports[-1].protocol == "tap" and count_changes(fresh) > 300, *writers
                )
                await asyncio.to_thread(first.close)
                again = second.enter_context(Node.running(**options, port=source.kv_port))
                before = count_changes(again)
                await wait_until(
                    lambda: reports[-1].protocol == "dcp" and count_changes(fresh) > before + 300, *writers
                )
                for writer in writers:
                    writer.cancel()
                await asyncio.wait(writers)
                await asyncio.to_thread(wait_until_copied, fresh, again)
                documents = run(again, lambda: get_documents(again))
                assert run(fresh, lambda: get_documents(fresh)) == documents
                stored = {key[1:]: item.value for (_, key), item in documents.items()}
                lost = {key: value for key, value in newest.items() if stored.get(key) != value}
                assert len(lost) <= len(writers)  # those that were under way at the end
                assert all(int(value) - int(stored.get(key, value)) in (0, 100) for key, value in lost.items())

    asyncio.run(main())


def test_draft_of_upr_is_refused():
    with pytest.raises(UsageError, match="expected dcp, upr, tap or auto"):
        ReplicationOptions(protocol=Dialect.UPR_DRAFT)


def test_copy_over_upr_has_the_same_history(active, fresh):
    write(active, 0, 300)
    progress = replicate_once(active, fresh, protocol=Dialect.UPR)
    assert read_histories(fresh) == read_histories(active)
    assert {vbucket.history.state for vbucket in fresh.buckets["beer"].store.vbuckets} == {VbucketState.REPLICA}
    assert (progress.running, progress.protocol, progress.lag) == (VBUCKETS, "upr", 0)
    write(active, 300, 400)
    replicate_once(active, fresh, protocol=Dialect.UPR)
    assert read_histories(fresh) == read_histories(active)


def test_upr_alone_is_enough_for_the_source(fresh):
    with Node.running(["beer"], VBUCKETS, pin="upr") as source:
        write(source, 0, 100)
        replicate_once(source, fresh, protocol=Dialect.UPR)
        assert get_history(fresh) == get_history(source)
        assert run(fresh, lambda: get_documents(fresh)) == run(source, lambda: get_documents(source))


def test_source_without_upr_is_an_error(fresh):
    with Node.running(["beer"], VBUCKETS, pin="dcp") as source, pytest.raises(UnsupportedServer, match="UPR"):
        replicate_once(source, fresh, protocol=Dialect.UPR)


def test_copy_over_upr_has_the_default_collection_alone(active, fresh):
    write(active, 0, 50)
    with connected(active, "beer") as client:
        client.hello(Feature.COLLECTIONS)
        set_scopes(client, 1, DEFAULT, make_beers(ALE))
        expected = run(active, lambda: get_documents(active))
        for vbucket in range(VBUCKETS):
            client.set(make_key(ALES), b"ale", vbucket=vbucket)
    replicate_once(active, fresh, protocol=Dialect.UPR)
    assert run(fresh, lambda: get_documents(fresh)) == {
        place: item for place, item in expected.items() if place[1].startswith(make_key(0, b""))
    }


def test_compressed_values_and_expirations_pass_over_upr(active, fresh):
    plain = b'{"a":"' + b"1" * 200 + b'"}'
    with connected(active, "beer") as client:
        client.hello(Feature.SNAPPY, Feature.JSON)
        client.set(b"compressed", deflate(plain), datatype=int(Datatype.SNAPPY), vbucket=1)
        client.set(b"expires", b"{}", vbucket=1)
    vbucket = active.buckets["beer"].store.vbuckets[1]
    run(active, lambda: vbucket.set(b"\0expires", b"", expiry=1_500_000_000))
    with connected(active, "beer") as client:
        assert client.status(Get(key=b"expires", vbucket=1)) == Status.KEY_ENOENT
    replicate_once(active, fresh, protocol=Dialect.UPR)
    place = 1, b"\0compressed"
    expected = run(active, lambda: get_documents(active))[place]._replace(value=plain, datatype=int(Datatype.JSON))
    assert run(fresh, lambda: get_documents(fresh)) == {place: expected}
    assert run(fresh, lambda: get_history(fresh)) == run(active, lambda: get_history(active))


def test_former_active_node_rolls_back_over_upr(active, fresh):
    write(active, 0, 100)
    replicate_once(active, fresh, protocol=Dialect.UPR)
    write(active, 100, 140)  # these changes are lost
    set_states(fresh, VbucketState.ACTIVE)
    write(fresh, 140, 200)
    set_states(active, VbucketState.REPLICA)
    replicate_once(fresh, active, protocol=Dialect.UPR)
    assert read_histories(active) == read_histories(fresh)
    assert all(len(log) >= 2 for log, _, _ in get_history(fresh))


def test_flushed_source_begins_again_over_upr(active, fresh):
    async def main():
        async with replicating(active, fresh, protocol=Dialect.UPR):
            await asyncio.to_thread(write, active, 0, 100)
            await asyncio.to_thread(wait_until_copied, fresh, active)
            with connected(active, "beer") as client:
                assert client.status(Flush()) == Status.SUCCESS
            await asyncio.to_thread(write, active, 100, 120)
            await asyncio.to_thread(wait_until_copied, fresh, active)

    asyncio.run(main())
    assert read_histories(fresh) == read_histories(active)


def test_dialect_that_the_source_lacks_is_an_error(fresh):
    with Node.running(["beer"], VBUCKETS, pin="tap") as source, pytest.raises(UnsupportedServer, match="DCP"):
        replicate_once(source, fresh, protocol=Dialect.DCP)


def test_targets_that_cannot_be_replicas_are_refused(active, fresh):
    with pytest.raises(UsageError, match="active, expected another node"):
        replicate_once(active, active)
    with Node.running(["beer"], 2 * VBUCKETS) as other, pytest.raises(UsageError, match="has 8 vbuckets, expected 4"):
        replicate_once(active, other)
    with pytest.raises(UsageError, match="vbucket 9"):
        replicate_once(active, fresh, vbuckets=[9])


@in_loop
async def test_replication_leaves_a_node_that_keeps_silent_about_a_move():
    """Couchbase 7.2.8 ends no stream after a takeover."""

    @notifying
    def produce(peer, request):
        start = request.start_seqno
        if not start:
            serve_map(one, two, owners=[1], rev=8)
            for other in one.peers[:1]:  # the replicator's own connection
                other.transport.write(push(json.dumps(one.config).encode()))
        return accept(request) + marker(request, start, start + 2) + mutations(request, start + 1, start + 2)

    async with Script(produce, vbuckets=1) as one, Script(produce, vbuckets=1) as two:
        serve_map(one, two, owners=[0])
        with Node.running(["beer"], vbuckets=1) as target:
            vbucket = target.buckets["beer"].store.vbuckets[0]
            async with Replicator(parse_address(one.url()), make_address(target)) as replicator:
                running = asyncio.create_task(replicator.run())
                await wait_until(lambda: vbucket.changes.high_seqno == 4)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
    assert count_requests(Opcode.DCP_STREAM_REQ, one) == count_requests(Opcode.DCP_STREAM_REQ, two) == 1
