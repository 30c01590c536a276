"""Merge rules: each rule by itself, over a few rows."""

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.lake.changelog.merge_rules import (
    CollectionEnds,
    RollbackMarkers,
    RowMarkers,
    encode_collections,
    fill_collection_ids,
    mark_common_identities,
    merge_changes,
    read_keys,
    select_newest,
    to_documents,
)
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS, MERGE_SCHEMA
from tests.spark.lakes import as_documents, model, rollback, row, table
from tests.spark.test_current import STORIES, histories

HIGHEST = -1
"""The highest seqno, 2**64 - 1, as a column has it."""


def ended(vbucket, seqno, collection, event="end_collection", **more):
    return row(vbucket, seqno, None, event=event, collection_id=collection, **more)


def seqnos(rows):
    return rows["seqno"].to_pylist()


@given(histories(), st.randoms(use_true_random=False))
def test_merged_changes_are_the_model(rows, random):
    wanted = model(rows)
    random.shuffle(rows)
    assert as_documents(merge_changes(table(rows))) == wanted


@pytest.mark.parametrize(("rows", "wanted"), [story[1:] for story in STORIES], ids=[story[0] for story in STORIES])
def test_merged_history_equals_expected_documents(rows, wanted):
    for some in (rows, rows[::-1]):
        assert {
            identity[2]: value for identity, (_, value) in as_documents(merge_changes(table(some))).items()
        } == wanted


# Rollbacks


def collect_markers(*rows):
    return RollbackMarkers.collect(table(rows))


MARKERS = [
    ("none", [row(1, 5)], [], [], {}),
    ("one", [rollback(1, 5, 1)], [(1, 1)], [5], {1: 0}),
    ("a flush", [rollback(1, 0, 1, "flush")], [(1, 1)], [0], {1: 1}),
    ("a flush without seqno", [rollback(1, None, 2, "flush")], [(1, 2)], [0], {1: 2}),
    ("a later rollback to a lower seqno", [rollback(1, 5, 1), rollback(1, 3, 2)], [(1, 1), (1, 2)], [3, 3], {1: 0}),
    ("a later rollback to a higher seqno", [rollback(1, 3, 1), rollback(1, 5, 2)], [(1, 1), (1, 2)], [3, 5], {1: 0}),
    ("in any order", [rollback(1, 3, 2), rollback(1, 5, 1)], [(1, 1), (1, 2)], [3, 3], {1: 0}),
    ("a later rollback to 0", [rollback(1, 5, 1), rollback(1, 0, 2), rollback(1, 9, 3)], [(1, 1), (1, 2), (1, 3)],
     [0, 0, 9], {1: 2}),
    ("two vbuckets", [rollback(2, 1, 1), rollback(0, 7, 3)], [(0, 3), (2, 1)], [7, 1], {0: 0, 2: 0}),
    ("two vbuckets from 1 on", [rollback(1, 5, 1), rollback(2, 1, 1)], [(1, 1), (2, 1)], [5, 1], {1: 0, 2: 0}),
    ("unsigned", [rollback(1, HIGHEST, 1), rollback(1, 5, 2)], [(1, 1), (1, 2)], [5, 5], {1: 0}),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "places", "limits", "floors"), [c[1:] for c in MARKERS], ids=[c[0] for c in MARKERS])
def test_rollback_markers_have_places_and_limits(rows, places, limits, floors):
    found = collect_markers(*rows)
    assert found.places.tolist() == [vbucket << 32 | history for vbucket, history in places]
    assert found.limits.tolist() == limits
    assert found.limits.dtype == np.uint64
    assert found.find_lowest_histories() == floors


def test_rollbacks_of_one_place_keep_the_lowest_seqno():
    """This does not happen, because a batch is written once. But sorting both rollbacks must lose no row."""
    assert collect_markers(rollback(1, 3, 1), rollback(1, 7, 1)).limits[0] == 3


SURVIVAL = [
    ("without rollbacks", [], row(1, 5), True),
    ("below", [rollback(1, 5, 1)], row(1, 4), True),
    ("at the seqno", [rollback(1, 5, 1)], row(1, 5), True),
    ("above", [rollback(1, 5, 1)], row(1, 6), False),
    ("above, unsigned", [rollback(1, 5, 1)], row(1, HIGHEST), False),
    ("above, of the history that it began", [rollback(1, 5, 1)], row(1, 6, history=1), True),
    ("above, of a later history", [rollback(1, 5, 1)], row(1, 6, history=2), True),
    ("between two, above the second", [rollback(1, 9, 1), rollback(1, 5, 2)], row(1, 6, history=1), False),
    ("before two, above the second", [rollback(1, 9, 1), rollback(1, 5, 2)], row(1, 6), False),
    ("another vbucket, after the last rollback", [rollback(1, 5, 1)], row(2, 6), True),
    ("another vbucket, before the first rollback", [rollback(1, 5, 1)], row(0, 6), True),
    ("another vbucket between", [rollback(1, 5, 1), rollback(3, 0, 1)], row(2, 6), True),
    ("the last place", [rollback(1, 5, 1), rollback(3, 2, 1)], row(3, 3), False),
    ("after the last place", [rollback(1, 5, 1), rollback(3, 2, 1)], row(3, 3, history=1), True),
]


@pytest.mark.parametrize(("rollbacks", "change", "kept"), [s[1:] for s in SURVIVAL], ids=[s[0] for s in SURVIVAL])
def test_rollbacks_void_rows_of_older_histories(rollbacks, change, kept):
    found = collect_markers(*rollbacks).mark_survivors(table([change, change]))
    assert (str(found.dtype), found.tolist()) == ("bool", [kept, kept])
    assert RowMarkers.collect(table(rollbacks)).mark_survivors(table([change])).tolist() == [kept]


# Collections that ended


def test_the_newest_event_about_each_collection_counts():
    found = CollectionEnds.collect(
        table(
            [
                ended(2, 4, 8),
                ended(1, 9, 8),
                ended(1, 3, 9, history=2),
                ended(1, 7, 9, history=1),
                ended(1, HIGHEST, 8, "begin_collection"),
                ended(1, 12, 8),
                row(1, 20, collection_id=8),
                row(1, 21, None, event="create_scope", collection_id=8),
            ]
        )
    )
    assert found.collections.tolist() == [1 << 32 | 8, 1 << 32 | 9, 2 << 32 | 8]
    assert found.histories.tolist() == [0, 2, 0]
    assert found.seqnos.tolist() == [2**64 - 1, 3, 4]


def test_no_collection_ended():
    found = CollectionEnds.collect(table([row(1, 5, collection_id=8)]))
    assert [len(column) for column in (found.collections, found.histories, found.seqnos)] == [0, 0, 0]
    assert found.mark_survivors(table([row(1, 5), row(1, 6)])).tolist() == [True, True]


ENDED = [
    ("before", row(1, 5, collection_id=8), False),
    ("the event itself", row(1, 6, collection_id=8, history=1), False),
    ("after", row(1, 7, collection_id=8, history=1), True),
    ("after, unsigned", row(1, HIGHEST, collection_id=8, history=1), True),
    ("of an older history, a higher seqno", row(1, 9, collection_id=8), False),
    ("of a later history, a lower seqno", row(1, 2, collection_id=8, history=2), True),
    ("another collection below", row(1, 5, collection_id=7), True),
    ("another collection above", row(1, 5, collection_id=9), True),
    ("another vbucket", row(0, 5, collection_id=8), True),
    ("behind the last", row(2, 5, collection_id=99), True),
    ("no collection", row(1, 5, collection_id=None), True),
    ("of the default collection", row(2, 5, collection_id=None), False),
]


@pytest.mark.parametrize(("change", "kept"), [e[1:] for e in ENDED], ids=[e[0] for e in ENDED])
def test_collection_end_voids_older_rows(change, kept):
    ends = [ended(1, 6, 8, history=1), ended(2, 9, 0)]
    found = CollectionEnds.collect(table(ends)).mark_survivors(table([change, change]))
    assert (str(found.dtype), found.tolist()) == ("bool", [kept, kept])
    assert RowMarkers.collect(table(ends)).mark_survivors(table([change])).tolist() == [kept]
    is_inside = (change["vbucket"], change["collection_id"] or 0) in {(1, 8), (2, 0)}
    assert CollectionEnds.collect(table(ends)).mark_members(table([change])).tolist() == [is_inside]


def test_rolled_back_collection_end_voids_nothing():
    rows = table([row(1, 5, collection_id=8), ended(1, 6, 8), rollback(1, 5, 1), row(1, 6, b"b", history=1)])
    markers = RowMarkers.collect(rows)
    assert markers.mark_survivors(rows).tolist() == [True, False, True, True]
    assert seqnos(markers.select_survivors(rows)) == [5, 5, 6]


def test_rows_that_all_survive_are_not_copied():
    rows = table([row(1, 5), row(1, 6)])
    assert RowMarkers.collect(rows).select_survivors(rows) is rows
    assert select_newest(table([row(1, 5, b"a"), row(1, 6, b"b")])).num_rows == 2


def test_collections_encode_vbucket_and_id():
    rows = table([row(3, 1, collection_id=9), row(1023, 1, collection_id=None)])
    assert encode_collections(rows).tolist() == [3 << 32 | 9, 1023 << 32]


# Documents

SOME = [row(1, 1, b"a", collection_id=8), row(2, 1, b"b", collection_id=8), row(2, 1, b"b", collection_id=None)]
AMONG = [
    ("the same", row(1, 9, b"a", collection_id=8), True),
    ("the same, of another place", row(2, 9, b"b", collection_id=8), True),
    ("in the default collection", row(2, 9, b"b", collection_id=0), True),
    ("another key", row(1, 9, b"c", collection_id=8), False),
    ("the key of another vbucket", row(1, 9, b"b", collection_id=8), False),
    ("the key of another collection", row(2, 9, b"a", collection_id=8), False),
    ("a vbucket behind all", row(3, 9, b"b", collection_id=8), False),
    ("a vbucket in front of all", row(0, 9, b"a", collection_id=8), False),
    ("a collection between", row(2, 9, b"b", collection_id=4), False),
    ("no key", row(1, 9, None, collection_id=8), False),
]


@pytest.mark.parametrize(("one", "found"), [a[1:] for a in AMONG], ids=[a[0] for a in AMONG])
def test_common_identities_are_marked(one, found):
    assert mark_common_identities(table([one, one]), table(SOME)).tolist() == [found, found]
    assert mark_common_identities(table([one]), table(SOME[::-1])).tolist() == [found]


def test_different_identities_have_different_numbers():
    """Every second key of every vbucket exists, like the squares of one colour on a chessboard."""
    board = [(key, vbucket) for key in range(6) for vbucket in range(4)]
    changes = [row(vbucket, 1, b"%d" % key) for key, vbucket in board]
    there = [(key + vbucket) % 2 == 0 for key, vbucket in board]
    some = [change for change, is_there in zip(changes, there, strict=True) if is_there]
    assert mark_common_identities(table(changes), table(some)).tolist() == there


def test_no_identity_is_common_with_an_empty_table():
    assert mark_common_identities(table([row(1, 1)]), table([])).tolist() == [False]
    nothing = mark_common_identities(table([]), table(SOME))
    assert (str(nothing.dtype), len(nothing)) == ("bool", 0)
    assert mark_common_identities(table([row(1, 1), row(1, 2)]), table([])).dtype == np.bool_


def test_the_newest_change_of_each_document():
    rows = table(
        [
            row(1, 9, b"a"),
            row(1, 2, b"a", history=1),
            row(1, 3, b"a", collection_id=8),
            row(2, 1, b"a", event="deletion"),
            row(1, 5, b"b"),
            row(1, HIGHEST, b"b", event="expiration"),
            row(1, 7, None, event="create_scope"),
            rollback(1, 4, 1),
        ]
    )
    assert seqnos(select_newest(rows)) == [2, 3, 1, HIGHEST]


def test_a_document_without_a_collection_is_in_the_default_one():
    rows = table([row(1, 1, b"a", collection_id=None), row(1, 2, b"a", collection_id=0)]).select(MERGE_SCHEMA.names)
    found = fill_collection_ids(rows)
    assert found["collection_id"].to_pylist() == [0, 0]
    assert found.schema == MERGE_SCHEMA
    assert fill_collection_ids(found) is found
    assert as_documents(merge_changes(rows.cast(MERGE_SCHEMA))) == {(1, 0, b"a"): ((1 << 48) + 2, b"")}


CHANGES = [
    row(
        1, 1, b"a", b"1", scope="s", collection="c", collection_id=8, datatype=1, flags=2, expiry=3, xattrs={"x": b"y"}
    ),
    row(1, 2, b"b", event="deletion"),
    row(2, 3, "\u00e9".encode(), b"3", history=4),
]


def test_mutations_become_documents():
    changes = table(CHANGES).select(MERGE_SCHEMA.names)
    documents = to_documents(changes)
    assert documents.schema == CURRENT_COLUMNS
    assert documents["key"].to_pylist() == ["a", "\u00e9"]
    assert documents["key_bytes"].to_pylist() == [None, None]
    same = [name for name in MERGE_SCHEMA.names if name not in ("key", "event")]
    assert documents.select(same).equals(changes.filter(pc.field("event") == "mutation").select(same))
    assert read_keys(documents).to_pylist() == [b"a", "\u00e9".encode()]


def test_keys_that_are_not_utf8_stand_in_key_bytes():
    changes = table([row(1, 1, b"a"), row(1, 2, b"\xff"), row(1, 3, b"")]).select(MERGE_SCHEMA.names)
    documents = to_documents(changes)
    assert documents.schema == CURRENT_COLUMNS
    assert documents["key"].to_pylist() == ["a", None, ""]
    assert documents["key_bytes"].to_pylist() == [None, b"\xff", None]
    assert read_keys(documents).to_pylist() == [b"a", b"\xff", b""]


def test_no_rows():
    assert merge_changes(table([])).schema == CURRENT_COLUMNS
    assert merge_changes(table([])).num_rows == 0
    assert RowMarkers.collect(table([])).mark_survivors(table([row(1, 1)])).tolist() == [True]
