"""Filters that a batch read of `format("dcp")` takes from Spark: its requests to the bucket, and its rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from penstock.client.feeds.collection_selection import CollectionSelection, KnownCollections
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.node import Node
from penstock.spark.source.offsets import VbucketRead
from penstock.spark.source.partition_reader import read_partition
from penstock.spark.source.pushdown import PushedFilters, narrow_reads, push_filters
from penstock.spark.source.shape import ColumnFilter
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.flags import Datatype
from penstock.wire.columns.schema import CHANGE_SCHEMA
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import FailoverEntry
from tests.client.test_collections import change
from tests.examples import scaled
from tests.spark.buckets import Documents, Proxy, planned, read_batch
from tests.spark.filters import column_lists, conditions, select_rows

VBUCKETS = 8


@pytest.fixture(scope="module")
def bucket():
    """Return a node and a bucket with several collections. Some documents were deleted, a collection was dropped."""
    with Node.running(["beer"], vbuckets=VBUCKETS) as node, Documents.of(node.url("beer")) as documents:
        for scope, name in (("inventory", "airline"), ("inventory", "hotel"), ("other", "hotel"), ("other", "gone")):
            change(
                node,
                lambda manifest, scope=scope: manifest if scope in _names(manifest) else manifest.with_scope(scope),
            )
            change(node, lambda manifest, scope=scope, name=name: manifest.with_collection(scope, name))
            store(documents, f"{scope}.{name}", 40)
        change(node, lambda manifest: manifest.without_collection("other", "gone"))
        store(documents, "", 60)
        store(documents, "inventory.hotel", 20)  # later versions of older seqnos
        documents.store({"k60": b'{"a": 1}', "k61": b"\xff\x00"}, expiry=2**31 - 1)
        node.call(lambda: store_attributes(node.buckets["beer"].store.vbuckets[3]))
        documents.remove([f"k{number}" for number in range(10)])
        yield node, documents


def store_attributes(vbucket):
    for key, document in (b"json", b"{}"), (b"text", b"i"), (b"deleted", b"{}"):
        value = pack_xattrs({"own": b"1", "_system": b"2"}, document)
        vbucket.set(b"\0" + key, value, datatype=int(Datatype.XATTR | (Datatype.JSON if document == b"{}" else 0)))
    vbucket.delete(b"\0deleted")


def _names(manifest):
    return {scope.name for scope in manifest.scopes_by_id.values()}


def store(documents, collection, count):
    values = ((f"k{number}", f"{collection} {number}".encode()) for number in range(count))
    documents.loop.run(documents.bucket.upsert_many(values, collection=collection))


def read(documents, *filters, **options):
    return read_batch(documents.url, *filters, filterPushdown="true", **options)


def identities(rows):
    return sorted(zip(rows["vbucket"].to_pylist(), rows["seqno"].to_pylist(), strict=True))


@settings(max_examples=scaled(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_rows_and_columns_equal_those_of_a_read_without_filters(bucket, data):
    _, documents = bucket
    everything = read_batch(documents.url, columns=",".join(CHANGE_SCHEMA.names))
    columns = data.draw(column_lists(everything))
    wanted = data.draw(st.lists(conditions(everything, columns), min_size=1, max_size=3))
    assert push_filters(wanted, CHANGE_SCHEMA)[1] == []
    found = read(documents, *wanted, columns=",".join(columns))
    assert select_rows(found, [], columns) == select_rows(everything, wanted, columns)


# Requests to the bucket

WITHOUT_SNAPSHOTS = ",".join(name for name in CHANGE_SCHEMA.names if not name.startswith("snapshot_"))
NEVER: list[list[Any]] = [[GreaterThan(("seqno",), 20), LessThan(("seqno",), 20)], [IsNull(("vbucket",))]]


@pytest.mark.parametrize(
    ("filters", "sent"),
    [
        ([EqualTo(("vbucket",), 3)], lambda row: row["vbucket"] == 3),
        ([In(("vbucket",), (3, 5, None, 99))], lambda row: row["vbucket"] in (3, 5)),
        ([Not(LessThan(("vbucket",), 6))], lambda row: row["vbucket"] >= 6),
        ([GreaterThan(("seqno",), 20)], lambda row: row["seqno"] > 20),
        ([EqualTo(("collection_id",), 9)], lambda row: row["collection_id"] == 9),
        (
            [EqualTo(("collection",), "hotel"), IsNotNull(("collection",)), EqualTo(("vbucket",), 1)],
            lambda row: row["collection"] == "hotel" and row["vbucket"] == 1,
        ),
        ([EqualTo(("scope",), "inventory")], lambda row: row["scope"] == "inventory"),
        *((filters, lambda row: False) for filters in NEVER),
    ],
)
def test_filtered_changes_are_not_sent(bucket, filters, sent):
    _, documents = bucket
    expected = [row for row in read_batch(documents.url).to_pylist() if sent(row)]
    assert bool(expected) == (filters not in NEVER)
    before = documents.stat("ep_dcp_items_sent")
    found = read(documents, *filters, columns=WITHOUT_SNAPSHOTS)
    events = sum(row["key"] is None for row in expected)
    assert len(expected) - events <= documents.stat("ep_dcp_items_sent") - before <= len(expected)
    assert identities(found) == sorted((row["vbucket"], row["seqno"]) for row in expected)


def test_bytes_of_filtered_changes_are_not_sent(bucket):
    node, documents = bucket
    with Proxy.before(node.kv_port) as proxy:
        url = proxy.url.replace("/default", "/beer")

        def passed(*filters, **options):
            parts = planned(url, *filters, filterPushdown="true", **options)
            for _ in range(2):  # the first read may have to connect
                before = proxy.passed
                rows = sum(batch.num_rows for part in parts for batch in read_partition(part))
            return rows, proxy.passed - before

        rows, whole = passed()
        few, less = passed(EqualTo(("vbucket",), 3))
        assert 0 < few < rows / 4
        assert less < whole / 3
        assert passed(IsNull(("vbucket",))) == (0, 0)
        _, without_values = passed(keysOnly="true")
        mutations = read_batch(documents.url).filter(pa.compute.field("event") == "mutation")
        assert whole - without_values >= sum(map(len, mutations["value"].to_pylist()))


ABOVE, BELOW = GreaterThan(("seqno",), 12), LessThan(("seqno",), 13)


@pytest.mark.parametrize(
    ("columns", "condition", "start"),
    [(WITHOUT_SNAPSHOTS, ABOVE, 12), ("seqno,snapshot_end", ABOVE, 0), (WITHOUT_SNAPSHOTS, BELOW, 0)],
)
def test_streams_start_later_without_columns_of_snapshots_and_never_end_earlier(bucket, columns, condition, start):
    _, documents = bucket
    whole = planned(documents.url)
    parts = planned(documents.url, condition, filterPushdown="true", columns=columns)
    assert {read.start_seqno for part in parts for read in part.range.reads} == {start}
    assert list_ends(parts) == list_ends(whole)


def list_ends(parts):
    return [read.end_seqno for part in parts for read in part.range.reads]


def test_vbuckets_without_seqnos_in_the_range_have_no_streams(bucket):
    _, documents = bucket
    for condition in (GreaterThan(("seqno",), 1_000), LessThan(("seqno",), 1)):
        assert planned(documents.url, condition, filterPushdown="true") == []


@pytest.mark.parametrize(
    ("filters", "seqnos"),
    [
        ([], (0, MAX_SEQNO)),
        ([GreaterThan(("seqno",), 5), LessThan(("seqno",), 9)], (6, 8)),
        ([GreaterThanOrEqual(("seqno",), 5), LessThanOrEqual(("seqno",), 9)], (5, 9)),
        ([Not(GreaterThan(("seqno",), 5))], (0, 5)),
        ([Not(LessThan(("seqno",), 5))], (5, MAX_SEQNO)),
        ([EqualTo(("seqno",), 5)], (5, 5)),
        ([EqualNullSafe(("seqno",), 5)], (5, 5)),
        ([EqualNullSafe(("seqno",), None)], (0, MAX_SEQNO)),
        ([Not(EqualTo(("seqno",), 5))], (0, MAX_SEQNO)),
        ([In(("seqno",), (7, None, 3))], (3, 7)),
        ([In(("seqno",), (7, -3))], (0, MAX_SEQNO)),
        ([GreaterThan(("seqno",), -5)], (0, MAX_SEQNO)),
        ([LessThan(("seqno",), -5)], (0, MAX_SEQNO)),
    ],
)
def test_filters_give_a_range_of_seqnos(filters, seqnos):
    assert push_filters(filters, CHANGE_SCHEMA)[0].seqno_range == seqnos


@pytest.mark.parametrize("end", [2**63 - 1, 2**63, 2**63 + 5])
def test_seqnos_that_rows_show_as_negative_are_below_any_limit(end):
    pushed, _ = push_filters([LessThan(("seqno",), 5)], CHANGE_SCHEMA)
    read = VbucketRead(0, 0, 1, 4, end)
    infos = {0: VbucketInfo((FailoverEntry(1, 0),), end, 0)}
    assert bool(narrow_reads([read], pushed, infos, shows_snapshots=False)) == (end >= 2**63)


KNOWN = KnownCollections(
    {"_default": 0, "a": 8, "b": 9},
    {("_default", "_default"): 0, ("a", "x"): 8, ("a", "y"): 9, ("b", "x"): 10},
)


@pytest.mark.parametrize(
    ("selection", "filters", "expected"),
    [
        (CollectionSelection(), [ColumnFilter("vbucket", "=", (1,))], CollectionSelection()),
        (CollectionSelection(), [ColumnFilter("scope", "=", ("a",))], CollectionSelection("a")),
        (
            CollectionSelection(),
            [ColumnFilter("scope", "=", ("a",)), ColumnFilter("collection", "=", ("x",))],
            CollectionSelection("", ("a.x",)),
        ),
        (CollectionSelection(), [ColumnFilter("collection", "=", ("x",))], CollectionSelection("", ("a.x", "b.x"))),
        (CollectionSelection("b"), [ColumnFilter("collection", "=", ("x",))], CollectionSelection("b")),
        (CollectionSelection("a"), [ColumnFilter("collection", "=", ("x",))], CollectionSelection("", ("a.x",))),
        (
            CollectionSelection("", ("a.x", "a.y")),
            [ColumnFilter("collection_id", "=", (9,))],
            CollectionSelection("", ("a.y",)),
        ),
        (
            CollectionSelection(),
            [ColumnFilter("collection_id", "in", (8, 10))],
            CollectionSelection("", ("a.x", "b.x")),
        ),
        (CollectionSelection(), [ColumnFilter("collection_id", "=", (99,))], CollectionSelection()),
        (CollectionSelection(), [ColumnFilter("collection_id", "in", (8, 99))], CollectionSelection()),
        (CollectionSelection(), [ColumnFilter("collection_id", "in", (8, None))], CollectionSelection()),
        (CollectionSelection(), [ColumnFilter("collection", "is null")], CollectionSelection()),
        (CollectionSelection(), [ColumnFilter("scope", "is not null")], CollectionSelection()),
        (CollectionSelection(), [ColumnFilter("scope", "=", ("a",), negated=True)], CollectionSelection()),
        (CollectionSelection(), [ColumnFilter("collection", "=", ("x",), negated=True)], CollectionSelection()),
        (CollectionSelection(), [ColumnFilter("collection", "starts with", ("x",))], CollectionSelection()),
        (
            CollectionSelection(),
            [ColumnFilter("collection", "=", ("x",)), ColumnFilter("scope", "=", ("b",), negated=True)],
            CollectionSelection("", ("a.x",)),
        ),
    ],
)
def test_filters_narrow_the_selection_of_collections(selection, filters, expected):
    assert PushedFilters(tuple(filters)).narrow_selection(selection, KNOWN) == expected


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("value", "name"), "x"),
        EqualTo(("nothing",), 1),
        EqualTo(("seqno",), 1.5),
        EqualTo(("seqno",), True),
        EqualTo(("vbucket",), 2**31),
        In(("event",), ("mutation", 1)),
        GreaterThan(("xattrs",), None),
        StringStartsWith(("key",), "text"),
        Not(Not(EqualTo(("seqno",), 1))),
    ],
)
def test_unsupported_filters_are_left_to_spark(condition):
    taken, left = push_filters([condition, EqualTo(("vbucket",), 1)], CHANGE_SCHEMA)
    assert left == [condition]
    assert taken.filters == (ColumnFilter("vbucket", "=", (1,)),)


@pytest.mark.spark
def test_spark_pushes_its_filters_and_applies_the_others(spark, bucket):
    _, documents = bucket
    whole = spark.read.format("dcp").option("url", documents.url).load()
    wanted = "scope = 'inventory' and key like 'k1%' and (vbucket = 1 or vbucket = 2) and value is not null"
    expected = identities(whole.where(wanted).toArrow())
    pushing = spark.read.format("dcp").option("url", documents.url).option("filterPushdown", True).load()
    with pytest.raises(PySparkException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        pushing.where(wanted).count()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        before = documents.stat("ep_dcp_items_sent")
        assert identities(pushing.where(wanted).toArrow()) == expected
        # 80 documents of the scope, and its events.
        assert documents.stat("ep_dcp_items_sent") - before <= 80 + 3 * VBUCKETS
        assert pushing.where("scope = 'inventory' and vbucket is null").count() == 0
        assert identities(whole.where(wanted).toArrow()) == expected  # a read without the option takes no filters
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert expected
