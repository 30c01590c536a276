"""Dumps of a bucket: every row once after kills, all metadata in every format, and the way back into another bucket."""

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.client.bucket import Bucket
from penstock.client.documents.document_attributes import AttributeVersion
from penstock.client.dumps.bucket_dump import BucketDump, DumpChoice
from penstock.client.dumps.bucket_restore import BucketRestore
from penstock.client.dumps.dump_formats import FORMATS, choose_format
from penstock.client.dumps.json_changes import read_json_lines, write_json_rows
from penstock.client.dumps.partial_dump import PartialDump
from penstock.client.feeds.stream_position import Position
from penstock.client.positions.saved_positions import SavedPositions
from penstock.client.streams.stream_choice import ChangeOptions
from penstock.errors import PositionsUnreadable, UnknownScope, UsageError
from penstock.node import Node
from penstock.wire.codec.flags import Datatype
from penstock.wire.columns.run_decoder import list_changes, make_batch
from penstock.wire.columns.schema import CHANGE_SCHEMA, Change, Event
from tests.client.test_collections import change as change_manifest
from tests.patience import PATIENCE

DOCUMENT_EVENTS = {Event.MUTATION, Event.DELETION, Event.EXPIRATION}
EVERYTHING = DumpChoice(options={"xattrs": True})


def add_collection(node):
    change_manifest(node, lambda manifest: manifest.with_scope("shop").with_collection("shop", "hotel"))


@pytest.fixture(scope="module")
def source():
    """A node whose bucket has documents of every kind."""
    with Node.running(["beer"], vbuckets=16) as node:
        add_collection(node)
        asyncio.run(fill(node.url("beer")))
        yield node


@pytest.fixture
def target():
    """A node with an empty bucket of another number of vbuckets."""
    with Node.running(["beer"], vbuckets=64) as node:
        add_collection(node)
        yield node


async def fill(url):
    async with asyncio.timeout(PATIENCE), penstock.connect(url) as bucket:
        plain = [(b"plain%04d" % each, bytes([each % 256, 255, 0])) for each in range(500)]
        await bucket.upsert_many(plain, flags=7)
        await bucket.upsert_many(plain[:100], flags=2**32 - 1)  # rev_seqno 2
        await bucket.upsert_many([(b"\xff\x00%d" % each, b"") for each in range(20)])
        documents = [(f"json{each}", json.dumps({"n": each, "name": "Bräu"}).encode()) for each in range(100)]
        await bucket.upsert_many(documents, datatype=Datatype.JSON, expiry=2_000_000_000)
        await bucket.upsert_many(documents, collection="shop.hotel")
        await bucket.attributes.write_many({f"attributes{each}": AttributeVersion(b'{"a": 1}', 0) for each in range(9)})
        for key, _ in plain[200:230]:
            await bucket.remove(key)


async def read_documents(url):
    """Return the newest change of each document, as `strip` leaves it."""
    async with asyncio.timeout(PATIENCE), penstock.connect(url) as bucket:
        found = {}
        async for change in bucket.changes(stop="now", xattrs=True):
            if change.event in DOCUMENT_EVENTS:
                found[change.scope, change.collection, change.key] = strip(change)
        return found


def strip(change):
    """Leave out the numbers of the vbucket's history and of the collection."""
    nothing = dict.fromkeys(("vbucket", "vbuuid", "seqno", "collection_id", "delete_time"))
    nothing |= dict.fromkeys(("snapshot_start", "snapshot_end", "snapshot_flags"))
    return change._replace(**nothing)


async def dump(url, path, choice=EVERYTHING, **options):
    async with asyncio.timeout(PATIENCE), Bucket(penstock.connect(url).address) as bucket:
        return await BucketDump(bucket, path, choose_format(path, None), choice, **options).run()


async def restore(url, path, **options):
    async with asyncio.timeout(PATIENCE), penstock.connect(url) as bucket:
        return await BucketRestore(bucket, path, choose_format(path, None), **options).run()


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow"])
def test_restored_documents_are_those_of_the_source(source, target, tmp_path, suffix):
    path = tmp_path / f"dump.{suffix}"
    rows = asyncio.run(dump(source.url("beer"), path))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    expected = asyncio.run(read_documents(source.url("beer")))
    own = {key for key in expected if key[2].startswith(b"_penstock:")}
    assert not own
    assert rows == len(expected)
    counts = asyncio.run(restore(target.url("beer"), path))
    assert (counts.rows, counts.written + counts.missing, counts.refused) == (rows, rows, 0)
    assert asyncio.run(read_documents(target.url("beer"))) == expected
    again = asyncio.run(restore(target.url("beer"), path))
    assert (again.rows, again.written, again.kept + again.missing) == (rows, 0, rows)
    assert asyncio.run(read_documents(target.url("beer"))) == expected


def test_newer_versions_stay_unless_the_restore_is_forced(source, target, tmp_path):
    path, url = tmp_path / "dump.arrow", target.url("beer")
    asyncio.run(dump(source.url("beer"), path))
    expected = asyncio.run(read_documents(source.url("beer")))

    async def write_newer():
        async with penstock.connect(url) as bucket:
            for value in (b"1", b"2", b"3"):
                await bucket.upsert("json1", value)

    asyncio.run(write_newer())
    counts = asyncio.run(restore(url, path))
    assert counts.kept == 1
    changed = {key: each.value for key, each in asyncio.run(read_documents(url)).items() if expected[key] != each}
    assert changed == {("_default", "_default", b"json1"): b"3"}
    asyncio.run(restore(url, path, is_forced=True))
    assert asyncio.run(read_documents(url)) == expected


def test_parquet_is_read_by_other_programs(source, tmp_path):
    path = tmp_path / "dump.parquet"
    rows = asyncio.run(dump(source.url("beer"), path))
    assert pq.read_table(path).schema.equals(CHANGE_SCHEMA)
    query = "SELECT event, collection, count(*) FROM read_parquet(?) GROUP BY ALL ORDER BY ALL"
    counts = duckdb.execute(query, [str(path)]).fetchall()
    assert counts == [("deletion", "_default", 30), ("mutation", "_default", rows - 130), ("mutation", "hotel", 100)]
    query = "SELECT decode(value)->>'name' FROM read_parquet(?) WHERE key = 'json7'::BLOB AND scope = 'shop'"
    assert duckdb.execute(query, [str(path)]).fetchall() == [("Bräu",)]


def test_choice_limits_the_rows(source, tmp_path):
    path = tmp_path / "dump.jsonl"
    options: ChangeOptions = {
        "xattrs": True,
        "collections": ("shop.hotel",),
        "filter_key": "^json[0-9]$",
        "filter_value": "n > 4",
    }
    assert asyncio.run(dump(source.url("beer"), path, DumpChoice(options=options))) == 5
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(row["key"], row["collection"]) for row in rows} == {(f"json{each}", "hotel") for each in range(5, 10)}
    one = DumpChoice(vbuckets=(3,), options={"xattrs": True})
    asyncio.run(dump(source.url("beer"), tmp_path / "one.arrow", one))
    assert pa.ipc.open_file(tmp_path / "one.arrow").read_all()["vbucket"].unique().to_pylist() == [3]
    later = DumpChoice(start=datetime.now(UTC) - timedelta(microseconds=1), options={"xattrs": True})
    assert asyncio.run(dump(source.url("beer"), tmp_path / "none.parquet", later)) == 0


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path

import penstock
from penstock.client.consumers.commit_policy import CommitPolicy
from penstock.client.dumps import bucket_dump
from penstock.client.dumps.dump_formats import FORMATS
from penstock.client.dumps.partial_dump import PartialDump

url, path, place, rows = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
bucket_dump._COMMIT = CommitPolicy(changes=5000)

def killing(owner, name):
    before = getattr(owner, name)
    def run(self, *arguments):
        if self.rows >= rows:
            os.kill(os.getpid(), signal.SIGKILL)
        return before(self, *arguments)
    setattr(owner, name, run)

killing(PartialDump, place)

async def main():
    async with penstock.connect(url) as bucket:
        choice = bucket_dump.DumpChoice(options={"xattrs": True})
        await bucket_dump.BucketDump(bucket, path, FORMATS["parquet"], choice).run()

asyncio.run(main())
"""


@pytest.mark.process
def test_killed_dump_goes_on_without_a_lost_or_repeated_row(tmp_path):
    """100,000 documents, a kill in each part of the dump, and writes between the kills."""
    path, count = tmp_path / "dump.parquet", 100_000
    with Node.running(["beer"], vbuckets=64) as node, Node.running(["beer"], vbuckets=16) as target:

        async def write(first, end):
            async with asyncio.timeout(PATIENCE), penstock.connect(node.url("beer")) as bucket:
                await bucket.upsert_many([(b"k%06d" % each, b'{"n":%d}' % each) for each in range(first, end)])

        asyncio.run(write(0, count - 1000))
        kills = (("append", 30_000), ("append", 70_000), ("write", 80_000), ("read_batches", 0), ("remove", 0))
        for number, (place, rows) in enumerate(kills):
            killed = subprocess.run(
                [sys.executable, "-c", KILLED, node.url("beer"), path, place, str(rows)], timeout=PATIENCE, check=False
            )
            assert killed.returncode == -signal.SIGKILL
            assert (tmp_path / "dump.parquet.positions").exists()
            asyncio.run(write(count - 1000 + 200 * number, count - 800 + 200 * number))
        assert path.exists()  # the last kill was after it got its name
        assert asyncio.run(dump(node.url("beer"), path)) == count
        table = pq.read_table(path, columns=["vbucket", "seqno", "key"])
        assert len(table.group_by(["vbucket", "seqno"]).aggregate([])) == table.num_rows == count
        assert len(table["key"].unique()) == count
        assert [each.name for each in tmp_path.iterdir()] == [path.name]
        assert asyncio.run(restore(target.url("beer"), path)).written == count
        found = asyncio.run(read_documents(target.url("beer")))
        assert found == asyncio.run(read_documents(node.url("beer")))


def test_rows_that_a_rollback_made_void_are_left_out(tmp_path):
    def row(seqno, history=0, vbucket=1):
        return Change(vbucket, 9, seqno, key=b"k%d" % seqno, value=b"", history=history)

    partial = PartialDump(tmp_path / "dump.arrow", {})
    assert asyncio.run(partial.read()) is None
    partial.append(make_batch([row(1), row(2), row(3), row(3, vbucket=2)]))
    back = Change(1, 9, 1, event=Event.ROLLBACK, history=1, requested_seqno=1)
    partial.append(make_batch([back, row(2, history=1)]))
    kept = [change for batch in partial.read_batches() for change in list_changes(batch)]
    assert kept == [row(1), row(3, vbucket=2), row(2, history=1)]
    partial.close()


def test_rows_of_an_unfinished_snapshot_out_of_order_are_left_out(tmp_path):
    """The process was killed: vbucket 1 has rows and no position, so all its changes come again."""
    first = PartialDump(tmp_path / "dump.arrow", {})
    asyncio.run(first.read())
    done, unfinished = (Change(vb, 9, 5, key=b"k", value=b"", history=0) for vb in (0, 1))
    first.append(make_batch([done, unfinished]))
    progress = {0: Position(seqno=5, vbuuid=9, snap_start=5, snap_end=5), 1: Position()}
    asyncio.run(first.write(SavedPositions(bucket="beer", uuid="", vbuckets=3, by_vbucket=progress)))
    first.close()
    partial = PartialDump(tmp_path / "dump.arrow", {})
    saved = asyncio.run(partial.read())
    assert saved is not None
    assert saved.by_vbucket == {**progress, 1: Position(history=1)}
    again = unfinished._replace(history=1)
    partial.append(make_batch([again]))
    assert [row for batch in partial.read_batches() for row in list_changes(batch)] == [done, again]
    partial.close()


def test_existing_files_and_other_options_are_refused(source, tmp_path):
    path, url = tmp_path / "dump.arrow", source.url("beer")
    rows = asyncio.run(dump(url, path))
    with pytest.raises(UsageError, match="exists, expected a new file"):
        asyncio.run(dump(url, path))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert asyncio.run(dump(url, path, is_replacing=True)) == rows

    async def leave_partial():
        async with penstock.connect(url) as bucket:
            partial = PartialDump(path, EVERYTHING.describe())
            async with penstock.Consumer(bucket, partial, stop="now") as consumer:
                async for batch in consumer.batches():
                    partial.append(batch)
            return partial

    partial = asyncio.run(leave_partial())
    with pytest.raises(UsageError, match="in use"):
        asyncio.run(dump(url, path))
    partial.close()
    with pytest.raises(UsageError, match="other options: filter_key"):
        asyncio.run(dump(url, path, DumpChoice(options={"xattrs": True, "filter_key": "a"})))
    partial.path.write_bytes(b"")
    with pytest.raises(PositionsUnreadable, match="shorter"):
        asyncio.run(dump(url, path))
    assert asyncio.run(dump(url, path, is_replacing=True)) == rows


def test_missing_collection_is_named(source, tmp_path):
    asyncio.run(dump(source.url("beer"), tmp_path / "dump.arrow"))
    with Node.running(["beer"], vbuckets=4) as node, pytest.raises(UnknownScope, match=r"no collection 'shop\.hotel'"):
        asyncio.run(restore(node.url("beer"), tmp_path / "dump.arrow"))


@pytest.mark.parametrize("name", ["dump.jsonl", "dump.parquet", "dump.arrow", "dump.csv", "absent.arrow"])
def test_files_that_are_no_dump_are_refused(target, tmp_path, name):
    (tmp_path / "dump.csv").write_bytes(b"")
    for suffix in FORMATS:
        (tmp_path / f"dump.{suffix}").write_bytes(b"[1, 2]\n")
    with pytest.raises(UsageError, match=name):
        asyncio.run(restore(target.url("beer"), tmp_path / name))


numbers = st.integers(0, 2**63 - 1)
changes = st.builds(
    Change,
    vbucket=st.integers(0, 1023),
    vbuuid=st.integers(0, 2**64 - 1),
    seqno=numbers,
    rev_seqno=numbers,
    cas=st.integers(0, 2**64 - 1),
    event=st.sampled_from([str(each) for each in Event]),
    key=st.none() | st.binary(max_size=9),
    value=st.none() | st.binary(max_size=9) | st.text(max_size=9).map(str.encode),
    scope=st.none() | st.text(max_size=3),
    collection=st.none() | st.text(max_size=3),
    datatype=st.none() | st.integers(0, 255),
    history=st.integers(0, 2**31 - 1),
    **dict.fromkeys(
        ("collection_id", "flags", "expiry", "lock_time", "delete_time", "snapshot_flags"),
        st.none() | st.integers(0, 2**32 - 1),
    ),
    **dict.fromkeys(("snapshot_start", "snapshot_end", "requested_seqno"), st.none() | numbers),
    xattrs=st.none() | st.dictionaries(st.text(max_size=3) | st.just("a_base64"), st.binary(max_size=3), max_size=3),
)


@given(st.lists(changes, max_size=5))
def test_json_lines_keep_every_column(rows):
    lines = write_json_rows(make_batch(rows)).splitlines(keepends=True)
    found = [change for batch, _ in read_json_lines(lines, "dump") for change in list_changes(batch)]
    assert found == rows


@given(
    st.binary(max_size=80)
    | st.dictionaries(st.sampled_from(Change._fields), st.integers() | st.text()).map(
        lambda content: json.dumps(content).encode()
    )
)
def test_garbage_lines_are_refused_or_read(line):
    with suppress(UsageError):
        for batch, _ in read_json_lines([line], "dump"):
            assert batch.schema == CHANGE_SCHEMA
