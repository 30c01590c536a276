"""Views of a lake: consistent past states, typed columns, own writes; without Spark where possible."""

import json
import os
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from penstock.errors import UsageError, WriteLost
from penstock.spark import Lake
from penstock.spark.lake.changelog import changelog_writer as changelog
from penstock.spark.lake.current.current_table import merge_current
from penstock.spark.lake.maintenance.lake_compaction import compact
from penstock.spark.lake.reading.lake_positions import LakePosition
from penstock.spark.lake.reading.lake_views import boundaries_of
from penstock.spark.lake.reading.spark_frames import make_frame
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS
from penstock.spark.source.offsets import Offset, VbucketOffset
from tests.patience import PATIENCE
from tests.spark.buckets import Contents, Documents, MicroBatches, numbered
from tests.spark.lakes import QUERY, append, checkpoint, row
from tests.spark.running import running

VBUCKETS = 16


class Following:
    """A lake that follows a bucket by micro-batches, written as Spark and the sink write it.

    Attributes:
        lake: the lake.
        contents: for each call of `follow`: the lake's position, a time after it, and the bucket's documents.
    """

    def __init__(self, lake: Lake, batches: MicroBatches, documents: Documents) -> None:
        self.lake = lake
        self.contents: list[tuple[LakePosition, datetime, Contents]] = []
        self._batches = batches
        self._documents = documents
        self._number = 0
        checkpoint(lake.checkpoint)
        (lake.checkpoint / "commits").mkdir()

    def follow(self) -> LakePosition:
        """Write all changes of the bucket to the lake, and return the position that it reaches."""
        while (rows := self._batches.step()) is not None:
            offset = json.dumps(self._batches.start)
            (self.lake.checkpoint / "offsets" / str(self._number)).write_text(f"v1\n{{}}\n{offset}")
            files = changelog.write_files(rows.to_batches(), self.lake.changelog_table.path, VBUCKETS)
            assert changelog.commit_batch(self.lake, QUERY, self._number, files, vbuckets=VBUCKETS)
            (self.lake.checkpoint / "commits" / str(self._number)).write_text("v1\n{}")
            self._number += 1
        position = self.lake.position()
        assert position is not None
        assert position.committed is not None
        self.contents.append((position, later_than(position.committed), self._documents.contents()))
        return position


def later_than(moment: datetime) -> datetime:
    """Return a time after `moment` and before all later writes."""
    while (now := datetime.now(UTC)) <= moment + timedelta(milliseconds=8):  # the clock of files lags by less
        time.sleep(0.001)
    found, now = now, datetime.now(UTC)
    while now <= found + timedelta(milliseconds=8):
        time.sleep(0.001)
        now = datetime.now(UTC)
    return found


def contents(documents: pa.Table) -> Contents:
    found = {row["key"].encode(): (row["cas"], row["value"]) for row in documents.to_pylist()}
    assert len(found) == documents.num_rows
    return found


@pytest.fixture
def following(lake, node, documents, follow):
    return Following(lake, follow(node.url("default"), maxChangesPerTrigger="150"), documents)


def change_bucket(following: Following, documents: Documents) -> None:
    """Store, change and remove documents, empty the bucket, and store again; follow after each step."""
    documents.store(numbered(0, 100))
    following.follow()
    for text in ("second", "third"):
        documents.store(numbered(0, 60, text))
        documents.store(numbered(0, 30, f"{text}, again"))
        following.follow()
    documents.remove([f"key-{number}" for number in range(20, 80)])
    following.follow()
    documents.flush()
    documents.store(numbered(0, 5, "after the flush"))
    following.follow()
    documents.store(numbered(3, 9, "and on"))
    following.follow()


@pytest.mark.long
def test_as_of_returns_past_states(following, documents):
    change_bucket(following, documents)
    lake = following.lake
    for position, when, expected in following.contents:
        assert contents(lake.as_of(position)) == expected
        assert contents(lake.as_of(position.offset)) == expected
        assert contents(lake.as_of(when)) == expected
        assert contents(pa.Table.from_batches(lake.as_of_batches(position), CURRENT_COLUMNS)) == expected
        ends = {vb: (at.history, at.seqno) for vb, at in enumerate(position.offset.vbuckets) if at.seqno}
        assert {vb: tuple(bound) for vb, bound in boundaries_of(lake, position).items() if bound.seqno} == ends
    opened = lake.changelog_table.open()
    for file in lake.changelog_table.list_files(
        opened
    ):  # as if written in the last nanosecond of its commit's millisecond
        moment = file.modified * 1_000_000 + 999_999
        os.utime(lake.changelog_table.path / file.path, ns=(moment, moment))
    assert lake.as_of(following.contents[0][1] - timedelta(hours=1)).num_rows == 0
    assert contents(lake.as_of(datetime.now(UTC) + timedelta(hours=1))) == contents(lake.current())


@pytest.mark.long
def test_as_of_a_time_before_the_checkpoint_uses_file_times(following, documents):
    change_bucket(following, documents)
    lake = following.lake
    for entry in lake.checkpoint.glob("*/*"):
        if entry.name != str(following.contents[-1][0].batch):
            entry.unlink()
    for _, when, expected in following.contents:
        assert contents(lake.as_of(when)) == expected
    merge_current(lake)
    compact(lake)
    for position, _, expected in following.contents:
        assert contents(lake.as_of(position)) == expected
    for _, when, _ in following.contents[:-1]:
        with pytest.raises(
            UsageError, match=r"were joined with later files; expected a time from .* on, or a position"
        ):
            lake.as_of(when)
    assert contents(lake.as_of(following.contents[-1][1])) == following.contents[-1][2]


def test_as_of_an_unknown_state_is_refused(lake, following, documents):
    with pytest.raises(UsageError, match="no table at"):
        lake.as_of(datetime.now(UTC))
    documents.store(numbered(0, 10))
    position = following.follow()
    with pytest.raises(UsageError, match="has no time zone"):
        lake.as_of(datetime.now())
    with pytest.raises(UsageError, match=r"a position in 8 vbuckets; .* is of another bucket"):
        lake.as_of(Offset((VbucketOffset(),) * 8))
    first = position.offset.vbuckets[0]
    ahead = VbucketOffset(first.history, first.vbuuid, first.seqno + 1)
    with pytest.raises(
        UsageError, match=rf"a position at seqno {first.seqno + 1} of vbucket 0 .* ends at {first.seqno}"
    ):
        lake.as_of(Offset((ahead, *position.offset.vbuckets[1:])))


# Typed columns


def lake_of(lake: Lake, *values: bytes) -> Lake:
    append(lake, 0, [row(number, 1, b"key-%d" % number, value) for number, value in enumerate(values)])
    return lake


def test_json_view_has_typed_columns(lake):
    values = (b'{"name":"Bock","abv":6.5,"Key":1}', b'{"name":17,"tags":["a"]}', b"no document", b'{"_rest":{"x":[1]}}')
    found = lake_of(lake, *values).json_view("name STRING, abv DOUBLE, Key BIGINT").sort_by("key")
    assert found.column_names == ["key", "key_bytes", "scope", "collection", "name", "abv", "Key_", "_rest"]
    assert found.select(["key", "name", "abv", "Key_", "_rest"]).to_pylist() == [
        {"key": "key-0", "name": "Bock", "abv": 6.5, "Key_": 1, "_rest": None},
        {"key": "key-1", "name": None, "abv": None, "Key_": None, "_rest": '{"name":17,"tags":["a"]}'},
        {"key": "key-2", "name": None, "abv": None, "Key_": None, "_rest": "no document"},
        {"key": "key-3", "name": None, "abv": None, "Key_": None, "_rest": '{"_rest":{"x":[1]}}'},
    ]
    inferred = lake.json_view().sort_by("key")
    assert set(inferred.column_names[4:]) == {"name", "abv", "Key_", "tags", "_rest_", "_rest"}
    assert inferred["name"].to_pylist() == ["Bock", None, None, None]
    assert inferred["_rest"].to_pylist() == [None, '{"name":17}', "no document", None]
    assert inferred["_rest_"].to_pylist()[3] == {"x": [1]}


def test_json_view_of_an_empty_lake_is_empty(lake):
    append(lake, 0, [row(1, 1, b"gone", event="deletion")])
    assert lake.json_view("a BIGINT").schema.names[-2:] == ["a", "_rest"]
    assert lake.json_view().num_rows == 0
    with pytest.raises(UsageError, match="TIMESTAMP_NTZ"):
        lake.json_view("a TIMESTAMP_NTZ")


# With Spark


@pytest.mark.spark
def test_frames_and_tables_of_documents_without_fields(spark, lake):
    append(lake, 0, [row(1, 1, b"plain", b"no JSON")])
    assert lake.json_frame(spark).toArrow()["_rest"].to_pylist() == ["no JSON"]
    assert lake.json_frame(spark, pa.schema([("n", pa.int64())])).columns[-2:] == ["n", "_rest"]
    with pytest.raises(PySparkException, match="no JSON objects to infer option valueSchema from"):
        lake.create_tables(spark, "fieldless")


@pytest.mark.spark
def test_frames_have_the_rows_after_an_empty_chunk(spark):
    numbers = pa.chunked_array([[], [1, 2], [], [3], [], []], pa.int64())
    frame = make_frame(spark, pa.table({"number": numbers}))
    assert sorted(frame.toArrow()["number"].to_pylist()) == [1, 2, 3]
    assert make_frame(spark, pa.table({"number": numbers[:0]})).columns == ["number"]


@pytest.mark.spark
def test_frames_have_own_writes_after_waiting(spark, node, lake, documents):
    beers = {f"beer-{number}": json.dumps({"name": f"beer {number}", "abv": number}).encode() for number in range(500)}
    with running(spark, documents.url, lake):
        documents.store(beers)
        lake.wait_for(documents.bucket.tokens(), timeout=PATIENCE)
        found = lake.current_frame(spark).select("key", "value").collect()
        assert {row["key"]: bytes(row["value"]) for row in found} == beers
        before = lake.position()
        assert before is not None
        documents.remove([f"beer-{number}" for number in range(250)])
        documents.store({"beer-400": b'{"name":"new"}'})
        lake.wait_for(documents.bucket.tokens(), timeout=PATIENCE)
        named = {row["key"]: row["name"] for row in lake.json_frame(spark, "name STRING").collect()}
        assert named == {f"beer-{number}": f"beer {number}" for number in range(250, 500)} | {"beer-400": "new"}
        past = lake.as_of_frame(spark, before).select("key", "value").collect()
        assert {row["key"]: bytes(row["value"]) for row in past} == beers
        old = documents.bucket.tokens()
        documents.flush()
        documents.store({"beer-1": b"{}"})
        (new,) = [token for token in documents.bucket.tokens() if token not in old]
        lake.wait_for([new], timeout=PATIENCE)
        with pytest.raises(WriteLost, match="rolled back"):
            lake.wait_for([token for token in old if token.vbucket == new.vbucket], timeout=PATIENCE)
