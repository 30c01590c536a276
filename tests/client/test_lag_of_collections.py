"""The lag of a stream of some collections, while other collections change: the producer sends nothing about these."""

import asyncio

import pytest

from penstock import connect
from penstock.client.feeds.collection_selection import CollectionSelection
from penstock.client.signals.consumer_reporter import ConsumerReporter, ReportedState
from penstock.node import Node
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Change
from penstock.wire.messages.kv import SelectBucket
from tests.client.old_server import OldServer, Release, reply
from tests.client.peer import in_loop
from tests.node.manifests import ALE, DEFAULT, LAGER, make_beers, set_scopes
from tests.node.wire_client import connected

ALES, LAGERS, OTHER = "beers.ales", "beers.lagers", ""


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=4) as node:
        with connected(node) as client:
            client.hello(Feature.COLLECTIONS)
            client.status(SelectBucket(key=b"beer"))
            set_scopes(client, 1, DEFAULT, make_beers(ALE, LAGER))
        yield node


def report_on(bucket, stream):
    def read_state():
        return ReportedState(stream.counts, stream.positions, stream.queued_bytes, stream.missing)

    return ConsumerReporter(bucket, read_state, stream.selection)


async def write(bucket, collection, count=8):
    for number in range(count):
        await bucket.upsert(f"k{number}", b"v", collection=collection)


@pytest.mark.parametrize("options", [{"scope": "beers"}, {"collections": [ALES, LAGERS]}], ids=["scope", "collections"])
@in_loop
async def test_foreign_changes_are_no_lag(node, options):
    async with connect(node.url("beer")) as bucket:
        await write(bucket, ALES)
        await write(bucket, OTHER)
        async with await bucket.stream(**options) as stream:
            found: list[Change] = []
            reading = asyncio.ensure_future(collect(stream, found))
            reporter = report_on(bucket, stream)
            await wait_until_caught_up(reporter)
            await write(bucket, OTHER)
            report = await reporter.report()
            assert (report.is_caught_up, report.lag_seqnos, report.lag_seconds) == (True, 0, 0.0)
            await write(bucket, LAGERS)
            await wait_until_caught_up(reporter)
            assert [change.collection for change in found[-8:]] == ["lagers"] * 8
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def collect(stream, found):
    async for change in stream.changes():
        found.append(change)


async def wait_until_caught_up(reporter):
    while not (await reporter.report()).is_caught_up:
        pass


@in_loop
async def test_lag_is_unknown_where_the_server_has_no_seqnos_of_collections(node):
    release = Release({Opcode.GET_ALL_VB_SEQNOS: lambda server, frame: refuse_collection(frame)})
    with OldServer(node, release) as server:
        async with connect(server.url()) as bucket, await bucket.stream(scope="beers") as stream:
            await write(bucket, ALES)
            await anext(stream.changes())
            report = await report_on(bucket, stream).report()
            assert (report.lags, report.is_caught_up) == ({}, False)


def refuse_collection(frame):
    return reply(frame, Status.EINVAL) if len(frame.extras) == 8 else None


@in_loop
async def test_high_seqnos_of_collections_are_those_of_their_changes(node):
    async with connect(node.url("beer")) as bucket:
        await write(bucket, OTHER)
        before = await bucket.high_seqnos()
        await write(bucket, ALES, 1)
        whole, ales = await bucket.high_seqnos(), await bucket.high_seqnos(CollectionSelection("beers", ("ales",)))
        (vbucket,) = [vb for vb in whole if whole[vb] != before[vb]]
        assert ales[vbucket] == whole[vbucket]
        assert all(ales[vb] < whole[vb] for vb in whole if vb != vbucket and before[vb] > 5)
        assert await bucket.high_seqnos(CollectionSelection()) == whole
        nothing = await bucket.high_seqnos(CollectionSelection("beers", ("stouts",)))
        assert nothing == dict.fromkeys(whole, 0)
