"""Rules of replication without a network: mapping of collections, filters, checkpoints."""

import asyncio
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.documents.document import compute_vbucket
from penstock.client.documents.row_columns import TargetCollection
from penstock.client.feeds.stream_position import Position, SnapshotEnd
from penstock.client.filters.value_filter import FilterDocument, ValueFilter, check_regex
from penstock.client.topology.persisted_seqnos import PersistedSeqno, read_persisted_seqnos
from penstock.client.xdcr.checkpoint import Checkpoint, CheckpointTracker, find_lost_ends, forget_positions
from penstock.client.xdcr.collection_mapping import CollectionMapping
from penstock.client.xdcr.state_file import StateFile
from penstock.client.xdcr.xdcr_options import XdcrOptions
from penstock.errors import PositionOfOtherBucket, UsageError
from penstock.wire.messages.kv import FailoverEntry
from tests.client.test_saved_positions import positions

# Mapping


def test_rules_map_collections_before_scopes():
    mapping = CollectionMapping.parse(["a=x", " a.one = y.two ", "b.c=b.c"])
    names = [("a", "one"), ("a", "other"), ("b", "c"), ("b", "d"), ("_default", "_default")]
    found = [mapping.find_target(TargetCollection(*name)) for name in names]
    assert found == [("y", "two"), ("x", "other"), ("b", "c"), None, None]
    assert not mapping.keeps_names


def test_without_rules_collections_keep_their_names():
    mapping = CollectionMapping.parse([])
    assert mapping.keeps_names
    assert mapping.find_target(TargetCollection("a", "b")) == ("a", "b")


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        *(
            ([rule], "expected scope.collection=scope.collection")
            for rule in ("", "a", "a=b.c", "a.b.c=a.b.c", "a=b=c")
        ),
        *(([rule], "expected scope.collection=scope.collection") for rule in ("=", "a.=b.c", ".a=b.c", "a=")),
        (["a=b", "a=c"], "a has another rule already"),
        (["a.b=x.y", "c.d=x.y"], "x.y has another rule already"),
    ],
)
def test_invalid_rules_are_refused(rules, problem):
    with pytest.raises(UsageError, match=problem):
        CollectionMapping.parse(rules)


@pytest.mark.parametrize("given_options", [{"until": "later"}, {"missing_collection": "create"}])
def test_unknown_words_are_refused(given_options):
    with pytest.raises(UsageError, match="expected"):
        XdcrOptions(**given_options)


# Filters

DOCUMENT = {
    "type": "hotel",
    "stars": 4,
    "price": 99.5,
    "open": True,
    "pool": None,
    "it's": 'a \\ "quote"',
    "address": {"city": "Köln", "lines": ["x", {"zip": "50667"}]},
    "deep field": {"a.b": 1},
}


def match(expression, *values):
    return ValueFilter(expression).match_documents([FilterDocument(value) for value in values]).matches.tolist()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("type = 'hotel'", True),
        ('type == "hotel"', True),
        ("type != 'hotel'", False),
        ("type <> 'motel'", True),
        ("type > 'a' AND type < 'z'", True),
        ("stars >= 4 and stars <= 4 AND NOT stars > 4", True),
        ("stars = 4.0", True),
        ("stars = '4'", False),
        ("stars != '4'", False),
        ("price > -1e2", True),
        ("open = TRUE", True),
        ("open != false", True),
        ("open = 1", False),
        ("stars = true", False),
        ("EXISTS(pool)", True),
        ("EXISTS(bar)", False),
        ("pool IS NULL", True),
        ("pool IS NOT NULL", False),
        ("pool IS MISSING", False),
        ("bar IS MISSING", True),
        ("bar IS NOT MISSING", False),
        ("bar IS NULL", False),
        ("bar = 1", False),
        ("NOT bar = 1", True),
        ("address.city = 'Köln'", True),
        ("address.lines[0] = 'x'", True),
        ("address.lines[-1].zip = '50667'", True),
        ("address.lines[7] = 'x'", False),
        ("address.lines.x = 'x'", False),
        ("stars[0] = 1", False),
        ("`deep field`.`a.b` = 1", True),
        ("`it's` = 'a \\\\ \\\"quote\\\"'", True),
        ("REGEXP_CONTAINS(address.city, '^K.ln$')", True),
        ("REGEXP_CONTAINS(type, 'mo')", False),
        ("REGEXP_CONTAINS(stars, '4')", False),
        ("REGEXP_CONTAINS(`it's`, '\\\\s')", True),
        ("type = 'x' OR stars = 1 OR open = true", True),
        ("type = 'hotel' OR stars = 1 AND stars = 2", True),
        ("(type = 'hotel' OR stars = 1) AND stars = 2", False),
        ("NOT (type = 'hotel' AND NOT stars = 2)", False),
    ],
)
def test_expressions_select_documents(expression, expected):
    value = json.dumps(DOCUMENT).encode()
    assert match(expression, value, b"no JSON", None, b"[" * 10_000) == [
        expected,
        False,
        False,
        False,
    ]


HOTEL = FilterDocument(
    json.dumps(DOCUMENT).encode(),
    b"hotel_1",
    2_000_000_000,
    [("_sync", b'{"rev": [1, 2]}'), ("bad", b"{"), ("n", b"3")],
)
BINARY = HOTEL._replace(value=b"no JSON")


@pytest.mark.parametrize(
    ("expression", "of_json", "of_binary"),
    [
        ("META().id = 'hotel_1'", True, True),
        ("meta().id > 'hotel_2'", False, False),
        ("REGEXP_CONTAINS(META().id, '^hotel')", True, True),
        ("META().id = 'hotel_1' AND stars = 4", True, False),
        ("META().id = 'hotel_1' OR stars = 4", True, False),
        ("META().expiration > 1999999999", True, True),
        ("META().xattrs._sync.rev[1] = 2", True, True),
        ("EXISTS(META().xattrs)", True, True),
        ("EXISTS(META().xattrs.n)", True, True),
        ("META().xattrs.n IS MISSING", False, False),
        ("META().xattrs.bad IS MISSING", True, True),
        ("META().xattrs.other IS MISSING", True, True),
        ("META().xattrs.n != 3", False, False),
        ("META().id.x = 1", False, False),
        ("`META` IS MISSING AND meta IS MISSING", True, False),
    ],
)
def test_expressions_read_metadata(expression, of_json, of_binary):
    """An expression that reads no value matches documents that are not JSON, too."""
    assert ValueFilter(expression).match_documents([HOTEL, BINARY]).matches.tolist() == [of_json, of_binary]


def test_metadata_that_a_document_lacks_is_missing():
    documents = [FilterDocument(b"{}", b"\xff"), FilterDocument(b"{}")]
    assert ValueFilter("EXISTS(META().xattrs)").match_documents(documents).matches.tolist() == [False, False]
    assert ValueFilter("META().expiration = 0").match_documents(documents).matches.tolist() == [True, True]
    assert ValueFilter("REGEXP_CONTAINS(META().id, '')").match_documents(documents).matches.tolist() == [False, True]


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "character 1: found the end, expected the name of a field"),
        ("type", "character 5: found the end, expected an operator or IS"),
        ("type =", "expected a string, a number, TRUE or FALSE"),
        ("type = hotel", "character 8: found 'hotel', expected a string, a number, TRUE or FALSE"),
        ("type = 'a' stars = 1", "character 12: found 'stars', expected AND, OR or the end"),
        ("(type = 'a'", "found the end, expected '\\)'"),
        ("type ? 'a'", "character 6: '\\?' is unknown"),
        ("type = 'a", 'character 8: "\'" is unknown'),
        ("open > TRUE", "expected = or != for a boolean"),
        ("a[x] = 1", "expected a whole number"),
        ("a[1.5] = 1", "found '1.5', expected a whole number"),
        ("a IS 1", "expected NULL or MISSING"),
        ("META().cas = 1", "character 8: found 'cas', expected id or expiration or xattrs"),
        ("META() = 1", "found '=', expected '\\.'"),
        ("META(id) = 1", "found 'id', expected '\\)'"),
        ("REGEXP_CONTAINS(META().id, 'x(')", "expected the syntax of RE2"),
        ("REGEXP_CONTAINS(a, 'x(')", "expected the syntax of RE2"),
        ("NOT " * 100 + "a = 1", "at most 32 nested expressions"),
        ("(" * 100, "at most 32 nested expressions"),
        ("a = 1 OR " * 1000 + "a = 2", "limit 4096"),
    ],
)
def test_invalid_expressions_are_refused(expression, problem):
    with pytest.raises(UsageError, match=problem):
        ValueFilter(expression)


@given(st.text(max_size=40) | st.text("ab1.='\"()[]<>! NOTADRIMEd`", max_size=40))
def test_any_text_is_an_expression_or_a_usage_error(text):
    try:
        chosen = ValueFilter(text)
    except UsageError:
        return
    chosen.match_documents([FilterDocument(b'{"a": "b"}', b"k", 7, [("a", b"1")])])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.sampled_from("ab"), each),
)


@given(JSON_VALUES)
def test_negation_is_the_opposite_for_every_document(document):
    value = [json.dumps(document).encode()]
    for expression in ("a = 1", "a.b != 'x'", "a[0] > 0", "EXISTS(a.a)", "b IS NULL", "REGEXP_CONTAINS(a, 'x')"):
        assert match(expression, *value) != match(f"NOT ({expression})", *value)


def test_regular_expressions_without_linear_time_are_refused():
    assert check_regex("^(a+)+$") == "^(a+)+$"  # linear in RE2
    for pattern in ("(a)\\1", "(?=a)", "("):
        with pytest.raises(UsageError, match="expected the syntax of RE2"):
            check_regex(pattern)


# Checkpoints

OLD, NEW = 7, 9
END = SnapshotEnd(50, OLD)


@pytest.mark.parametrize(
    ("log", "is_lost"),
    [
        ([(OLD, 0)], False),
        ([(NEW, 50), (OLD, 0)], False),
        ([(NEW, 60), (OLD, 0)], False),
        ([(NEW, 49), (OLD, 0)], True),
        ([(NEW, 0)], True),
    ],
)
def test_end_is_lost_if_its_branch_ended_before_it(log, is_lost):
    entries = tuple(FailoverEntry(*entry) for entry in log)
    assert find_lost_ends(Checkpoint({}, {3: END}), {3: entries}) == [3] * is_lost
    assert find_lost_ends(Checkpoint({}, {3: SnapshotEnd(0, OLD)}), {3: entries}) == []


def test_end_of_a_vbucket_that_does_not_exist_is_lost():
    assert find_lost_ends(Checkpoint({}, {3: END}), {}) == [3]


@given(st.binary(min_size=1, max_size=10), st.integers(0, 6), st.integers(0, 6))
def test_positions_of_all_documents_in_a_lost_vbucket_are_forgotten(key, sources, targets):
    positions = {vbucket: Position(seqno=5) for vbucket in range(2**sources)}
    kept = forget_positions(positions, [compute_vbucket(key, 2**targets)], 2**sources, 2**targets)
    assert compute_vbucket(key, 2**sources) not in kept
    assert len(kept) == 2**sources - 2 ** max(0, sources - targets)


def seqnos(high, persisted, vbuuid=OLD):
    return {0: PersistedSeqno(vbuuid, high, persisted)}


def test_checkpoint_waits_until_the_disk_has_all_changes_in_memory():
    tracker = CheckpointTracker(Checkpoint(), {0: OLD}, is_persistent=True)
    first, second = {1: Position(seqno=3)}, {1: Position(seqno=8)}
    tracker.acknowledge(first)
    assert tracker.observe(first, seqnos(10, 4)) is None
    tracker.acknowledge(second)
    assert tracker.observe(second, seqnos(20, 9)) is None
    assert tracker.observe(second, seqnos(20, 10)) == Checkpoint(first, {0: SnapshotEnd(10, OLD)})
    assert tracker.committed.positions != tracker.acknowledged
    assert tracker.observe(second, seqnos(20, 20)) == Checkpoint(second, {0: SnapshotEnd(20, OLD)})
    assert tracker.is_complete
    assert tracker.observe(second, seqnos(30, 20)) is None


def test_checkpoint_of_a_target_without_a_disk_needs_acknowledgements_only():
    tracker = CheckpointTracker(Checkpoint(), {0: OLD}, is_persistent=False)
    tracker.acknowledge({1: Position(seqno=3)})
    assert tracker.observe(tracker.acknowledged, seqnos(10, 0)) == tracker.committed
    assert tracker.is_complete


def test_new_branches_are_noticed():
    tracker = CheckpointTracker(Checkpoint(), {0: OLD}, is_persistent=True)
    assert not tracker.has_new_branch(seqnos(1, 1))
    assert tracker.has_new_branch(seqnos(1, 1, NEW))
    assert not tracker.has_new_branch({})


U64 = st.integers(0, 2**64 - 1)
VBUCKETS = st.integers(0, 65535)


@given(st.dictionaries(VBUCKETS, positions()), st.dictionaries(VBUCKETS, st.builds(SnapshotEnd, U64, U64)))
def test_state_file_returns_the_checkpoint(tmp_path_factory, found, ends):
    file = StateFile(tmp_path_factory.mktemp("state") / "file", {"filter_key": string.printable})
    source = ClusterMap((("host", 1),), (0,) * 8, "beer", uuid="u")

    async def write_and_read(checkpoint):
        await file.write(checkpoint, source)
        return await file.read(source)

    assert asyncio.run(file.read(source)) == Checkpoint()
    for checkpoint in (Checkpoint({1: Position(seqno=1, snap_end=1)}, {}), Checkpoint(found, ends)):
        assert asyncio.run(write_and_read(checkpoint)) == checkpoint
    with pytest.raises(PositionOfOtherBucket, match="found the bucket uuid u, expected v"):
        asyncio.run(file.read(source._replace(uuid="v")))


def test_incomplete_statistics_name_no_vbucket():
    stats = {"vb_0:uuid": "7", "vb_0:high_seqno": "3", "vb_0:last_persisted_seqno": "2", "vb_1:uuid": "8"}
    assert read_persisted_seqnos(stats, 4) == {0: PersistedSeqno(7, 3, 2)}
