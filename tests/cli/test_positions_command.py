"""`penstock positions`: saved positions are listed, shown, moved, copied, reset and imported."""

import asyncio
import json
from datetime import UTC, datetime
from itertools import pairwise

import pytest

import penstock
from penstock.client.documents.document_attributes import AttributeVersion, DocumentAttributes
from penstock.client.positions.saved_positions import decode_positions
from penstock.client.streams.time_search import find_position_before
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import UsageError
from penstock.spark.source.offsets import Offset
from penstock.wire.messages.kv import FailoverEntry


@pytest.fixture
def store(tmp_path):
    return tmp_path / "beer.positions"


def read(node, store, **options):
    """Return the keys that a consumer with this store reads up to now."""

    async def main():
        async with penstock.connect(node.url("beer")) as bucket:
            place = store(bucket) if callable(store) else penstock.FilePositions(store)
            async with penstock.Consumer(bucket, place, stop="now", **options) as consumer:
                return [change.key async for change in consumer.changes()]

    return sorted(asyncio.run(main()))


def write(node, *keys):
    async def main():
        async with penstock.connect(node.url("beer")) as bucket:
            for key in keys:
                await bucket.upsert(key, b"1")

    asyncio.run(main())


def test_positions_are_listed_and_shown(on_beer, node, store):
    write(node, "a", "b", "c")
    read(node, store)
    listed = on_beer("positions", "list", store)
    assert listed.code == 0
    assert "bucket beer, uuid " in listed.out
    assert listed.out.endswith("16 of 16 vbuckets, 3 seqnos\n")
    row = on_beer("positions", "list", store, "--json").json
    assert (row["bucket"], row["vbuckets"], row["seqnos"]) == ("beer", 16, 3)
    shown = on_beer("positions", "show", store).lines
    assert len(shown) == 17
    assert decode_positions(on_beer("positions", "show", store, "--json").out.encode(), "").bucket == "beer"


def test_database_lists_all_its_consumers(on_beer, node, store, tmp_path):
    write(node, "a")
    read(node, store)
    for name in ("x", "y"):
        assert on_beer("positions", "copy", store, f"sqlite:{tmp_path}/p.db#{name}").code == 0
    rows = on_beer("positions", "list", f"sqlite:{tmp_path}/p.db", "--json").json_lines
    assert [row["store"].rpartition("#")[2] for row in rows] == ["x", "y"]


def test_absent_positions_are_reported(on_beer, store):
    assert on_beer("positions", "list", store).out == f"file:{store}: no positions\n"
    shown = on_beer("positions", "show", store)
    assert (shown.code, shown.err) == (1, f"penstock: file:{store} has no positions\n")


def test_positions_are_copied_between_all_stores(on_beer, node, store, tmp_path):
    write(node, "a", "b")
    assert read(node, store) == [b"a", b"b"]
    places = [store, f"sqlite:{tmp_path}/p.db", "document:indexer", tmp_path / "copy"]
    for source, target in pairwise(places):
        assert on_beer("positions", "copy", source, target).code == 0
    copied = on_beer("positions", "show", tmp_path / "copy", "--json").json
    assert copied == json.loads(store.read_text())
    write(node, "c")
    assert read(node, lambda bucket: penstock.DocumentPositions(bucket, "indexer")) == [b"c"]
    refused = on_beer("positions", "copy", store, tmp_path / "copy")
    assert refused.code == 2
    assert "has positions already, expected none; --replace replaces them" in refused.err
    assert on_beer("positions", "copy", store, tmp_path / "copy", "--replace").code == 0


def test_positions_become_an_offset_of_spark_and_return(on_beer, node, store, tmp_path):
    write(node, "a", "b", "c")
    read(node, store)
    assert on_beer("positions", "copy", store, f"spark:{tmp_path}/offset").code == 0
    offset = Offset.from_json(json.loads((tmp_path / "offset").read_text()))
    saved = decode_positions(store.read_bytes(), "")
    assert [each.seqno for each in offset.vbuckets] == [saved.by_vbucket[vb].seqno for vb in range(16)]
    checkpoint = tmp_path / "checkpoint" / "offsets"
    checkpoint.mkdir(parents=True)
    (checkpoint / "0").write_text("v1\n{}\n-")
    (checkpoint / "10").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{(tmp_path / "offset").read_text()}')
    assert on_beer("positions", "copy", f"spark:{tmp_path}/checkpoint", tmp_path / "back").code == 0
    back = decode_positions((tmp_path / "back").read_bytes(), "")
    assert {vb: each.seqno for vb, each in back.by_vbucket.items()} == {
        vb: each.seqno for vb, each in saved.by_vbucket.items() if each.seqno
    }
    write(node, "d")
    assert read(node, tmp_path / "back") == [b"d"]
    refused = on_beer("positions", "copy", store, f"spark:{tmp_path}/checkpoint", "--replace")
    assert (refused.code, "only its query may write a checkpoint" in refused.err) == (2, True)


def test_positions_move_to_the_beginning_and_to_now(on_beer, node, store):
    write(node, "a", "b")
    assert on_beer("positions", "move", store, "--to", "now").code == 0
    assert read(node, store) == []
    write(node, "c")
    assert on_beer("positions", "move", store, "--to", "beginning").code == 0
    assert read(node, store) == [b"a", b"b", b"c"]
    assert read(node, store) == []


def test_positions_move_to_a_time(on_beer, node, store):
    write(node, "a", "b")
    moment = datetime.now(UTC)
    write(node, "c", "d")
    for command in (("move", store, "--to"), ("reset", store, "--at")):
        moved = on_beer("positions", *command, moment.isoformat())
        assert (moved.code, moved.err) == (0, "")
        assert read(node, store) == [b"c", b"d"]


def test_time_before_purged_deletions_is_refused():
    log = (FailoverEntry(8, 50), FailoverEntry(7, 0))
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(UsageError, match="found seqno 19 of vbucket 3 at that time, expected at least 20"):
        find_position_before(3, 20, VbucketInfo(log, 60, 20), moment)
    position = find_position_before(3, 21, VbucketInfo(log, 60, 20), moment)
    assert (position.seqno, position.vbuuid, position.is_complete) == (20, 7, True)
    assert find_position_before(3, 1, VbucketInfo(log, 60, 20), moment).seqno == 0
    assert find_position_before(3, 61, VbucketInfo(log, 60, 20), moment).vbuuid == 8


@pytest.mark.parametrize("where", ["yesterday", "2999-01-01T00:00:00Z"])
def test_impossible_places_are_refused(on_beer, store, where):
    refused = on_beer("positions", "move", store, "--to", where)
    assert refused.code == 2
    assert f"found the time {where[:4]}" in refused.err.replace("'", "")


def test_reset_consumer_starts_over(on_beer, node, store):
    write(node, "a")
    read(node, store)
    assert on_beer("positions", "reset", store).out == f"Reset file:{store}.\n"
    assert read(node, store) == [b"a"]


def test_go_dcp_group_is_imported_from_the_bucket(on_beer, node, store):
    write(node, "a")
    asyncio.run(_write_checkpoints(node))
    imported = on_beer("positions", "import", "group:orders", store, "--format", "go-dcp", "--json")
    assert (imported.code, imported.json["positions"]) == (0, 16)
    read(node, store)  # the documents with the checkpoints
    write(node, "b")
    assert read(node, store) == [b"b"]
    absent = on_beer("positions", "import", "group:other", store, "--format", "go-dcp")
    assert (absent.code, "has no checkpoints of the group 'other'" in absent.err) == (1, True)


async def _write_checkpoints(node):
    async with penstock.connect(node.url("beer")) as bucket:
        uuid = (await bucket.cluster()).uuid
        infos = await bucket.vbucket_infos()
        documents = {
            f"_connector:cbgo:orders:checkpoint:{vb}": {
                "checkpoint": {
                    "snapshot": {"startSeqno": 0, "endSeqno": each.high_seqno},
                    "vbuuid": each.vbuuid,
                    "seqno": each.high_seqno,
                },
                "bucketUuid": uuid,
            }
            for vb, each in infos.items()
        }
        attributes = DocumentAttributes(bucket._requests, "cbgo")
        await attributes.write_many(
            {key: AttributeVersion(json.dumps(each).encode(), 0) for key, each in documents.items()}
        )


def test_import_reads_standard_input(run, node, store):
    entry = {"partition": {"bucket": "beer", "partition": "3"}, "offset": {"bySeqno": 6}}
    done = run(
        *("positions", "import", "-", store, "--format", "kafka", "--url", node.url("beer")),
        stdin=json.dumps({"offsets": [entry]}).encode(),
    )
    assert done.code == 0
    assert decode_positions(store.read_bytes(), "").by_vbucket[3].seqno == 6


@pytest.mark.parametrize(
    ("partition", "found"), [("99", "found vbucket 99, expected"), (None, "found no position of this bucket, expected")]
)
def test_positions_of_no_vbucket_are_refused(run, node, store, partition, found):
    entries = [{"partition": {"bucket": "beer", "partition": partition}, "offset": {"bySeqno": 6}}] if partition else []
    refused = run(
        *("positions", "import", "-", store, "--format", "kafka", "--url", node.url("beer")),
        stdin=json.dumps({"offsets": entries}).encode(),
    )
    assert refused.code == 2
    assert found in refused.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "file:"),
        ("import", "/absent", "x", "--format", "kafka"),
        ("import", "group:g", "x", "--format", "kafka"),
    ],
)
def test_wrong_arguments_name_the_expected_ones(on_beer, arguments):
    refused = on_beer("positions", *arguments)
    assert refused.code == 2
    assert "expected" in refused.err


def test_positions_of_a_group_are_listed_moved_and_reset(on_beer, node):
    async def read_first():
        async with (
            penstock.connect(node.url("beer")) as bucket,
            penstock.Consumer(bucket, group="indexer") as consumer,
        ):
            async for change in consumer.changes():
                await consumer.commit()
                return change.key

    write(node, "a")
    assert asyncio.run(read_first()) == b"a"
    row = on_beer("positions", "list", "group:indexer", "--json").json
    assert (row["store"], row["bucket"], row["positions"]) == ("group:indexer", "beer", 16)
    assert on_beer("positions", "move", "group:indexer", "--to", "beginning").code == 0
    assert asyncio.run(read_first()) == b"a"
    assert on_beer("positions", "reset", "group:indexer").code == 0
    assert on_beer("positions", "list", "group:indexer").out == "group:indexer: no positions\n"


def test_members_of_a_group_are_shown_with_their_leases(on_beer, node):
    async def show_members():
        async with (
            penstock.connect(node.url("beer")) as bucket,
            penstock.Consumer(bucket, group="indexer", lease_seconds=40),
        ):
            shown = [
                await asyncio.to_thread(on_beer, "positions", "members", "indexer", *json) for json in ((), ("--json",))
            ]
            async with penstock.Consumer(bucket, group="indexer", lease_seconds=40):
                return *shown, await asyncio.to_thread(on_beer, "positions", "members", "group:indexer", "--json")

    text, alone, joined = asyncio.run(show_members())
    assert ": vbuckets 0-15, lease 40 s, last sign 2" in text.out
    row = alone.json
    assert (row["vbuckets"], row["lease_seconds"], row["leaving"]) == ([*range(16)], 40.0, [])
    first, second = joined.json_lines
    assert first["name"] == row["name"] != second["name"]
    assert len(first["vbuckets"]) + len(second["vbuckets"]) == 16
    assert first["leaving"] == second["coming"]
    assert on_beer("positions", "members", "indexer").out == "group:indexer: no members\n"
