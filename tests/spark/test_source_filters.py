"""Filters that a batch read of `format("dcp")` takes from Spark: its requests to the bucket, and its rows.

The model applies SQL's logic in Python to the rows of a read without filters.
"""

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
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from penstock.client.feeds.collection_selection import CollectionSelection, KnownCollections
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.node import Node
from penstock.spark.source.offsets import VbucketRead
from penstock.spark.source.partition_reader import read_partition
from penstock.spark.source.pushdown import PushedFilters, narrow_reads, push_filters
from penstock.spark.source.shape import ColumnFilter
from penstock.store.history.failover_log import FailoverEntry
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.client.test_collections import change
from tests.examples import scaled
from tests.spark.buckets import Documents, Proxy, planned, read_batch

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
        documents.remove([f"k{number}" for number in range(10)])
        yield node, documents


def _names(manifest):
    return {scope.name for scope in manifest.scopes_by_id.values()}


def store(documents, collection, count):
    values = ((f"k{number}", f"{collection} {number}".encode()) for number in range(count))
    documents.loop.run(documents.bucket.upsert_many(values, collection=collection))


def read(documents, *filters):
    return read_batch(documents.url, *filters, filterPushdown="true")


def identities(rows):
    return sorted(zip(rows["vbucket"].to_pylist(), rows["seqno"].to_pylist(), strict=True))


# The model

COMPARE = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    StringStartsWith: lambda a, b: a.startswith(b),
    StringEndsWith: lambda a, b: a.endswith(b),
    StringContains: lambda a, b: b in a,
}


def holds(condition: Any, row: dict[str, Any]) -> bool | None:
    if isinstance(condition, Not):
        held = holds(condition.child, row)
        return None if held is None else not held
    value = row[condition.attribute[0]]
    if isinstance(condition, IsNull):
        return value is None
    if isinstance(condition, IsNotNull):
        return value is not None
    operand = condition.value
    if isinstance(condition, EqualNullSafe):
        return bool(value == operand)
    if isinstance(condition, In):
        known = [each for each in operand if each is not None]
        return None if value is None else True if value in known else None if len(known) < len(operand) else False
    return None if value is None or operand is None else bool(COMPARE[type(condition)](value, operand))


OPERANDS = {
    "vbucket": st.integers(-1, VBUCKETS),
    "seqno": st.integers(-2, 60),
    "collection_id": st.integers(0, 12),
    "history": st.integers(0, 1),
    "cas": st.integers(-(2**63), 2**63 - 1),
    "scope": st.sampled_from(["_default", "inventory", "other", "nowhere", ""]),
    "collection": st.sampled_from(["_default", "airline", "hotel", "gone", "h"]),
    "event": st.sampled_from(["mutation", "deletion", "begin_collection", "create_scope", "n"]),
    "key": st.sampled_from([b"k1", b"k", b"9", b"\xff", b""]),
    "value": st.sampled_from([b"inventory.hotel 3", b"i", b" 7"]),
}
TEXT = ("scope", "collection", "event", "key", "value")


@st.composite
def conditions(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(sorted(OPERANDS)))
    operands = OPERANDS[column] | st.none()
    kinds = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, In, IsNull, IsNotNull]
    kind = draw(
        st.sampled_from([*kinds, *([StringStartsWith, StringEndsWith, StringContains] if column in TEXT else [])])
    )
    found: Any
    if kind in (IsNull, IsNotNull):
        found = kind((column,))
    elif kind is In:
        found = In((column,), tuple(draw(st.lists(operands, min_size=1, max_size=3))))
    else:
        found = kind((column,), draw(OPERANDS[column] if kind in COMPARE and column in TEXT else operands))
    return Not(found) if draw(st.booleans()) else found


@settings(max_examples=scaled(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(wanted=st.lists(conditions(), min_size=1, max_size=3))
def test_rows_equal_those_of_a_read_without_filters(bucket, wanted):
    _, documents = bucket
    everything = read_batch(documents.url)
    taken, left = push_filters(wanted, CHANGE_SCHEMA)
    assert left == []
    expected = everything.filter(pa.array([all(holds(each, row) for each in wanted) for row in everything.to_pylist()]))
    found = read(documents, *wanted)
    if any(each.column in ("scope", "collection") for each in taken.filters):
        # A filter by name requests nothing of dropped collections.
        expected = leave_out_dropped(expected, everything)
        found = leave_out_dropped(found, everything)
    if taken.seqno_range[1] == MAX_SEQNO:
        assert identities(found) == identities(expected)
    else:  # versions that a later change has replaced may be sent too
        assert {*identities(expected)} <= {*identities(found)}
        assert all(holds(each, row) for each in wanted for row in found.to_pylist())


def leave_out_dropped(rows, everything):
    ended = everything.filter(pa.compute.equal(everything["event"], "end_collection"))["collection_id"].to_pylist()
    is_dropped = pa.compute.is_in(rows["collection_id"], pa.array(ended, pa.int64()))
    return rows.filter(pa.compute.invert(is_dropped))


# Requests to the bucket

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
    found = read(documents, *filters)
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


def test_streams_end_at_an_upper_seqno(bucket):
    _, documents = bucket
    parts = planned(documents.url, LessThanOrEqual(("seqno",), 12), filterPushdown="true")
    assert {read.end_seqno for part in parts for read in part.range.reads} == {12}
    assert {read.start_seqno for part in parts for read in part.range.reads} == {0}
    assert {row["seqno"] for row in read(documents, LessThanOrEqual(("seqno",), 12)).to_pylist()} <= {*range(1, 13)}


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
    read = VbucketRead(0, 0, 1, 0, end)
    (found,) = narrow_reads([read], pushed, {0: VbucketInfo((FailoverEntry(1, 0),), end, 0)})
    assert found.end_seqno == (4 if end < 2**63 else end)


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
