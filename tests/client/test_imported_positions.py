"""Positions of other consumers. The files in positions_of_others were written by these programs, which read a node."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.client.consumers.consumer import Consumer
from penstock.client.feeds.stream_position import Position, SnapshotEnd
from penstock.client.positions.file_positions import FilePositions
from penstock.client.positions.imported_positions import (
    READERS,
    read_go_checkpoints,
    read_kafka_offsets,
    read_session_state,
)
from penstock.client.positions.saved_positions import SavedPositions
from penstock.errors import PositionOfOtherBucket, PositionsUnreadable
from penstock.node import Node

FILES = Path(__file__).parent / "positions_of_others"
UUID = "cde62c85c3c85f5c6352e372d3d4223b"
"""The uuid of the bucket that the programs read."""

FIRST = Position(seqno=4, vbuuid=226436533986931, snap_start=4, snap_end=4, ends=(SnapshotEnd(4, 226436533986931),))


def kafka_entry(vbucket, offset, bucket="beer"):
    return {"partition": {"bucket": bucket, "partition": str(vbucket)}, "offset": offset}


OFFSET = {
    "bySeqno": 7,
    "vbuuid": -2,
    "snapshotStartSeqno": 3,
    "snapshotEndSeqno": 9,
    "collectionsManifestUid": 5,
}
MIDDLE = Position(seqno=7, vbuuid=2**64 - 2, snap_start=3, snap_end=9, manifest_uid=5)
COMPLETE = Position(seqno=6, snap_start=6, snap_end=6, ends=(SnapshotEnd(6, 0),))


def test_session_state_of_java_dcp_client_is_read():
    found = read_session_state((FILES / "java-session-state.json").read_bytes(), "beer", "")
    assert found[0] == FIRST
    assert [found[vb].seqno for vb in range(16)] == [4] * 11 + [3, 3, 0, 0, 0]
    assert found[15] == Position()


@pytest.mark.parametrize(
    ("file", "reader"),
    [("java-session-state.json", "java-dcp-client"), ("go-dcp-checkpoints.json", "go-dcp")],
)
def test_positions_are_text(file, reader):
    content, read = (FILES / file).read_bytes(), READERS[reader]
    assert read(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"), "beer", "") == read(content, "beer", "")
    with pytest.raises(PositionsUnreadable, match="begins the byte order mark of UTF-16"):
        read(content.decode().encode("utf-16"), "beer", "")


def test_lines_of_the_offsets_topic_are_text():
    """Each part of a joined file may begin with a byte order mark. Only a line feed ends a line."""
    lines = [
        f'["x\u2028y",{json.dumps({"bucket": "beer", "partition": str(vb)})}]\t{{"bySeqno":{vb + 1}}}' for vb in (0, 1)
    ]
    for text in ("\n".join(lines), "\ufeff" + "\r\n\ufeff".join(lines) + "\r\n"):
        found = read_kafka_offsets(text.encode(), "beer", "")
        assert {vbucket: each.seqno for vbucket, each in found.items()} == {0: 1, 1: 2}


def test_checkpoints_of_go_dcp_are_read():
    found = read_go_checkpoints((FILES / "go-dcp-checkpoints.json").read_bytes(), "default", UUID)
    assert found[0] == FIRST
    with pytest.raises(PositionOfOtherBucket, match=f"found the bucket uuid {UUID}, expected other"):
        read_go_checkpoints((FILES / "go-dcp-checkpoints.json").read_bytes(), "default", "other")


def test_file_of_go_dcp_is_read():
    documents = json.loads((FILES / "go-dcp-checkpoints.json").read_bytes())
    by_vbucket = {key.rpartition(":")[2]: each for key, each in documents.items()}
    assert read_go_checkpoints(json.dumps(by_vbucket).encode(), "default", UUID)[0] == FIRST


def test_reply_of_kafka_connect_is_read():
    entries = [kafka_entry(3, OFFSET), kafka_entry(4, {"bySeqno": 6}), kafka_entry(5, OFFSET, "other")]
    entries += [kafka_entry(6, OFFSET), kafka_entry(6, None)]
    reply = json.dumps({"offsets": entries}).encode()
    assert read_kafka_offsets(reply, "beer", "") == {3: MIDDLE, 4: COMPLETE}


def test_lines_of_the_offsets_topic_are_read():
    lines = [
        '["cb",{"bucket":"beer","partition":"3"}]\t{"bySeqno":1}',
        f'["cb",{{"bucket":"beer","partition":"3"}}]\t{json.dumps(OFFSET)}',
        '["cb",{"bucket":"beer","partition":"4"}]\tnull',
        "",
    ]
    assert read_kafka_offsets("\n".join(lines).encode(), "beer", "") == {3: MIDDLE}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("java-dcp-client", b'{"v":2,"ps":[]}'),
        ("java-dcp-client", b'{"v":1,"ps":[{"flog":[],"ss":4,"sss":5,"ses":6}]}'),
        ("go-dcp", b'{"key":null}'),
        ("go-dcp", b'{"1":{"checkpoint":{}}}'),
        ("kafka", b'{"offsets":[{"partition":{"bucket":"beer","partition":"x"},"offset":null}]}'),
        ("kafka", b"text"),
    ],
)
def test_faulty_positions_of_others_are_refused(name, data):
    with pytest.raises(PositionsUnreadable):
        READERS[name](data, "beer", "")


def write_number(name, field, number):
    """Return the JSON of one position of a program in which one field is that text."""
    fields = {"seqno": "7", "start": "3", "end": "9", "vbuuid": "5", "manifest": "0", field: number}
    written = {
        "java-dcp-client": """{"v":1,"ps":[{"flog":[{"seqno":0,"uuid":%(vbuuid)s}],"ss":%(seqno)s,"sss":%(start)s,
            "ses":%(end)s,"cm":%(manifest)s}]}""",
        "go-dcp": """{"0":{"checkpoint":{"vbuuid":%(vbuuid)s,"seqno":%(seqno)s,
            "snapshot":{"startSeqno":%(start)s,"endSeqno":%(end)s}}}}""",
        "kafka": """{"offsets":[{"partition":{"bucket":"beer","partition":"0"},"offset":{"bySeqno":%(seqno)s,
            "vbuuid":%(vbuuid)s,"snapshotStartSeqno":%(start)s,"snapshotEndSeqno":%(end)s,
            "collectionsManifestUid":%(manifest)s}}]}""",
    }[name]
    return (written % fields).encode()


NO_U64 = [
    "18446744073709552000",
    "18446744073709551616",
    "1e3",
    "7.0",
    "7.5",
    "true",
    '"7"',
    "1e400",
    "-9223372036854775809",
]
FIELDS = [(name, field) for name in READERS for field in ("seqno", "start", "end", "vbuuid", "manifest")]
FIELDS.remove(("go-dcp", "manifest"))


@pytest.mark.parametrize("number", NO_U64)
@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_numbers_that_are_no_u64_are_refused(name, field, number):
    shown = number.strip('"')
    with pytest.raises(PositionsUnreadable, match=rf"vbucket 0: found \w+ {shown}, expected a whole number from .+ to"):
        READERS[name](write_number(name, field, number), "beer", "")


def test_go_prints_no_negative_numbers_and_java_does():
    largest = Position(seqno=7, vbuuid=2**64 - 1, snap_start=3, snap_end=9)
    for name in ("java-dcp-client", "kafka"):
        assert READERS[name](write_number(name, "vbuuid", "-1"), "beer", "") == {0: largest}
    assert read_go_checkpoints(write_number("go-dcp", "vbuuid", str(2**64 - 1)), "", "") == {0: largest}
    with pytest.raises(PositionsUnreadable, match="found vbuuid -1, expected a whole number from 0 to"):
        read_go_checkpoints(write_number("go-dcp", "vbuuid", "-1"), "", "")


def test_a_vbucket_that_stands_twice_is_refused():
    first = write_number("go-dcp", "seqno", "7").decode().rstrip("}")
    second = first.removeprefix('{"0"')
    with pytest.raises(PositionsUnreadable, match="found vbucket 0 twice"):
        read_go_checkpoints(f'{first}}}}}}},"00"{second}}}}}}}}}'.encode(), "", "")


@given(st.sampled_from(sorted(READERS)), st.binary() | st.text().map(str.encode))
def test_garbage_never_raises_another_error(name, data):
    with suppress(PositionsUnreadable):
        assert READERS[name](data, "beer", "") == {}


def write_session_state(positions):
    return {
        "v": 1,
        "ps": [
            {
                "flog": [{"seqno": 0, "uuid": each.vbuuid}],
                "ss": each.seqno,
                "sss": each.snap_start,
                "ses": each.snap_end,
            }
            for _, each in sorted(positions.items())
        ],
    }


def write_checkpoints(positions):
    return {
        str(vb): {
            "checkpoint": {
                "snapshot": {"startSeqno": each.snap_start, "endSeqno": each.snap_end},
                "vbuuid": each.vbuuid,
                "seqno": each.seqno,
            }
        }
        for vb, each in positions.items()
    }


def write_offsets(positions):
    names = ("bySeqno", "vbuuid", "snapshotStartSeqno", "snapshotEndSeqno")
    return {
        "offsets": [
            kafka_entry(vb, dict(zip(names, (each.seqno, each.vbuuid, each.snap_start, each.snap_end), strict=True)))
            for vb, each in positions.items()
        ]
    }


@pytest.mark.parametrize(
    ("name", "make"),
    [("java-dcp-client", write_session_state), ("go-dcp", write_checkpoints), ("kafka", write_offsets)],
)
def test_consumer_continues_at_imported_positions(name, make, tmp_path):
    async def main(url):
        async with penstock.connect(url) as bucket:
            await bucket.upsert_many([(f"old{number}", b"1") for number in range(100)])
            async with await bucket.stream(stop="now") as stream:
                assert sum([batch.num_rows async for batch in stream]) == 100
            found = READERS[name](json.dumps(make(stream.positions)).encode(), "beer", "")
            await bucket.upsert_many([(f"new{number}", b"1") for number in range(10)])
            store = FilePositions(tmp_path / "positions")
            await store.write(SavedPositions(bucket="beer", uuid="", vbuckets=4, by_vbucket=found))
            async with Consumer(bucket, store, stop="now") as consumer:
                keys = [change.key async for change in consumer.changes()]
            assert len(keys) == 10
            assert {*keys} == {b"new%d" % number for number in range(10)}

    with Node.running(["beer"], vbuckets=4) as node:
        asyncio.run(main(node.url("beer")))
