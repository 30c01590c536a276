"""Rows that are written to a bucket: the results of each operation, on real nodes and without Spark."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.blocking import read_changes
from penstock.client.documents.document import compute_vbucket
from penstock.client.documents.window_writer import RefusedRows, WriteCounts, divide_into_windows
from penstock.errors import UsageError
from penstock.node import Node
from penstock.options import list_options
from penstock.spark.sink.bucket_writes import write_tables
from penstock.spark.sink.sink_columns import check_columns
from penstock.spark.sink.sink_options import SinkOptions, SubdocumentPath
from penstock.spark.source.bucket_options import BucketOptions
from penstock.wire.codec.constants import MAX_VALUE
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.layout import decode_frame
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event
from penstock.wire.messages.kv import GetMeta, MetaReply
from tests.node.watch import run
from tests.node.wire_client import connected
from tests.spark.buckets import Documents

VBUCKETS = 16
PAGE = Path(__file__).parents[2] / "docs" / "sink.md"


def send(url, columns, **options):
    """Write rows as a task does; return their counts, and the reasons of refused rows by key."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    chosen = SinkOptions.parse({"url": url, **options})
    check_columns(chosen, table.schema)
    refused: dict[Any, str] = {}

    def collect_refused(found):
        texts = [fault.text for fault in found.faults]
        refused.update(zip(found.rows["key"].to_pylist(), texts, strict=True))

    return write_tables(chosen, divide_into_windows(table.to_batches(max_chunksize=1000)), collect_refused), refused


def rows_of(url):
    """Return a bucket's newest changes by key."""
    changes = pa.Table.from_batches(read_changes(url, stop="now", xattrs=True), CHANGE_SCHEMA)
    return {row["key"].decode(): row for row in changes.to_pylist() if row["key"] is not None}


@pytest.fixture
def url(node):
    return node.url("default")


def test_documents_are_stored_from_columns_of_all_types(documents, url):
    columns = {
        "key": ["a", "b"],
        "value": pa.array([{"n": 1, "s": 'x"', "none": None}, {"n": None, "s": "ü", "none": None}]),
        "flags": pa.array([7, None], pa.int32()),
        "expiry": pa.array([datetime(2100, 1, 1, tzinfo=UTC), None], pa.timestamp("us", tz="UTC")),
        "scope": pa.array([None, None], pa.string()),
        "collection": pa.array([None, "_default"]),
    }
    assert send(url, columns) == (WriteCounts(written=2), {})
    found = rows_of(url)
    assert [found[key]["value"] for key in "ab"] == [b'{"n":1,"s":"x\\""}', '{"s":"ü"}'.encode()]
    assert [found[key]["flags"] for key in "ab"] == [7, 0]
    assert [found[key]["expiry"] for key in "ab"] == [4102444800, 0]
    assert {row["datatype"] for row in found.values()} == {Datatype.JSON}
    plain = {"key": pa.array([b"\xff"]), "value": ["text"]}
    assert send(url, plain) == (WriteCounts(written=1), {})


@pytest.mark.parametrize("operation", ["upsert", "insert", "change", "subdoc"])
def test_an_expiry_above_thirty_days_counts_from_now(documents, url, operation):
    columns = {"key": ["a"], "value": ["{}"], "event": ["mutation"], "expiry": [60 * 86400]}
    options = {"subdocument": "n=value"} if operation == "subdoc" else {}
    assert send(url, columns, operation=operation, **options) == (WriteCounts(written=1), {})
    assert abs(rows_of(url)["a"]["expiry"] - time.time() - 60 * 86400) < 86400


def test_more_rows_than_a_window_are_written(documents, url):
    count = 10_000
    keys = [f"key-{number}" for number in range(count)]
    columns = {"key": keys, "value": [str(number) for number in range(count)]}
    assert send(url, columns, maxBytesInFlight="64k") == (WriteCounts(written=count), {})
    documents.keys = set(keys)
    assert {value for _, value in documents.contents().values()} == {b"%d" % number for number in range(count)}


def test_insert_replace_and_delete_report_existing_and_missing_keys(documents, url):
    documents.store({"there": b"old"})
    keys = {"key": ["there", "new"], "value": ["1", "1"]}
    assert send(url, keys, operation="insert") == (WriteCounts(written=1, failed=1), {"there": "KEY_EEXISTS"})
    keys = {"key": ["there", "nowhere"], "value": ["2", "2"]}
    assert send(url, keys, operation="replace") == (WriteCounts(written=1, failed=1), {"nowhere": "KEY_ENOENT"})
    keys = {"key": ["there", "nowhere"], "value": ["3", "3"]}  # delete ignores the value
    assert send(url, keys, operation="delete") == (WriteCounts(written=1, missing=1), {})
    assert send(url, keys, operation="delete") == (WriteCounts(missing=2), {})
    documents.keys |= {"new"}
    assert documents.contents().keys() == {b"new"}


def test_a_row_with_a_cas_changes_only_that_version(documents, url):
    documents.store({"a": b"old", "b": b"old", "c": b"old"})
    before = documents.contents()
    cas = [before[b"a"][0], before[b"b"][0] + 1, None]
    columns = {"key": ["a", "b", "c"], "value": ["new"] * 3, "cas": pa.array(cas, pa.int64())}
    assert send(url, columns) == (WriteCounts(written=2, failed=1), {"b": "KEY_EEXISTS"})
    assert [value for _, value in documents.contents().values()] == [b"new", b"old", b"new"]
    assert send(url, columns, operation="delete") == (
        WriteCounts(written=1, failed=2),
        {"a": "KEY_EEXISTS", "b": "KEY_EEXISTS"},
    )


def test_rows_that_cannot_be_documents_are_refused(documents, url):
    columns = {
        "key": ["good", "big", "k" * 251, None, "null", "expiry"],
        "value": ["v", "v" * (MAX_VALUE + 1), "v", "v", None, "v"],
        "expiry": [0, 0, 0, 0, 0, -1],
    }
    counts, refused = send(url, columns)
    assert counts == WriteCounts(written=1, failed=5)
    assert refused == {
        "big": f"value of {MAX_VALUE + 1} bytes, limit {MAX_VALUE}",
        "k" * 251: "key of 251 bytes, expected 1 to 250",
        None: "no key",
        "null": "no value",
        "expiry": "expiry -1, expected 0 to 4294967295",
    }


def test_changes_are_applied(documents, url):
    documents.store({"gone": b"", "expired": b"", "kept": b""})
    events = [Event.MUTATION, Event.DELETION, Event.EXPIRATION, Event.ROLLBACK, Event.BEGIN_COLLECTION, Event.DELETION]
    rows = [
        {"key": key, "value": b"1" if event == Event.MUTATION else None, "event": event, "cas": 5, "rev_seqno": 9}
        for key, event in zip([b"new", b"gone", b"expired", None, None, b"nowhere"], events, strict=True)
    ]
    table = pa.Table.from_pylist(rows, schema=CHANGE_SCHEMA)
    assert send(url, table, operation="change") == (WriteCounts(written=3, missing=1, skipped=2), {})
    documents.keys |= {"new", "nowhere"}
    assert {key: value for key, (_, value) in documents.contents().items()} == {b"kept": b"", b"new": b"1"}


XATTRS = pa.map_(pa.string(), pa.binary())


def test_extended_attributes_are_written_with_their_document(documents, url):
    table = pa.table(
        {
            "key": ["a", "b", "c"],
            "value": ["{}", "text", "{}"],
            "xattrs": pa.array([[("meta", b'{"n":1}'), ("_sys", b"2")], [], [("bad", b"{")]], XATTRS),
            "flags": [3, 4, 5],
        }
    )
    counts, refused = send(url, table)
    assert counts == WriteCounts(written=2, failed=1)
    assert refused == {"c": "SUBDOC_MULTI_PATH_FAILURE (path 'bad': SUBDOC_VALUE_CANTINSERT)"}
    found = rows_of(url)
    assert dict(found["a"]["xattrs"]) == {"meta": b'{"n":1}', "_sys": b"2"}
    assert (found["a"]["value"], found["a"]["flags"]) == (b"{}", 3)
    assert (found["b"]["value"], found["b"]["flags"]) == (b"text", 4)
    gone = table.slice(0, 2).append_column("event", pa.array([Event.DELETION, Event.MUTATION], pa.string()))
    assert send(url, gone, operation="change") == (WriteCounts(written=2), {})
    assert rows_of(url)["a"]["event"] == Event.DELETION


def test_paths_of_documents_are_set_all_at_once(documents, url):
    documents.store({"a": b'{"address":{"city":"Kiel","zip":1},"visits":1}', "text": b"no json", "list": b"[]"}, 3600)
    columns = {
        "key": ["a", "new", "text", "list", "nothing"],
        "city": ["Köln", 'B"n', "x", "x", None],
        "visits": pa.array([2, None, 3, 3, None]),
        "tags": pa.array([["x"], ["y"], None, None, None]),
        "source": ["s", None, None, None, None],
    }
    paths = "address.city=city, visits = visits, tags=tags, xattr:meta.source=source"
    counts, refused = send(url, columns, operation="subdoc", subdocument=paths)
    assert counts == WriteCounts(written=2, skipped=1, failed=2)
    assert {key: text.partition(" ")[0] for key, text in refused.items()} == dict.fromkeys(
        ["text", "list"], "SUBDOC_MULTI_PATH_FAILURE"
    )
    assert "address.city" in refused["list"]
    found = rows_of(url)
    assert json.loads(found["a"]["value"]) == {"address": {"city": "Köln", "zip": 1}, "visits": 2, "tags": ["x"]}
    assert dict(found["a"]["xattrs"]) == {"meta": b'{"source":"s"}'}
    assert found["a"]["expiry"] > 0  # unchanged
    assert json.loads(found["new"]["value"]) == {"address": {"city": 'B"n'}, "tags": ["y"]}
    only_there = {"key": ["a", "nowhere"], "n": [1, 1], "expiry": [0, 0]}
    wanted = {"operation": "subdoc", "subdocument": "n=n", "createDocuments": "false"}
    assert send(url, only_there, **wanted) == (WriteCounts(written=1, failed=1), {"nowhere": "KEY_ENOENT"})
    assert rows_of(url)["a"]["expiry"] == 0
    bad = send(url, {"key": ["a"], "n": [1]}, operation="subdoc", subdocument="a..b=n")[1]
    assert bad == {"a": "SUBDOC_MULTI_PATH_FAILURE (path 'a..b': SUBDOC_PATH_EINVAL)"}


def test_rows_go_to_the_collections_that_they_name(documents, node, url):
    def change(how):
        bucket = node.buckets["default"]
        run(node, lambda: bucket.change_manifest(how(bucket.store.manifests.current)))

    change(lambda manifest: manifest.with_scope("shop"))
    change(lambda manifest: manifest.with_collection("shop", "hats"))
    columns = {
        "key": ["a", "a", "a", "a"],
        "value": ["1", "2", "3", "4"],
        "scope": ["shop", None, "shop", "nowhere"],
        "collection": ["hats", None, "shoes", "hats"],
    }
    counts, refused = send(url, columns)
    assert counts == WriteCounts(written=2, failed=2)
    assert refused["a"].startswith("no collection ")
    assert documents.loop.run(documents.bucket.get("a", collection="shop.hats")).value == b"1"
    assert documents.loop.run(documents.bucket.get("a")).value == b"2"
    with pytest.raises(UsageError, match=r"no collection 'shop\.shoes'"):
        send(url, columns, scope="shop", collection="shoes")
    assert send(url, {"key": ["b"], "value": ["1"]}, scope="shop", collection="hats") == (WriteCounts(written=1), {})
    assert documents.loop.run(documents.bucket.get("b", collection="shop.hats")).value == b"1"


def test_recreated_collection_is_found(documents, node, url):
    def change(how):
        bucket = node.buckets["default"]
        run(node, lambda: bucket.change_manifest(how(bucket.store.manifests.current)))

    def tables():
        change(lambda manifest: manifest.with_collection("_default", "hats"))
        yield pa.table({"key": ["a", "b"], "value": ["1", "1"]})
        yield pa.table({"key": ["a", "c"], "value": ["2", None]})
        change(lambda manifest: manifest.without_collection("_default", "hats"))
        change(lambda manifest: manifest.with_collection("_default", "hats"))
        yield pa.table({"key": ["b", "c", "d"], "value": ["3", None, "3"]})

    refused: list[RefusedRows] = []
    options = SinkOptions.parse({"url": url, "collection": "hats"})
    assert write_tables(options, tables(), refused.append) == WriteCounts(written=5, failed=2)
    assert [each.first_refusal for each in refused] == ["key 'c': no value"] * 2
    # Not key a: the window before may still have been in progress when the collection was dropped.
    found = documents.loop.run(documents.bucket.get_many(["b", "c", "d"], collection="hats"))
    assert [each and each.value for each in found] == [b"3", None, b"3"]


# With metadata


def copy(source, target, **options):
    """Copy all changes of one bucket to another bucket."""
    changes = pa.Table.from_batches(read_changes(source, stop="now", xattrs=True), CHANGE_SCHEMA)
    return send(target, changes, operation="with-meta", **options)


def newest(url):
    found = rows_of(url).values()
    compared = ("key", "event", "cas", "rev_seqno", "flags", "expiry", "datatype", "value", "xattrs")
    return sorted(tuple(str(row[name]) for name in compared) for row in found)


@pytest.mark.parametrize("resolution", ["seqno", "lww"])
def test_two_buckets_converge(resolution):
    with Node.running(["one", "two"], vbuckets=VBUCKETS) as node:
        urls = one, two = node.url("one"), node.url("two")
        if resolution == "lww":
            for bucket in node.buckets.values():
                run(node, lambda bucket=bucket: _last_write_wins(bucket))
        with Documents.of(one) as first, Documents.of(two) as second:
            first.store({f"k{number}": b"one" for number in range(100)}, 3600)
            second.store({f"k{number}": b"two" for number in range(50, 150)})
            second.store({f"k{number}": b"again" for number in range(60, 70)})
            first.remove([f"k{number}" for number in range(65, 75)])
            second.remove(["k149"])
            attributes = pa.array([[("meta", b"1")], [("meta", b"2")]], XATTRS)
            send(one, {"key": ["x", "y"], "value": ["{}", "text"], "xattrs": attributes})
            options = {"conflictResolution": resolution}
            counts, refused = copy(one, two, **options)
            assert not refused
            assert counts.older > 0 < counts.written
            assert copy(two, one, **options)[1] == {}
            assert newest(one) == newest(two)
            for here, there in (urls, urls[::-1]):
                again, refused = copy(here, there, **options)
                assert (again.written, refused) == (0, {})
            assert newest(one) == newest(two)
            assert dict(rows_of(one)["x"]["xattrs"]) == {"meta": b"1"}


def _last_write_wins(bucket):
    for vbucket in bucket.store.vbuckets:
        vbucket.incoming.conflict_resolution = "lww"


def test_expiration_stays_an_expiration(documents, node, url):
    row = {"key": b"k", "event": Event.EXPIRATION, "cas": 7 << 16, "rev_seqno": 3, "delete_time": 1_700_000_000}
    table = pa.Table.from_pylist([row, {"key": b"none", "event": Event.MUTATION, "value": b""}], schema=CHANGE_SCHEMA)
    counts, refused = send(url, table, operation="with-meta")
    assert counts == WriteCounts(written=1, failed=1)
    assert refused[b"none"].startswith("EINVAL (cas 0 is not the cas of a document")
    found = rows_of(url)["k"]
    assert (found["event"], found["cas"], found["rev_seqno"]) == (Event.EXPIRATION, 7 << 16, 3)
    with connected(node, "default") as client:
        meta = decode_frame(client.ask(GetMeta(key=b"k", vbucket=compute_vbucket(b"k", VBUCKETS))))
        assert isinstance(meta, MetaReply)
        assert meta.expiry == 1_700_000_000


# Errors are reported before anything is written


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"operation": "merge"}, "option operation is 'merge', expected upsert, insert, .* or subdoc"),
        ({"opration": "x"}, "unknown option 'opration' for writing by format dcp; known are url, bucket"),
        ({"operation": "subdoc"}, "operation subdoc without the option subdocument"),
        ({"subdocument": "a=b"}, "option subdocument with operation upsert"),
        ({"operation": "subdoc", "subdocument": "a"}, "option subdocument has 'a', expected path=column"),
        ({"operation": "subdoc", "subdocument": "a=b,a=c"}, "has the path 'a' twice"),
        ({"operation": "subdoc", "subdocument": ",".join(f"a{n}=b" for n in range(17))}, "17 paths, expected 16"),
        ({"errors": "deadletter"}, "errors deadletter and the option deadLetterPath, expected both or neither"),
        ({"deadLetterPath": "/tmp/x"}, "expected both or neither"),
        ({"errors": "deadletter", "deadLetterPath": "ftp://b/x"}, "the scheme is 'ftp'; expected a directory"),
        ({"maxBytesInFlight": "0"}, "option maxBytesInFlight is '0', expected bytes"),
        ({"conflictResolution": "lww"}, "option conflictResolution with operation upsert"),
        ({"createDocuments": "maybe"}, "option createDocuments is 'maybe', expected true or false"),
        ({"username": "ada"}, "a username without a password"),
        ({"url": "http://x"}, "begins with http://"),
        (
            {"url": "couchbase://h/b?protocol=upr&scope=s"},
            "option protocol is 'upr', which does not support collections",
        ),
        ({"url": "couchbase://h/b?scope=s&collections=a.b"}, "collection 'a.b' is not in scope 's'"),
    ],
)
def test_invalid_options_are_refused(options, text):
    with pytest.raises(UsageError, match=text):
        SinkOptions.parse(options)


def test_options_are_parsed():
    given = {
        "URL": "couchbase://here/beer",
        "operation": "subdoc",
        "SubDocument": "a.b=c,xattr: d=e",
        "operationTimeout": "3",
        "username": "ada",
        "password": "secret",
        "checkpointLocation": "/tmp/x",
        "errors": "deadletter",
        "deadLetterPath": "file:/tmp/letters",
        "maxBytesInFlight": "1m",
    }
    options = SinkOptions.parse(given)
    assert options.subdocument == (SubdocumentPath("d", "e", is_xattr=True), SubdocumentPath("a.b", "c"))
    assert (options.address.bucket, options.address.options.operation_timeout) == ("beer", 3)
    assert (options.max_bytes_in_flight, str(options.dead_letter_path)) == (1 << 20, "/tmp/letters")
    assert "secret" not in repr(options)


KEY_AND_VALUE = {"key": pa.string(), "value": pa.binary()}


@pytest.mark.parametrize(
    ("operation", "types", "text"),
    [
        ("upsert", {"key": pa.string()}, "no column 'value', expected key, value for upsert"),
        ("change", KEY_AND_VALUE, "no column 'event', expected key, value, event for change"),
        ("with-meta", KEY_AND_VALUE, "no column 'cas', expected key, value, cas, rev_seqno for with-meta"),
        ("upsert", {**KEY_AND_VALUE, "name": pa.string()}, "column 'name' means nothing to operation upsert"),
        ("upsert", {**KEY_AND_VALUE, "value": pa.int32()}, "column 'value' is int32, expected a string, binary"),
        ("delete", {"key": pa.int64()}, "column 'key' is int64, expected a string or binary"),
        ("delete", {"key": pa.string(), "cas": pa.string()}, "column 'cas' is string, expected a whole number"),
        ("upsert", {**KEY_AND_VALUE, "expiry": pa.string()}, "expected a whole number or a timestamp"),
        ("upsert", {**KEY_AND_VALUE, "xattrs": pa.string()}, "expected a map of string to string or binary"),
        ("upsert", {**KEY_AND_VALUE, "value": pa.list_(pa.duration("us"))}, r"column 'value\[\]' is duration\[us\]"),
        ("subdoc", {"key": pa.string(), "c": pa.duration("us")}, r"column 'c' is duration\[us\], which JSON does not"),
        ("subdoc", {"key": pa.string()}, "no column 'c', expected key, c for subdoc"),
        ("subdoc", {"key": pa.string(), "c": pa.string(), "d": pa.string()}, "column 'd' means nothing"),
    ],
)
def test_invalid_columns_are_refused(operation, types, text):
    options = SinkOptions.parse({"operation": operation, **({"subdocument": "a=c"} if operation == "subdoc" else {})})
    with pytest.raises(UsageError, match=text):
        check_columns(options, pa.schema(types))


def test_columns_of_a_change_are_accepted_by_all_operations():
    for operation in ("upsert", "insert", "replace", "delete", "change", "with-meta"):
        check_columns(SinkOptions.parse({"operation": operation}), CHANGE_SCHEMA)


OPTIONS = [option for name, option in list_options(SinkOptions).items() if name not in list_options(BucketOptions)]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_documented(option):
    name = option.external_name
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}` |")]
    assert rows == [f"| `{name}` | {option.doc} | {option.default_text} |"]
