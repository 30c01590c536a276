"""Saved positions: their JSON, the stores, and the checks before a consumer resumes."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import connect
from penstock.client.feeds.stream_position import UNKNOWN_END, Position, SnapshotEnd
from penstock.client.positions.document_positions import DocumentPositions
from penstock.client.positions.file_positions import FilePositions
from penstock.client.positions.position_checks import check_bucket, find_ahead
from penstock.client.positions.saved_positions import SavedPositions, decode_positions, encode_positions
from penstock.client.positions.sqlite_positions import SqlitePositions, list_sqlite_names
from penstock.errors import Error, PositionOfOtherBucket, PositionsChanged, PositionsUnreadable
from penstock.node import Node
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.messages.kv import FailoverEntry

U64 = st.integers(0, MAX_SEQNO)


@st.composite
def positions(draw):
    start, seqno, end = sorted(draw(st.tuples(U64, U64, U64)))
    return Position(
        seqno=seqno,
        vbuuid=draw(U64),
        snap_start=start,
        snap_end=draw(st.sampled_from([end, UNKNOWN_END])),
        history=draw(st.integers(0, 9)),
        ends=tuple(draw(st.lists(st.builds(SnapshotEnd, U64, U64), max_size=3))),
        manifest_uid=draw(U64),
    )


SAVED = st.builds(
    SavedPositions,
    bucket=st.text(),
    uuid=st.text(),
    vbuckets=st.integers(0, 65536),
    by_vbucket=st.dictionaries(st.integers(0, 65535), positions()),
    notes=st.dictionaries(st.text(), st.integers() | st.text()),
)
ONE = SavedPositions(bucket="beer", uuid="u", vbuckets=4, by_vbucket={1: Position(seqno=3, vbuuid=7, snap_end=5)})
TWO = SavedPositions(bucket="beer", uuid="u", vbuckets=4, by_vbucket={2: Position(seqno=9, vbuuid=7, snap_end=9)})


@given(SAVED)
def test_json_of_positions_is_read_back(saved):
    assert decode_positions(encode_positions(saved), "here") == saved
    assert decode_positions(b"\xef\xbb\xbf" + encode_positions(saved), "here") == saved


@given(st.binary())
def test_other_bytes_are_unreadable_positions(data):
    with pytest.raises(PositionsUnreadable, match=r"here: .*expected positions of version 1"):
        decode_positions(data, "here")


@pytest.mark.parametrize("version", [0, 2, "1", None, 10**30])
def test_unknown_versions_are_refused(version):
    content = json.loads(encode_positions(ONE)) | {"penstock_positions": version}
    with pytest.raises(PositionsUnreadable, match="expected positions of version 1"):
        decode_positions(json.dumps(content).encode(), "here")
    if version == 2:
        with pytest.raises(PositionsUnreadable, match="found version 2"):
            decode_positions(json.dumps(content).encode(), "here")


@pytest.mark.parametrize(
    "change",
    [
        {"seqno": -1},
        {"seqno": 6},
        {"seqno": "3"},
        {"seqno": 3.0},
        {"seqno": True},
        {"history": 2**63},
        {"vbuuid": "7\n"},
        {"vbuuid": "\N{ARABIC-INDIC DIGIT SEVEN}"},
        {"vbuuid": 7},
        {"vbuuid": str(2**64)},
        {"snapshot": [0]},
        {"snapshot": [4, 5]},
        {"ends": [[1]]},
    ],
)
def test_impossible_positions_are_refused(change):
    content = json.loads(encode_positions(ONE))
    content["positions"]["1"] |= change
    with pytest.raises(PositionsUnreadable):
        decode_positions(json.dumps(content).encode(), "here")


def test_a_vbucket_that_stands_twice_is_refused():
    content = json.loads(encode_positions(ONE))
    content["positions"]["01"] = content["positions"]["1"]
    with pytest.raises(PositionsUnreadable, match="a vbucket stands twice"):
        decode_positions(json.dumps(content).encode(), "here")


# Stores


@contextlib.asynccontextmanager
async def open_store(kind, directory):
    if kind == "document":
        with Node.running(["beer"], vbuckets=4) as node:
            async with connect(node.url("beer")) as bucket:
                yield DocumentPositions(bucket, "indexer")
    else:
        yield FilePositions(directory / "p.json") if kind == "file" else SqlitePositions(directory / "p.db", "indexer")


@pytest.mark.parametrize("kind", ["file", "sqlite", "document"])
def test_store_returns_the_last_written_positions(kind, tmp_path):
    async def main():
        async with open_store(kind, tmp_path) as store:
            assert await store.read() is None
            await store.remove()
            for saved in (ONE, TWO, ONE):
                await store.write(saved)
                assert await store.read() == saved
            await store.remove()
            assert await store.read() is None
            await store.write(TWO)
            assert await store.read() == TWO

    asyncio.run(main())


def test_unwritable_file_is_an_error(tmp_path):
    with pytest.raises(Error, match="cannot be written"):
        asyncio.run(FilePositions(tmp_path / "absent" / "p.json").write(ONE))
    with pytest.raises(Error, match="cannot be read"):
        asyncio.run(FilePositions(tmp_path).read())


def test_database_keeps_consumers_by_name(tmp_path):
    async def main():
        for name in ("b", "a"):
            await SqlitePositions(tmp_path / "p.db", name).write(ONE)
        await SqlitePositions(tmp_path / "p.db", "b").remove()
        await SqlitePositions(tmp_path / "p.db", "c").write(TWO)
        assert await list_sqlite_names(tmp_path / "p.db") == ["a", "c"]
        assert await SqlitePositions(tmp_path / "p.db", "a").read() == ONE

    asyncio.run(main())


def test_file_that_is_no_database_is_an_error(tmp_path):
    (tmp_path / "p.db").write_bytes(b"text" * 1000)
    with pytest.raises(Error, match="SQLite reports"):
        asyncio.run(SqlitePositions(tmp_path / "p.db").read())


def test_only_one_of_two_writers_of_a_document_succeeds():
    async def main():
        with Node.running(["beer"], vbuckets=4) as node:
            async with connect(node.url("beer")) as bucket:
                first, second = DocumentPositions(bucket, "indexer"), DocumentPositions(bucket, "indexer")
                await first.write(ONE)
                with pytest.raises(PositionsChanged):
                    await second.write(TWO)
                assert await second.read() == ONE
                await second.write(TWO)
                with pytest.raises(PositionsChanged):
                    await first.write(ONE)
                assert await first.read() == TWO

    asyncio.run(main())


WRITER = """
import asyncio, itertools, sys
from penstock.client.feeds.stream_position import Position
from penstock.client.positions.{module} import {store}
from penstock.client.positions.saved_positions import SavedPositions

async def main():
    store = {store}(sys.argv[1])
    for seqno in itertools.count(1):
        positions = {{vb: Position(seqno=seqno, snap_start=seqno, snap_end=seqno) for vb in range(200)}}
        await store.write(SavedPositions(bucket="beer", uuid="u", vbuckets=200, by_vbucket=positions))
        print(seqno, flush=True)

asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "store"), [("file_positions", FilePositions), ("sqlite_positions", SqlitePositions)]
)
@pytest.mark.parametrize("writes", [1, 7, 40])
def test_killed_writer_leaves_the_last_or_the_next_positions(tmp_path, module, store, writes):
    program = WRITER.format(module=module, store=store.__name__)
    path = tmp_path / "positions"
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(writes):
            assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split()
    last = int(rest[-1]) if rest else writes
    found = asyncio.run(store(path).read())
    seqnos = {position.seqno for position in found.by_vbucket.values()}
    assert len(found.by_vbucket) == 200
    assert seqnos in ({last}, {last + 1})


def test_database_is_readable_by_sqlite_itself(tmp_path):
    asyncio.run(SqlitePositions(tmp_path / "p.db", "a").write(ONE))
    with contextlib.closing(sqlite3.connect(tmp_path / "p.db")) as database:
        ((name, saved),) = database.execute("SELECT name, saved FROM penstock_positions")
    assert (name, decode_positions(saved.encode(), "row")) == ("a", ONE)


# Checks


@pytest.mark.parametrize(("uuid", "vbuckets"), [("other", 4), ("u", 8)])
def test_positions_of_another_bucket_are_refused(uuid, vbuckets):
    with pytest.raises(PositionOfOtherBucket, match=r"here: found .*, expected"):
        check_bucket(ONE, uuid, vbuckets, "here")


@pytest.mark.parametrize("uuid", ["u", ""])
def test_positions_of_the_bucket_are_accepted(uuid):
    check_bucket(ONE, uuid, 4, "here")


@pytest.mark.parametrize(
    ("high", "newest", "is_ahead"),
    [
        pytest.param(2, 7, True, id="newer than the server"),
        pytest.param(3, 7, False, id="at the end of the server"),
        pytest.param(2, 8, False, id="of a branch that lost its end"),
    ],
)
def test_position_ahead_of_the_server_is_found(high, newest, is_ahead):
    logs = {1: (FailoverEntry(newest, 2), FailoverEntry(1, 0))}
    error = find_ahead(ONE, {1: high}, logs, "here")
    assert (error is not None) == is_ahead
    if error is not None:
        assert "found seqno 3 of vbucket 1, expected at most 2" in str(error)
