"""Servers of earlier releases, without HELLO, SELECT_BUCKET, GET_FAILOVER_LOG, DCP or a cluster map."""

import asyncio
import re

import pytest

from penstock import Node, connect, read_changes
from penstock.client.connect.address import parse_address
from penstock.client.connect.handshake import BucketSelection, Purpose, decide_bucket_selection
from penstock.client.connect.map_request import count_vbuckets
from penstock.client.connect.server_info import ServerInfo, describe_missing_dialect
from penstock.client.streams.dialect_check import check_dialect
from penstock.client.topology.vbucket_requests import read_failovers, read_high_seqnos
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    BucketNotServed,
    RemoteProtocolError,
    UnsupportedServer,
    UsageError,
)
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import FailoverEntry
from tests.client.old_server import COUCHBASE_2_5, COUCHBASE_3_1, OldServer, reply, without_map
from tests.client.peer import documents, in_loop

MAPLESS_3_1, MAPLESS_2_5 = without_map(COUCHBASE_3_1), without_map(COUCHBASE_2_5, Status.UNKNOWN_COMMAND)


@pytest.fixture(scope="module")
def node():
    with Node.running(["beer"], vbuckets=4) as node:

        async def fill():
            async with connect(node.url("beer")) as bucket:
                await bucket.upsert_many(documents(0, 100))

        asyncio.run(fill())
        yield node


def keys_of(batches):
    return {key for batch in batches for key in batch["key"].to_pylist()}


EVERYTHING = {key.encode() for key, _ in documents(0, 100)}


@pytest.mark.parametrize("release", [COUCHBASE_3_1, MAPLESS_3_1], ids=["bucket engine", "engine alone"])
@in_loop
async def test_reader_works_without_get_failover_log(node, release):
    with OldServer(node, release) as server:
        async with connect(server.url()) as bucket:
            async with connect(node.url("beer")) as straight:
                assert await bucket.failover_logs(range(4)) == await straight.failover_logs(range(4))
                assert await bucket.failover_logs([2]) == await straight.failover_logs([2])
                assert await bucket.vbucket_infos() == await straight.vbucket_infos()
                assert await bucket.high_seqnos() == await straight.high_seqnos()
            batches = [batch async for batch in bucket.batches("beginning", "now")]
            assert keys_of(batches) == EVERYTHING
            assert not [batch async for batch in bucket.batches("now", "now")]
        assert len(server.find_requests(Opcode.GET_FAILOVER_LOG)) == 4  # in one round trip, once for each connection
        assert not server.find_requests(Opcode.SELECT_BUCKET)


@in_loop
async def test_high_seqnos_come_from_statistics_without_the_command(node):
    """Couchbase 3.0 has DCP without GET_ALL_VB_SEQNOS. Dead vbuckets are omitted, as that command omits them."""
    states = {"vb_0": "active", "vb_1": "dead", "vb_2": "replica", "vb_3": "active"}
    release = COUCHBASE_3_1.override({Opcode.GET_ALL_VB_SEQNOS: Status.UNKNOWN_COMMAND}, {"vbucket": states})
    with OldServer(node, release) as server:
        async with connect(server.url()) as bucket, connect(node.url("beer")) as straight:
            expected = await straight.high_seqnos()
            del expected[1]
            assert await bucket.high_seqnos() == expected
            assert await bucket.high_seqnos() == expected
        assert len(server.find_requests(Opcode.GET_ALL_VB_SEQNOS)) == 1


@pytest.mark.parametrize("release", [COUCHBASE_2_5, MAPLESS_2_5], ids=["bucket engine", "engine alone"])
@in_loop
async def test_server_without_hello_has_documents_and_tap_streams(node, release):
    with OldServer(node, release) as server:
        async with connect(server.url(protocol="tap")) as bucket:
            assert (await bucket.get("k7")).value == documents(7, 8)[0][1]
            await bucket.upsert("k7", documents(7, 8)[0][1])
            assert keys_of([batch async for batch in bucket.batches("beginning", "now")]) == EVERYTHING


@pytest.mark.parametrize("start", ["beginning", "now"])
def test_error_for_a_server_without_dcp_gives_the_remedy(node, start):
    with OldServer(node, COUCHBASE_2_5) as server:
        expected = (
            rf"^127.0.0.1:{server.port} is Couchbase 2.5.1, which has no DCP: "
            "try protocol=tap, which all but pipelines and streaming queries can use$"
        )
        with pytest.raises(UnsupportedServer, match=expected):
            list(read_changes(server.url(), start=start, stop="now"))


LACKS = [
    (
        ServerInfo("v2.5.1_MP1_A", "UNKNOWN", frozenset([Dialect.TAP])),
        Dialect.DCP,
        "Couchbase 2.5.1.*no DCP: try protocol=tap",
    ),
    (
        ServerInfo("1.4.4_304_g7d5a132", ""),
        Dialect.DCP,
        "memcached 1.4.4, .*no DCP; expected a server with change streams",
    ),
    (
        ServerInfo("7.6.0-2176", "7.6.0-2176", frozenset([Dialect.DCP])),
        Dialect.TAP,
        "7.6.0, .* no TAP: try protocol=dcp",
    ),
    (
        ServerInfo("7.6.0-2176", "7.6.0-2176", frozenset([Dialect.DCP])),
        Dialect.UPR,
        "7.6.0, .* no UPR: try protocol=dcp",
    ),
    (ServerInfo(), Dialect.DCP, "memcached of unknown version, which has no DCP; expected"),
    (ServerInfo("7.6.5-penstock-0.1.0"), Dialect.DCP, "Penstock 0.1.0, which"),
    (
        ServerInfo("7.6.5-penstock-0.1.0", "", frozenset([Dialect.DCP])),
        Dialect.DCP,
        "Penstock 0.1.0 and refuses DCP for this bucket; expected one with change streams",
    ),
]


@pytest.mark.parametrize(("server", "dialect", "sentence"), LACKS)
def test_error_names_the_release_and_the_remedy(server, dialect, sentence):
    assert re.match(f"h:1 is .*{sentence}", describe_missing_dialect("h:1", server, dialect))


def test_server_without_tap_is_reported_when_it_refuses_the_stream(node):
    release = COUCHBASE_3_1.override({Opcode.TAP_CONNECT: Status.NOT_SUPPORTED}, {"tap": Status.KEY_ENOENT})
    with OldServer(node, release) as server:
        expected = rf"^127.0.0.1:{server.port} is Couchbase 3.1.6, which has no TAP: try protocol=dcp$"
        with pytest.raises(UnsupportedServer, match=expected):
            list(read_changes(server.url(protocol="tap"), stop="now"))


@pytest.mark.parametrize("protocol", ["upr", "upr-draft"])
def test_server_without_the_drafts_is_reported(node, protocol):
    refused = {Opcode.SET: Status.EINVAL, Opcode.DCP_ADD_STREAM: Status.EINVAL}  # opcodes that the drafts use too
    expected = r"is Couchbase 3.1.6, which has no UPR.*: try protocol=dcp$"
    with OldServer(node, COUCHBASE_3_1.override(refused)) as server, pytest.raises(UnsupportedServer, match=expected):
        list(read_changes(server.url(protocol=protocol), stop="now"))


CHECKS = [
    (COUCHBASE_3_1, Dialect.DCP, None),
    (COUCHBASE_3_1, Dialect.TAP, None),
    (COUCHBASE_3_1, Dialect.UPR, None),  # the node behind the proxy supports the drafts
    (COUCHBASE_3_1, Dialect.UPR_DRAFT, None),
    (COUCHBASE_2_5, Dialect.TAP, None),
    (COUCHBASE_2_5, Dialect.DCP, "Couchbase 2.5.1, which has no DCP: try protocol=tap"),
    (COUCHBASE_2_5, Dialect.UPR, "Couchbase 2.5.1, which has no UPR: try protocol=tap"),
    (
        COUCHBASE_3_1.override(stats={"tap": Status.KEY_ENOENT}),
        Dialect.TAP,
        "Couchbase 3.1.6, which has no TAP: try protocol=dcp",
    ),
    (
        COUCHBASE_3_1.override({Opcode.SET: Status.EINVAL}),
        Dialect.UPR_DRAFT,
        "which has no UPR draft: try protocol=dcp",
    ),
    (
        COUCHBASE_3_1.override(stats={"failovers": Status.KEY_ENOENT, "dcp": Status.KEY_ENOENT}),
        Dialect.DCP,
        "Couchbase 3.1.6, which has no DCP: try protocol=tap",
    ),
]


@pytest.mark.parametrize(("release", "dialect", "sentence"), CHECKS)
@in_loop
async def test_a_dialect_is_checked_before_anything_depends_on_it(node, release, dialect, sentence):
    with OldServer(node, release) as server:
        address = parse_address(server.url())
        if sentence is None:
            await check_dialect(address, dialect)
        else:
            with pytest.raises(UnsupportedServer, match=sentence):
                await check_dialect(address, dialect)


# Login and bucket


@pytest.mark.parametrize(
    ("features", "user", "choice"),
    [
        ([Feature.SELECT_BUCKET], None, BucketSelection.REQUIRED),
        ([Feature.SELECT_BUCKET], "beer", BucketSelection.REQUIRED),
        ([], None, BucketSelection.BY_SERVER),
        ([Feature.JSON], "beer", BucketSelection.BY_SERVER),
        ([], "_admin", BucketSelection.OPTIONAL),
    ],
)
def test_server_or_client_selects_the_bucket(features, user, choice):
    assert decide_bucket_selection(features, user, "beer") is choice


@pytest.mark.parametrize(
    ("stream_name", "dialect", "is_requested"),
    [("", Dialect.TAP, False), ("tail", Dialect.DCP, False), ("tail", Dialect.TAP, True)],
)
def test_only_a_tap_stream_requests_datatypes(stream_name, dialect, is_requested):
    """Couchbase 3.1.6 crashes if it has to inflate compressed documents for a TAP client."""
    features = Purpose(stream_name=stream_name, dialect=dialect).list_features()
    assert (Feature.DATATYPE in features) == is_requested


@pytest.mark.parametrize("release", [COUCHBASE_3_1, COUCHBASE_2_5], ids=["3.1", "2.5"])
@in_loop
async def test_login_by_cram_md5_selects_the_bucket(node, release):
    with OldServer(node, release, users={"beer": "secret"}) as server:
        async with connect(server.url(), username="beer", password="secret") as bucket:
            assert (await bucket.get("k1")).value
        assert {frame.key for frame in server.find_requests(Opcode.SASL_AUTH)} == {b"CRAM-MD5"}
        assert not server.find_requests(Opcode.SELECT_BUCKET)
        with pytest.raises(AuthenticationFailed, match="refused the login of 'beer' by CRAM-MD5"):
            await connect(server.url(), username="beer", password="wrong").connect()


@in_loop
async def test_administrator_selects_the_bucket(node):
    chosen = COUCHBASE_3_1.override({Opcode.SELECT_BUCKET: lambda server, frame: reply(frame)})
    absent = COUCHBASE_3_1.override({Opcode.SELECT_BUCKET: Status.KEY_ENOENT})
    with OldServer(node, chosen, users={"_admin": "secret"}) as server:
        async with connect(server.url(), username="_admin", password="secret") as bucket:
            assert (await bucket.get("k1")).value
        assert [frame.key for frame in server.find_requests(Opcode.SELECT_BUCKET)] == [b"beer"]
        server.release = absent
        with pytest.raises(BucketNotServed, match="no bucket 'beer' on"):
            await connect(server.url(), username="_admin", password="secret").connect()
        server.release = COUCHBASE_3_1.override({Opcode.SELECT_BUCKET: Status.EACCESS})
        with pytest.raises(AccessDenied, match="user '_admin' may not access it"):
            await connect(server.url(), username="_admin", password="secret").connect()


@pytest.mark.parametrize(("username", "password"), [(None, None), ("other", "secret")])
@in_loop
async def test_bucket_other_than_the_requested_bucket_is_refused(node, username, password):
    with OldServer(node, COUCHBASE_3_1, users={"other": "secret"}) as server:
        expected = "chose bucket 'beer' for this connection, expected 'wine': this server chooses the bucket by"
        with pytest.raises(UsageError, match=expected):
            await connect(server.url("wine"), username=username, password=password).connect()


# No cluster map


@pytest.mark.parametrize("status", [Status.SUCCESS, Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED, Status.EINVAL])
@in_loop
async def test_vbuckets_are_counted_without_a_map(node, status):
    with OldServer(node, without_map(COUCHBASE_3_1, status)) as server:
        async with connect(server.url()) as bucket:
            assert bucket.vbuckets == 4
            assert (await bucket.cluster()).endpoints == (("127.0.0.1", server.port),)


@in_loop
async def test_option_gives_the_number_of_vbuckets(node):
    release = MAPLESS_3_1.override(stats={"": {"ep_max_vbuckets": "1024"}})
    with OldServer(node, release) as server:
        expected = (
            "has no cluster map, and its statistics show 4 vbuckets of at most 1024; "
            "if it has the whole bucket, give the option vbucketCount=N"
        )
        with pytest.raises(BucketNotServed, match=expected):
            await connect(server.url()).connect()
        async with connect(server.url(vbucketCount=4)) as bucket:
            assert bucket.vbuckets == 4
            assert (await bucket.get("k1")).value
            assert keys_of([batch async for batch in bucket.batches("beginning", "now")]) == EVERYTHING
        assert len(server.find_requests(Opcode.GET_CLUSTER_CONFIG)) == 1


@in_loop
async def test_option_with_too_few_vbuckets_is_refused(node):
    """A read would omit documents silently, and a write would store them where no other client looks."""
    with OldServer(node, MAPLESS_3_1) as server:
        with pytest.raises(UsageError, match="has vbucket 3, expected vbuckets 0 to 2 \\(option vbucketCount\\)"):
            await connect(server.url(vbucketCount=3)).connect()
        server.release = MAPLESS_3_1.override(stats={"vbucket": {**ACTIVE, "vb_3": "dead"}})
        async with connect(server.url(vbucketCount=3)) as bucket:
            assert bucket.vbuckets == 3


@pytest.mark.parametrize("options", [{}, {"vbucketCount": 4}])
@in_loop
async def test_statistics_without_a_map_show_the_selected_bucket(node, options):
    """Couchbase 2.0 to 2.2 selects the bucket `default` for clients without login."""
    chosen = {**MAPLESS_3_1.stats[""], "ep_couch_bucket": "default"}
    with OldServer(node, MAPLESS_3_1.override(stats={"": chosen}), users={"beer": "", "other": ""}) as server:
        with pytest.raises(UsageError, match="chose bucket 'default' for this connection, expected 'beer'"):
            await connect(server.url(**options)).connect()
        with pytest.raises(UsageError, match="chose bucket 'default' for this connection, expected 'beer'"):
            await connect(server.url(**options), username="other", password="").connect()
        await connect(server.url("default", **options)).connect()
        # The login selected the bucket. The name that its engine got when it was created does not matter.
        async with connect(server.url(**options), username="beer", password="") as bucket:
            assert (await bucket.get("k1")).value


ACTIVE = {f"vb_{vb}": "active" for vb in range(4)}


@pytest.mark.parametrize(
    ("states", "most", "count"),
    [
        (ACTIVE, "4", 4),
        (ACTIVE, "1024", 0),
        (ACTIVE, "", 0),
        ({**ACTIVE, "vb_2": "dead"}, "4", 0),
        ({**ACTIVE, "vb_0": "replica"}, "4", 0),
        ({**ACTIVE, "vb_5": "active"}, "5", 0),
        ({}, "0", 0),
        ({}, "", 0),
        ({**ACTIVE, "uuid": "x"}, "4", 4),
    ],
)
def test_vbuckets_are_counted_only_where_it_is_certain(states, most, count):
    assert count_vbuckets(states, most) == count


# Statistics in place of requests


def test_failover_logs_are_read_from_statistics():
    stats = {
        "vb_0:num_entries": "2",
        "vb_0:1:id": "7",
        "vb_0:1:seq": "0",
        "vb_0:0:id": str(2**64 - 1),
        "vb_0:0:seq": "41",
        "vb_12:num_entries": "1",
        "vb_12:0:id": "9",
        "vb_12:0:seq": "0",
    }
    assert read_failovers(stats) == {
        0: (FailoverEntry(2**64 - 1, 41), FailoverEntry(7, 0)),
        12: (FailoverEntry(9, 0),),
    }
    assert read_high_seqnos({"vb_3:high_seqno": "5", "vb_3:uuid": "77"}) == {3: 5}


@pytest.mark.parametrize(
    "stats",
    [
        {"vb_0:0:id": "7"},
        {"vb_0:0:id": "-7", "vb_0:0:seq": "1"},
        {"vb_0:0:id": "7", "vb_0:0:seq": "x"},
        {"vb_0:0:id": str(2**64), "vb_0:0:seq": "1"},
        {"vb_0:0:id": "1" * 5000, "vb_0:0:seq": "1"},
        {"vb_0:0:id": "٣", "vb_0:0:seq": "1"},
    ],
)
def test_statistics_without_numbers_are_a_protocol_error(stats):
    with pytest.raises(RemoteProtocolError, match="expected a number from 0 to 2"):
        read_failovers(stats)
    with pytest.raises(RemoteProtocolError, match="expected a number"):
        read_high_seqnos({"vb_0:high_seqno": "many"})
