"""Vbuckets that no node serves: a read up to now waits for them, then fails with their numbers or skips them."""

import logging

import pytest

from penstock import Node, connect, read_changes
from penstock.client.connect.address import parse_address
from penstock.client.documents.document import compute_vbucket
from penstock.client.topology.missing_vbuckets import (
    MissingReport,
    check_vbucket_numbers,
    format_ranges,
    make_not_served_error,
    parse_group_vbuckets,
)
from penstock.errors import NotMyVbucket, Unreachable, UsageError, VbucketsNotServed
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import StreamReq
from penstock.wire.messages.kv import DelVbucket, SetVbucket, pack_vb_seqnos
from tests.client.peer import Script, documents, in_loop, reply
from tests.client.producer import accept, marker, mutations, noop, refuse
from tests.node.wire_client import connected

ACTIVE, REPLICA, PENDING, DEAD = VbucketState
VBUCKETS = 8
ABSENT = None
ADDRESS = parse_address("couchbase://127.0.0.1/beer")
SKIPPING = parse_address("couchbase://127.0.0.1/beer?missingVbuckets=skip")


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        yield node


def set_state(node, vbucket, state):
    with connected(node, "beer") as client:
        if state is ABSENT:
            assert client.status(SetVbucket(vbucket=vbucket, state=DEAD)) == Status.SUCCESS
            assert client.status(DelVbucket(vbucket=vbucket)) == Status.SUCCESS
        else:
            assert client.status(SetVbucket(vbucket=vbucket, state=state)) == Status.SUCCESS


async def fill(url, count=80):
    """Store documents; return vbucket -> number of its documents."""
    stored = documents(0, count)
    async with connect(url) as bucket:
        await bucket.upsert_many(stored)
    found = [compute_vbucket(key.encode(), VBUCKETS) for key, _ in stored]
    return {vbucket: found.count(vbucket) for vbucket in range(VBUCKETS)}


async def count_rows(url, **options):
    """Read a bucket up to now; return vbucket -> number of rows, and the vbuckets that were skipped."""
    async with connect(url) as bucket:
        found = [row.vbucket async for row in bucket.changes(**{"stop": "now", **options})]
        return {vbucket: found.count(vbucket) for vbucket in set(found)}, bucket.missing


# Error messages


@pytest.mark.parametrize(
    ("missing", "count", "sentence"),
    [
        ([3], 8, "vbucket 3 (1 of 8) is not served by couchbase://127.0.0.1:11210/beer"),
        ([3, *range(17, 41)], 64, "vbuckets 3, 17-40 (25 of 64) are not served by couchbase://127.0.0.1:11210/beer"),
        (range(1024), 1024, "vbuckets 0-1023 (1024 of 1024) are not served by couchbase://127.0.0.1:11210/beer"),
    ],
)
def test_error_names_the_missing_vbuckets(missing, count, sentence):
    error = make_not_served_error(missing, count, ADDRESS)
    assert str(error) == sentence
    assert error.vbuckets == tuple(missing)
    assert isinstance(error, NotMyVbucket)
    assert error.retriable
    assert str(make_not_served_error(missing, count, ADDRESS, "h:1: refused")) == f"{sentence} (h:1: refused)"


def test_error_gives_a_known_reason():
    assert str(make_not_served_error([3], 8, ADDRESS, "no node is left")).endswith(" (no node is left)")


def test_missing_vbuckets_fail_a_read_unless_they_are_skipped():
    with pytest.raises(
        VbucketsNotServed, match=r"^vbucket 1 \(1 of 2\) is not served by couchbase://127.0.0.1:11210/beer$"
    ):
        MissingReport(ADDRESS).select_served(range(2), {0: 0}, 2)
    report = MissingReport(ADDRESS)
    assert report.missing == ()
    assert report.select_served([1], {0: 5, 1: 6}, 2) == {1: 6}


@pytest.mark.parametrize("vbucket", [-1, 8, 9])
def test_impossible_vbucket_numbers_are_refused(vbucket):
    with pytest.raises(UsageError, match=rf"^vbucket {vbucket} of couchbase://127.0.0.1:11210/beer, which has 8$"):
        check_vbucket_numbers([0, 7, vbucket], 8, ADDRESS)


def test_possible_vbucket_numbers_are_accepted():
    check_vbucket_numbers(range(8), 8, ADDRESS)


@pytest.mark.parametrize(
    ("group", "numbers"),
    [
        ("", []),
        ("vbucket", []),
        ("vbucket-details 7", [7]),
        ("vbucket-details 7 8", [7]),
        ("key k 7", [7]),
        ("key 5 7", [7]),
        ("vkey 5 7 8", [7]),
        ("key-byid 5 7", [7]),
        ("vkey-byid k 7", [7]),
        ("key 7", []),
        ("failovers -1", []),
        ("failovers x", []),
        ("failovers \u0663", []),  # a digit, but not of ASCII
    ],
)
def test_vbucket_of_a_statistics_group_is_parsed(group, numbers):
    assert parse_group_vbuckets(group) == numbers


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([4], "4"), ([5, 4], "4-5"), ([1, 3, 4, 4, 5, 9], "1,3-5,9"), ([0, 2], "0,2")]
)
def test_numbers_are_formatted_as_ranges(numbers, text):
    assert format_ranges(numbers) == text
    assert format_ranges(numbers, "; ") == text.replace(",", "; ")


def test_each_change_of_the_skipped_vbuckets_is_reported_once(caplog):
    report = MissingReport(SKIPPING)
    served = dict.fromkeys(range(4), 0)
    for found in ({0: 0, 1: 0}, {0: 0, 1: 0}, {0: 0, 1: 0, 2: 0}, served, served):
        assert report.select_served(range(4), found, 4) == found
    assert [message.partition(" by ")[0] for message in caplog.messages] == [
        "vbuckets 2-3 (2 of 4) are not served",
        "vbucket 3 (1 of 4) is not served",
        "all vbuckets of couchbase://127.0.0.1:11210/beer are served again",
    ]
    assert report.missing == ()


# Reads without a vbucket

READS = [
    ({"protocol": dialect}, state)
    for dialect in ("dcp", "upr", "upr-draft", "tap")
    for state in (DEAD, PENDING, ABSENT)
]


@pytest.mark.parametrize(("options", "state"), READS)
@in_loop
async def test_read_up_to_now_fails_with_the_missing_numbers(node, options, state):
    await fill(node.url("beer"))
    set_state(node, 3, state)
    set_state(node, 5, state)
    with pytest.raises(Unreachable, match=r"did not serve for .*: vbuckets 3, 5 \(2 of 8\) are not served by"):
        await count_rows(node.url("beer") + "?retrySeconds=0.05", **options)
    rows, missing = await count_rows(node.url("beer") + "?retrySeconds=0.2", vbuckets=[0, 1], **options)
    assert (rows.keys(), missing) == ({0, 1}, ())


@pytest.mark.parametrize(("options", "state"), READS)
@in_loop
async def test_read_that_skips_vbuckets_reports_them(node, options, state, caplog):
    counts = await fill(node.url("beer"))
    set_state(node, 3, state)
    rows, missing = await count_rows(node.url("beer") + "?missingVbuckets=skip", **options)
    assert (rows, missing) == ({vbucket: count for vbucket, count in counts.items() if vbucket != 3}, (3,))
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"vbucket 3 (1 of 8) is not served by {node.url('beer')}: skipped (missingVbuckets=skip)"
    ]


@in_loop
async def test_replicas_are_read_but_not_dumped_by_tap(node):
    """A TAP dump has active vbuckets only, except the dump of a bridge (tests/node/test_follow.py)."""
    counts = await fill(node.url("beer"))
    for vbucket in range(VBUCKETS):
        set_state(node, vbucket, REPLICA)
    assert await count_rows(node.url("beer")) == (counts, ())
    with pytest.raises(Unreachable, match=r"vbuckets 0-7 \(8 of 8\) are not served by"):
        await count_rows(node.url("beer") + "?retrySeconds=0.1", protocol="tap")


def test_blocking_reader_fails_as_well(node):
    set_state(node, 7, DEAD)
    with pytest.raises(Unreachable, match=r"vbucket 7 \(1 of 8\) is not served by"):
        list(read_changes(node.url("beer") + "?retrySeconds=0.1", stop="now"))


@in_loop
async def test_vbucket_infos_fail_or_skip_missing_vbuckets(node):
    set_state(node, 2, DEAD)
    async with connect(node.url("beer") + "?retrySeconds=0.1") as bucket:
        with pytest.raises(Unreachable, match=r"vbucket 2 \(1 of 8\) is not served by"):
            await bucket.vbucket_infos()
        assert (await bucket.vbucket_infos([0, 1])).keys() == {0, 1}
    async with connect(node.url("beer") + "?missingVbuckets=skip") as bucket:
        known = await bucket.vbucket_infos()
        assert known.keys() == {*range(VBUCKETS)} - {2}
        set_state(node, 2, ACTIVE)
        assert (await bucket.vbucket_infos(None, known)).keys() == {*range(VBUCKETS)}
        assert bucket.missing == ()


@in_loop
async def test_stream_from_now_skips_missing_vbuckets(node):
    set_state(node, 0, DEAD)
    async with (
        connect(node.url("beer") + "?missingVbuckets=skip") as bucket,
        await bucket.stream(start="now") as stream,
    ):
        assert stream.positions.keys() == {*range(1, VBUCKETS)}


# Waiting for vbuckets


@pytest.mark.parametrize("protocol", ["dcp", "tap"])
@in_loop
async def test_missing_vbucket_is_waited_for(protocol):
    """A vbucket is missing in the first three answers."""
    queries = []

    def answer(peer, frame):
        queries.append(frame.opcode)
        left = range(1, VBUCKETS) if queries.count(frame.opcode) <= 3 else range(VBUCKETS)
        if frame.opcode == Opcode.GET_ALL_VB_SEQNOS:
            return reply(frame, value=pack_vb_seqnos((vbucket, 7) for vbucket in left))
        states = [reply(frame, key=b"vb_%d" % vbucket, value=b"active") for vbucket in left]
        return b"".join((*states, reply(frame)))

    def is_query(frame):
        return frame.opcode == Opcode.GET_ALL_VB_SEQNOS or (frame.opcode == Opcode.STAT and frame.key == b"vbucket")

    async with (
        Script(lambda peer, frame: answer(peer, frame) if is_query(frame) else None, VBUCKETS) as script,
        connect(script.url()) as bucket,
    ):
        served = await (bucket.reports.dumped_vbuckets if protocol == "tap" else bucket.reports.served_seqnos)(
            range(VBUCKETS)
        )
    assert served == dict.fromkeys(range(VBUCKETS), 0 if protocol == "tap" else 7)
    assert len(queries) > 3


@in_loop
async def test_tap_server_without_vbucket_states_is_read_anyway():
    refused = {Opcode.STAT: Status.KEY_ENOENT}
    async with (
        Script(lambda peer, frame: reply(frame, refused[frame.opcode]) if frame.opcode in refused else None) as script,
        connect(script.url()) as bucket,
    ):
        assert await bucket.reports.dumped_vbuckets([0, 1]) == {0: 0, 1: 0}


# Streams without a vbucket


@in_loop
async def test_refused_stream_does_not_delay_other_streams():
    """The producer sends vbucket 1 only after a round trip that follows the refusal of vbucket 0."""
    streams = {}

    def answer(peer, frame):
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            request = decode_frame(frame)
            assert isinstance(request, StreamReq)
            if request.vbucket == 0:
                return refuse(request, Status.NOT_MY_VBUCKET)
            streams[peer] = request
            return accept(request) + noop(7)
        if frame.opcode == Opcode.DCP_NOOP and peer in streams and not streams[peer].start_seqno:
            return marker(streams[peer], 0, 2) + mutations(streams[peer], 1, 2)
        return None

    async with Script(answer) as script, connect(script.url(retrySeconds=0.5)) as bucket:
        changes = bucket.changes()
        assert [(await anext(changes)).seqno for _ in range(2)] == [1, 2]
        with pytest.raises(Unreachable, match=r"last failure: vbucket 0 \(1 of 2\) is not served by"):
            await anext(changes)
