"""The client with default settings reads the changes of servers of each generation, from Couchbase 2.5 to 8.0."""

import pytest

from penstock import connect
from penstock.client.connect.address import Compression
from penstock.errors import UnsupportedServer, UsageError
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.kv import unpack_features
from tests.client.peer import in_loop
from tests.client.scripted_release import RELEASES, ReleaseServer

DCP = [release for release in RELEASES.values() if release.protocol == "dcp"]


def connect_to(server, **options):
    return connect(server.url(**options), username=server.user, password=server.password)


def list_changes(changes):
    """Return the changes as the table has them."""
    return [
        [each.event, (each.key or b"").decode(), each.seqno or 0, each.rev_seqno or 0]
        + [each.collection] * (each.collection is not None)
        for each in changes
    ]


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
@in_loop
async def test_client_reads_the_changes_of_each_release(release):
    options = {} if release.protocol == "dcp" else {"protocol": release.protocol}
    async with ReleaseServer(release) as server, connect_to(server, **options) as bucket:
        changes = [each async for each in bucket.changes("beginning", "now")]
        assert sorted(list_changes(changes)) == sorted(release.changes)


@pytest.mark.parametrize("release", DCP, ids=[release.name for release in DCP])
@in_loop
async def test_client_starts_where_each_release_ends(release):
    async with ReleaseServer(release) as server, connect_to(server) as bucket:
        assert not [each async for each in bucket.changes("now", "now")]
        starts = {frame.specific: int.from_bytes(frame.extras[8:16], "big") for frame in find_streams(server)}
        assert starts == {vbucket: seqno for vbucket, seqno in release.seqnos.items() if seqno}


def find_streams(server):
    return server.find_requests(Opcode.DCP_STREAM_REQ)


@pytest.mark.parametrize(
    ("name", "options", "refused", "sentence"),
    [
        ("Couchbase 2.5.1", {}, UnsupportedServer, "is Couchbase 2.5.1, which has no DCP: try protocol=tap"),
        ("Couchbase 3.1.6", {"mitigateRollback": "true"}, UnsupportedServer, "has no OBSERVE_SEQNO"),
        (
            "Couchbase 4.6.2",
            {"collections": "hotel"},
            UsageError,
            "the node or the dialect does not support collections",
        ),
        ("Couchbase 6.0.5", {"scope": "inventory"}, UsageError, "the node or the dialect does not support collections"),
        ("Couchbase 7.0.5", {"collections": "inventory.flat"}, UsageError, "inventory.flat"),
    ],
)
@in_loop
async def test_feature_that_a_release_lacks_is_reported(name, options, refused, sentence):
    async with ReleaseServer(RELEASES[name]) as server, connect_to(server, **options) as bucket:
        with pytest.raises(refused, match=sentence):
            [each async for each in bucket.changes("beginning", "now")]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Couchbase 3.1.6", {"xattrs": "true"}),
        ("Couchbase 5.0.1", {"xattrs": "true"}),
        ("Couchbase 7.0.5", {"changeHistory": "true"}),
        ("Couchbase 7.6.10", {"changeHistory": "true"}),
    ],
)
@in_loop
async def test_client_reads_on_without_an_option_that_a_release_refuses(name, options):
    async with ReleaseServer(RELEASES[name]) as server, connect_to(server, **options) as bucket:
        changes = [each async for each in bucket.changes("beginning", "now")]
        assert sorted(list_changes(changes)) == sorted(server.release.changes)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("release", DCP, ids=[release.name for release in DCP])
@in_loop
async def test_compression_is_requested_where_a_release_has_it(release, compression):
    """Releases before 5.0 have no compression that HELLO agrees on; 5.0 refuses to compress plain values."""
    async with ReleaseServer(release) as server, connect_to(server, compression=str(compression)) as bucket:
        changes = [each async for each in bucket.changes("beginning", "now")]
        assert sorted(list_changes(changes)) == sorted(release.changes)
        is_requested = [Feature.SNAPPY in unpack_features(each.value) for each in server.find_requests(Opcode.HELLO)]
        assert any(is_requested) == (compression is not Compression.OFF)
        forced = [each for each in server.find_requests(Opcode.DCP_CONTROL) if each.key == b"force_value_compression"]
        assert bool(forced) == (compression is Compression.FORCE and "SNAPPY" in release.features)


@in_loop
async def test_only_new_connections_lack_delete_times():
    """Couchbase 5.0 closes the connection on which it refused them."""
    async with ReleaseServer(RELEASES["Couchbase 5.0.1"]) as server, connect_to(server) as bucket:
        [each async for each in bucket.changes("beginning", "now")]
        opened = server.find_requests(Opcode.DCP_OPEN)
        assert [int.from_bytes(frame.extras[4:], "big") for frame in opened] == [0x21, 0x01]
