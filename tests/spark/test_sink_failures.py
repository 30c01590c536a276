"""Writes to a bucket with failures: refused rows become dead letters, batches are repeated, nodes are killed."""

import subprocess
import sys
import threading
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    DayTimeIntervalType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from penstock.client.documents.window_writer import RefusedRows, WriteCounts, divide_into_windows
from penstock.errors import Error, Unreachable, UsageError
from penstock.spark.sink import dead_letters
from penstock.spark.sink.bucket_writes import write_tables
from penstock.spark.sink.sink_options import SinkOptions
from penstock.spark.sink.spark_writer import (
    DcpStreamWriter,
    DcpWriter,
    WriteMessage,
    make_batch_writer,
    make_stream_writer,
)
from tests.patience import PATIENCE
from tests.spark.buckets import Documents, Proxy, numbered


def batches(documents, rows=1000):
    table = pa.table({"key": list(documents), "value": list(documents.values())})
    return table.to_batches(max_chunksize=rows)


@pytest.fixture
def url(node):
    return node.url("default")


@pytest.fixture
def letters(tmp_path):
    return tmp_path / "letters"


def insert_options(url, letters=None, **more):
    more_options = {} if letters is None else {"errors": "deadletter", "deadLetterPath": str(letters)}
    return SinkOptions.parse({"url": url, "operation": "insert", **more_options, **more})


def read_letters(letters):
    """Return the dead letters: key, error and batch of each row."""
    found = [pq.read_table(path) for path in sorted(letters.glob("*.parquet"))]
    return [(row["key"], row["error"], row["error_batch"]) for table in found for row in table.to_pylist()]


def test_refused_rows_fail_the_task_after_all_rows_are_sent(documents, url):
    documents.store(numbered(5, 10))
    with pytest.raises(
        Error, match="5 of 2000 rows sent by this task were refused; the first is key 'key-5': KEY_EEXISTS"
    ):
        DcpWriter(insert_options(url)).write(iter(batches(numbered(0, 2000))))
    documents.keys = set(numbered(0, 2000))
    assert len(documents.contents()) == 2000


@pytest.mark.parametrize("writer", [make_batch_writer, make_stream_writer])
def test_invalid_schema_and_mode_are_refused_before_writing(writer):
    key, value = StructField("key", StringType()), StructField("value", StringType())
    assert writer({}, StructType([key, value]), overwrite=False)
    with pytest.raises(UsageError, match="no column 'value', expected key, value for upsert"):
        writer({}, StructType([key]), overwrite=False)
    with pytest.raises(UsageError, match="a bucket is not a table that can be overwritten; expected mode append"):
        writer({}, StructType([key, value]), overwrite=True)


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (VariantType(), r"column 'value\.x' is variant, which JSON does not have"),
        (CalendarIntervalType(), r"column 'value\.x' is interval, which JSON does not have"),
        (ArrayType(YearMonthIntervalType()), r"column 'value\.x\[\]' is interval year to month"),
        (MapType(StringType(), DayTimeIntervalType()), r"column 'value\.x\.value' is duration"),
        (MapType(BinaryType(), IntegerType()), r"column 'value\.x' has keys of type binary"),
        (StructType().add("a", "integer").add("a", "long"), r"column 'value\.x' has the field 'a' twice"),
    ],
)
@pytest.mark.parametrize("writer", [make_batch_writer, make_stream_writer])
def test_types_without_json_are_refused_before_writing(writer, of, text):
    value = StructType().add("x", of)
    with pytest.raises(UsageError, match=text):
        writer({}, StructType().add("key", "string").add("value", value), overwrite=False)


def test_refused_rows_become_dead_letters(documents, url, letters):
    documents.store(numbered(5, 10))
    writer = DcpWriter(insert_options(url, letters))
    parts = [writer.write(iter(batches(numbered(first, first + 8)))) for first in (0, 8, 16)]
    assert [part.counts for part in parts] == [WriteCounts(5, failed=3), WriteCounts(6, failed=2), WriteCounts(8)]
    assert read_letters(letters) == []  # there are no dead letters before the commit
    writer.commit([*parts, None])
    run = writer.job.run
    assert read_letters(letters) == [(key, "KEY_EEXISTS", run) for key in numbered(5, 10)]
    found = pq.read_table(letters)
    assert found.column_names == ["key", "value", *dead_letters.LETTER_COLUMNS.names]
    assert found["error_message"].to_pylist() == ["KEY_EEXISTS"] * 5
    assert found["error_time"].null_count == 0
    assert sorted(path.suffix for path in letters.iterdir()) == [".parquet"] * 2


def test_repeated_batch_has_its_dead_letters_once(documents, url, letters):
    documents.store(numbered(0, 3))
    first = DcpStreamWriter(insert_options(url, letters))
    parts: list[WriterCommitMessage | None] = [
        first.write(iter(batches(numbered(number, number + 1)))) for number in range(3)
    ]
    first.commit(parts, 7)
    assert read_letters(letters) == [(f"key-{number}", "KEY_EEXISTS", "000000007") for number in range(3)]
    documents.remove(["key-1"])
    again = DcpStreamWriter(insert_options(url, letters))  # as after a restart, with other partitions
    again.commit([again.write(iter(batches(numbered(0, 3))))], 7)
    assert read_letters(letters) == [(f"key-{number}", "KEY_EEXISTS", "000000007") for number in (0, 2)]
    again.commit([again.write(iter(batches(numbered(0, 1))))], 8)
    assert len(read_letters(letters)) == 3


def test_failed_batch_keeps_only_the_dead_letters_of_its_first_attempt(documents, url, letters):
    documents.store(numbered(0, 3))
    writer = DcpStreamWriter(insert_options(url, letters))
    writer.commit([writer.write(iter(batches(numbered(0, 1))))], 1)
    again = DcpStreamWriter(insert_options(url, letters))
    part = again.write(iter(batches(numbered(0, 3))))
    again.abort([part, None], 1)
    assert [key for key, *_ in read_letters(letters)] == ["key-0"]
    assert len([*letters.iterdir()]) == 1

    def broken():
        yield from batches(numbered(0, 3), 1)
        raise OSError("the disk of another process")

    with pytest.raises(OSError, match="the disk of another process"):
        again.write(broken())
    assert not [path for path in letters.rglob("*") if path.suffix == ".parquet" and path.parent != letters]


def test_directory_of_another_query_is_refused(documents, url, letters, tmp_path):
    """Batches of both have the same numbers, so that each would remove dead letters of the other."""
    documents.store(numbered(0, 3))
    columns = StructType([StructField("key", StringType()), StructField("value", StringType())])
    given = {"url": url, "operation": "insert", "errors": "deadletter", "deadLetterPath": str(letters)}

    def start(checkpoint):
        return make_stream_writer(given | {"checkpointLocation": str(tmp_path / checkpoint)}, columns, overwrite=False)

    killed = start("mine")
    killed.write(iter(batches(numbered(0, 3))))
    with pytest.raises(
        UsageError, match=r"letters has the refused rows of the query with checkpoint '.*/mine', expected"
    ):
        start("other")
    again = start("mine")
    again.commit([again.write(iter(batches(numbered(0, 3))))], 0)
    assert len(read_letters(letters)) == 3
    assert not (letters / "_staging").exists(), "the files of the killed run are removed too"


def test_rows_lost_by_a_cut_connection_are_written_again(node, url):
    with Proxy.before(node.kv_port) as proxy, Documents.of(url) as documents:
        proxy.cut_after = 50_000
        expected = numbered(0, 5000)
        options = SinkOptions.parse({"url": proxy.url, "maxBytesInFlight": "16k"})
        refused: list[RefusedRows] = []
        counts = write_tables(options, divide_into_windows(batches(expected)), refused.append)
        assert (counts, refused) == (WriteCounts(written=5000), [])
        assert proxy.cuts
        documents.keys = set(expected)
        assert {key.decode(): value for key, (_, value) in documents.contents().items()} == expected


_NODE = """
import asyncio, sys
from penstock.node import Node

async def main():
    node = await Node.start(port=int(sys.argv[1]), buckets=["default"], vbuckets=16, data_dir=sys.argv[2])
    print(node.kv_port, flush=True)
    await node.wait_closed()

asyncio.run(main())
"""


class DiskNode:
    """A node in a separate process, which keeps its bucket on disk."""

    def __init__(self, directory):
        self.port, self.directory = 0, str(directory)

    def __enter__(self):
        command = [sys.executable, "-c", _NODE, str(self.port), self.directory]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


@pytest.mark.process
def test_killed_node_ends_the_batch_and_the_next_attempt_converges(tmp_path):
    node, expected = DiskNode(tmp_path / "node"), numbered(0, 20_000, size=100)
    half_way, killed = threading.Event(), threading.Event()

    def pause_half_way():
        for number, batch in zip(count(), batches(expected)):
            if number == 10:
                half_way.set()
                assert killed.wait(PATIENCE)
            yield batch

    with node:
        url = f"couchbase://127.0.0.1:{node.port}/default?retrySeconds=0.5"
        writer = DcpStreamWriter(SinkOptions.parse({"url": url}))
        failures = []

        def work():
            try:
                writer.write(pause_half_way())
            except Unreachable as error:
                failures.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        assert half_way.wait(PATIENCE)
    killed.set()
    thread.join(PATIENCE)
    assert "did not serve" in failures[0]
    with node, Documents.of(url) as documents:
        part = writer.write(iter(batches(expected)))
        assert isinstance(part, WriteMessage)
        assert part.counts == WriteCounts(written=20_000)
        documents.keys = set(expected)
        assert {key.decode(): value for key, (_, value) in documents.contents().items()} == expected
