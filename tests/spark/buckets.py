"""Helpers for tests of source and pipeline: a blocking bucket, micro-batches without Spark, a failing network."""

import asyncio
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import Filter
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.client.blocking import LoopThread, read_changes
from penstock.client.bucket import Bucket
from penstock.client.connect.address import parse_address
from penstock.spark import Lake
from penstock.spark.lake.reading.lake_readers import read_changelog, read_current
from penstock.spark.runtime.data_source import DcpDataSource
from penstock.spark.source.readers import DcpStreamReader, FilteringReader
from penstock.wire.columns.schema import CHANGE_SCHEMA

Contents = dict[bytes, tuple[int, bytes]]


class Documents:
    """A bucket with blocking calls, which remembers the keys of all stored documents."""

    def __init__(self, loop: LoopThread, bucket: Bucket) -> None:
        self.loop = loop
        self.bucket = bucket
        self.keys: set[str] = set()

    @classmethod
    @contextmanager
    def of(cls, url: str) -> "Iterator[Documents]":
        bucket = Bucket(parse_address(url))
        with LoopThread() as loop:
            loop.run(bucket.__aenter__())
            try:
                yield cls(loop, bucket)
            finally:
                loop.run(bucket.close())

    @property
    def url(self) -> str:
        return str(self.bucket.address)

    def store(self, values: dict[str, bytes], expiry: int = 0) -> None:
        self.keys |= values.keys()
        self.loop.run(self.bucket.upsert_many(values.items(), expiry=expiry))

    def remove(self, keys: list[str]) -> int:
        return self.loop.run(self.bucket.remove_many(keys))

    def flush(self) -> None:
        self.loop.run(self.bucket.flush())

    def contents(self) -> Contents:
        """Return every document: key, cas and value."""
        keys = sorted(self.keys)
        found = self.loop.run(self.bucket.get_many(keys))
        return {key.encode(): (doc.cas, doc.value) for key, doc in zip(keys, found, strict=True) if doc is not None}

    def stat(self, name: str) -> int:
        return int(self.loop.run(self.bucket.stats())[name])

    def newest(self) -> set[tuple[int, int, bytes, int]]:
        """Return vbucket, seqno, key and cas of each key's newest change."""
        changes = pa.Table.from_batches(read_changes(str(self.bucket.address), stop="now"), CHANGE_SCHEMA)
        return set(zip(*(changes[name].to_pylist() for name in ("vbucket", "seqno", "key", "cas")), strict=True))


def numbered(first: int, behind: int, text: str = "value", size: int = 0) -> dict[str, bytes]:
    return {f"key-{number}": f"{text} {number}".encode().ljust(size) for number in range(first, behind)}


class MicroBatches:
    """Calls a stream reader as Spark does: offsets and limits pass through JSON, and each task has a new reader."""

    def __init__(self, url: str, **options: str) -> None:
        self.options = {"url": url, **options}
        self.reader = self._reader()
        self.start: Any = None

    def _reader(self) -> DcpStreamReader:
        source = DcpDataSource(dict(self.options))
        return source.streamReader(source.schema())

    def restart(self) -> None:
        """Continue as a new process does: with the logged offset and a new reader."""
        self.reader.stop()
        self.reader = self._reader()

    def step(self) -> pa.Table | None:
        """Run the next batch and return its rows, None if Spark would not run a batch."""
        if self.start is None:
            self.start = _through_json(self.reader.initialOffset())
        end = _through_json(self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit()))
        if json.dumps(end) == json.dumps(self.start):
            return None
        partitions = pickle.loads(pickle.dumps(self.reader.partitions(self.start, end)))
        self.start = end
        rows = [batch for partition in partitions for batch in self._reader().read(partition)]
        schema = DcpDataSource(dict(self.options)).schema()
        return pa.Table.from_batches(rows, to_arrow_schema(schema, timezone="UTC"))

    def run_available(self) -> list[pa.Table]:
        """Run all batches of an AvailableNow run by a new process, and return their rows."""
        self.restart()
        self.reader.prepareForTriggerAvailableNow()
        return self.all()

    def all(self, most: int = 1000) -> list[pa.Table]:
        """Run batches until there are no changes left, and return the rows of each batch."""
        tables: list[pa.Table] = []
        for _ in range(most):
            table = self.step()
            if table is None:
                return tables
            tables.append(table)
        raise AssertionError(f"still something to do after {most} batches")


def planned(url: str, *filters: Filter, **options: str) -> list[Any]:
    """Plan a batch read as Spark does and return its partitions; filters apply if the option filterPushdown is on."""
    source = DcpDataSource({"url": url, **options})
    reader = source.reader(source.schema())
    if isinstance(reader, FilteringReader):
        reader.pushFilters([*filters])
    partitions: list[Any] = pickle.loads(pickle.dumps(reader.partitions()))
    return partitions


def read_batch(url: str, *filters: Filter, **options: str) -> pa.Table:
    """Run a batch read as Spark does, each task in a new reader, and return the rows."""
    return read_partitions(planned(url, *filters, **options), url, **options)


def read_partitions(partitions: list[Any], url: str, **options: str) -> pa.Table:
    """Run the tasks of a planned batch read, and return the rows."""
    source = DcpDataSource({"url": url, **options})
    schema = source.schema()
    rows = [batch for part in partitions for batch in source.reader(schema).read(part)]
    return pa.Table.from_batches(rows, to_arrow_schema(schema, timezone="UTC"))


def _through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def current_of(lake: Lake) -> Contents:
    rows = read_current(lake).to_pylist()
    found = {row["key"].encode(): (row["cas"], row["value"]) for row in rows}
    assert len(found) == len(rows)
    return found


def check_changelog(lake: Lake) -> pa.Table:
    """Return the changelog's rows; fails if a row occurs twice."""
    rows = read_changelog(lake)
    places = list(zip(*(rows[name].to_pylist() for name in ("vbucket", "history", "seqno", "event")), strict=True))
    assert len(places) == len(set(places))
    return rows


class Proxy:
    """A network between clients and a node, which can be cut.

    Attributes:
        cut_after: bytes from the node after which a connection is cut, None for no limit.
        cuts: number of connections that were cut by this limit.
        refused: number of refused connections.
        passed: bytes that came from the node.
        refusing: number of next connections to refuse; a cut sets it to 2.
        is_down: whether all new connections are refused.
        on_refusal: called after each refusal.
        port: the port that clients connect to.
    """

    def __init__(self, loop: LoopThread, port: int) -> None:
        self.cut_after: int | None = None
        self.cuts = self.refused = self.passed = 0
        self.refusing = 0
        self.is_down = False
        self.on_refusal: Callable[[], None] = lambda: None
        self.port = 0
        self._loop = loop
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[Any]] = set()

    @classmethod
    @contextmanager
    def before(cls, port: int) -> Iterator[Self]:
        with LoopThread() as loop:
            proxy = cls(loop, port)
            server = loop.run(asyncio.start_server(proxy._serve, "127.0.0.1", 0))
            proxy.port = server.sockets[0].getsockname()[1]
            try:
                yield proxy
            finally:
                server.close()
                proxy.cut()
                loop.run(proxy._ended())

    @property
    def url(self) -> str:
        return f"couchbase://127.0.0.1:{self.port}/default"

    def cut(self) -> None:
        """End all connections, and refuse new ones until `is_down` is False again."""
        self.is_down = True
        self._loop.run(self._cut())

    async def _cut(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _ended(self) -> None:
        """Wait until all connections have ended; a client may keep an idle connection."""
        while self._serving:
            await asyncio.wait([*self._serving])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        if self.is_down or self.refusing:
            self.refused += 1
            self.refusing = max(0, self.refusing - 1)
            writer.transport.abort()
            self.on_refusal()
            return
        from_node, to_node = await asyncio.open_connection("127.0.0.1", self._target)
        ends = {writer, to_node}
        self._writers |= ends
        with suppress(OSError):
            await asyncio.gather(self._to_node(reader, to_node), self._from_node(from_node, writer))
        for end in ends:
            end.transport.abort()
            with suppress(OSError):
                await end.wait_closed()
        self._writers -= ends

    async def _to_node(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _from_node(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.cut_after
        while data := await reader.read(65536):
            self.passed += len(data)
            if left is not None and (left := left - len(data)) <= 0:
                self.cuts += 1
                self.refusing = 2
                raise ConnectionResetError
            writer.write(data)
            await writer.drain()
        writer.close()


def generated(count: int) -> dict[str, bytes]:
    """Return documents like those of beer-sample: nested, with non-ASCII text, slashes, quotes and line ends."""
    return {
        f"bräu/{number}": compact(
            {"name": f"Bräu №{number}\u2028", "abv": number / 10, "tags": ['"', "\\", "/", "\n"] * 3}
        )
        for number in range(count)
    }


def compact(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
