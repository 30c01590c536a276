"""Definitions for Spark Declarative Pipelines: their queries against the fold, and an example project that is run."""

import random

import pyarrow as pa
import pytest

from penstock.spark.declarative import IS_DELETE, SEQUENCE, documents_of, keyed_changes
from penstock.spark.lake.fold import IDENTITY, fold
from penstock.spark.lake.schemas import CURRENT_COLUMNS
from tests.spark.lakes import Row, as_documents, rollback, row, table

pytestmark = pytest.mark.spark

BEHIND = 2**63  # seqnos are unsigned, and Spark's numbers are not


def story(vbucket: int) -> list[Row]:
    """Return what one vbucket goes through; in each of the odd ones seqnos are huge."""
    chance = random.Random(vbucket)
    base = BEHIND - 5 if vbucket % 2 else 0
    rows: list[Row] = []
    high = history = 0

    def signed(seqno):
        return seqno + base - 2**64 if seqno + base >= BEHIND else seqno + base

    for _ in range(chance.randrange(60)):
        kind = chance.choices(["set", "delete", "expire", "end", "rollback", "flush"], [8, 3, 1, 1, 2, 0.3])[0]
        key = chance.choice([b"a", b"b", b"c", b"\xff", "bräu".encode(), b"\xed\xa0\x80"])
        collection = chance.choice([0, 8, None])
        if kind in ("rollback", "flush"):
            history += 1
            high = chance.randrange(high + 1) if kind == "rollback" else 0
            rows.append(rollback(vbucket, signed(high) if high else chance.choice([0, None]), history, kind))
            continue
        high += chance.randrange(1, 3)
        where: Row = {"history": history, "collection_id": collection, "cas": len(rows)}
        if kind == "set":
            rows.append(row(vbucket, signed(high), key, b"%d" % len(rows), xattrs={"x": key}, **where))
        elif kind == "end":
            rows.append(row(vbucket, signed(high), None, None, "end_collection", **where))
        else:
            rows.append(row(vbucket, signed(high), key, None, {"delete": "deletion"}.get(kind, "expiration"), **where))
    return rows


@pytest.fixture(scope="module")
def rows():
    """Stories of many vbuckets, which have nothing to do with each other, in no order."""
    found = [change for vbucket in range(300) for change in story(vbucket)]
    random.Random(0).shuffle(found)
    return table(found)


def in_order(documents: pa.Table) -> list[Row]:
    return sorted(documents.to_pylist(), key=lambda line: (line["vbucket"], line["collection_id"], line["cas"]))


def test_the_documents_of_a_changelog_are_those_of_the_fold(spark, rows):
    found = documents_of(spark.createDataFrame(rows)).toArrow()
    assert found.schema.names == CURRENT_COLUMNS.names
    assert found.cast(CURRENT_COLUMNS).num_rows > 300
    assert in_order(found) == in_order(fold(rows))


def test_what_auto_cdc_is_given_from_the_start_makes_the_same_documents(spark, rows):
    frame = spark.createDataFrame(rows)
    changes = keyed_changes(frame, frame).toArrow()
    assert not any(changes[name].null_count for name in (*IDENTITY, SEQUENCE, IS_DELETE))
    newest = {}
    for line in sorted(changes.to_pylist(), key=lambda line: line[SEQUENCE]):
        newest[tuple(line[name] for name in IDENTITY)] = line
    kept = {identity: (line["cas"], line["value"]) for identity, line in newest.items() if not line[IS_DELETE]}
    assert kept == as_documents(fold(rows))
