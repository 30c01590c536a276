"""The current table: merged rows compared with a model, and the table compared with merged rows."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark import Lake, vacuum
from penstock.spark.lake.changelog import changelog_delta as delta
from penstock.spark.lake.changelog.changelog_delta import find_delta, reduce_rows
from penstock.spark.lake.changelog.changelog_writer import commit_batch, write_files
from penstock.spark.lake.changelog.merge_rules import fill_collection_ids, merge_changes, select_newest
from penstock.spark.lake.current import current_table as current
from penstock.spark.lake.current import table_rewrite
from penstock.spark.lake.current.current_table import MergeProgress, PreparedMerge, merge_current
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.reading.lake_readers import count_documents, count_rows, read_current, read_documents
from penstock.spark.lake.tables.lake_table import CommitFailed
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS, CURRENT_SCHEMA, MERGE_SCHEMA
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.examples import scaled
from tests.spark import lakes
from tests.spark.lakes import append, as_documents, model, prepare_merge, rollback, row, table

KEYS = [b"", b"a", b"b", b"\xff", b"\xc3\xa9", b"long " * 20]

HAPPENINGS = [
    *["mutation"] * 8,
    *["deletion"] * 2,
    *("expiration", "rollback", "flush", "begin_collection", "end_collection", "create_scope"),
]


@st.composite
def histories(draw, most=40):
    """Rows of a changelog in their order: three vbuckets that change, delete, roll back, flush, drop collections."""
    heads = {vbucket: [0, 0] for vbucket in (0, 3, 63)}  # vbucket: [seqno, history]
    rows = []
    for number in range(draw(st.integers(0, most))):
        vbucket = draw(st.sampled_from(sorted(heads)))
        seqno, history = heads[vbucket]
        event = draw(st.sampled_from(HAPPENINGS))
        if event in ("rollback", "flush"):
            back = 0 if event == "flush" else draw(st.integers(0, seqno))
            heads[vbucket] = [back, history + 1]
            rows.append(rollback(vbucket, back, history + 1, event))
            continue
        heads[vbucket][0] = seqno = seqno + draw(st.integers(1, 3))
        ends = event in ("begin_collection", "end_collection")
        key = None if ends else draw(st.sampled_from(KEYS))
        collection = draw(st.sampled_from([8, 9] if ends else [0, 8, 9, None]))
        value = draw(st.sampled_from([b"", b"%d" % number]))
        rows.append(row(vbucket, seqno, key, value, event, history=history, collection_id=collection))
    return rows


@given(histories(), st.randoms(use_true_random=False))
def test_merged_rows_equal_the_model(rows, random):
    wanted = model(rows)
    assert as_documents(merge_changes(table(rows))) == wanted
    random.shuffle(rows)
    assert as_documents(merge_changes(table(rows))) == wanted


@given(histories(), st.integers(0, 2_000))
def test_rows_reduced_in_groups_equal_rows_reduced_at_once(rows, pool_bytes):
    wanted = fill_collection_ids(table(rows).select(MERGE_SCHEMA.names))
    batches = [wanted.slice(start, 3) for start in range(0, len(rows), 3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "POOL_BYTES", pool_bytes)
        assert reduce_rows(batches).sort_by("cas").equals(select_newest(wanted).sort_by("cas"))


FORMATS = st.sampled_from([*["delta"] * 6, "iceberg"])
"""Formats of tables with versions. A commit of Iceberg takes longer."""


@settings(max_examples=scaled(40))
@given(histories(), FORMATS, st.data())
def test_merging_in_batches_equals_merging_at_once(rows, table_format, data):
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    with TemporaryDirectory() as directory:
        tables = Lake(directory, table_format)
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(tables, batch, rows[start:end])
            assert as_documents(tables.current()) == model(rows[:end])
            assert count_documents(tables) == len(model(rows[:end]))
            if data.draw(st.booleans()):
                merge_current(tables)
                assert as_documents(lakes.read_table_documents(tables)) == model(rows[:end])
        merge_current(tables)
        if rows:
            assert lakes.read_table_documents(tables).sort_by("cas").equals(merge_changes(table(rows)).sort_by("cas"))
            assert tables.current().sort_by("cas").equals(merge_changes(table(rows)).sort_by("cas"))
            batches = pa.Table.from_batches(tables.current_batches(), CURRENT_COLUMNS)
            assert batches.sort_by("cas").equals(tables.current().sort_by("cas"))


@settings(max_examples=scaled(10))
@given(histories(), st.integers(0, 40))
def test_rows_of_plain_files_merge_to_the_model(rows, middle):
    with TemporaryDirectory() as directory:
        tables = Lake(directory, "parquet")
        for batch, part in enumerate([rows[:middle], rows[middle:]]):
            assert append(tables, batch, part)
            assert not append(tables, batch, part)
        found = Lake(directory).changelog()
        assert found.num_rows == len(rows)
        assert as_documents(merge_changes(found)) == model(rows)


@settings(max_examples=scaled(40))
@given(histories(), FORMATS, st.data())
def test_copy_with_deltas_and_lost_documents_equals_the_bucket(rows, table_format, data):
    """A copy applies changes of single documents; it cannot replace all documents of a vbucket at once."""
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    copy: dict[tuple[int, int, bytes], tuple[int, bytes]] = {}
    known: tuple[str, int] | None = None
    with TemporaryDirectory() as directory:
        tables = Lake(directory, table_format)
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(tables, batch, rows[start:end])
            if data.draw(st.booleans()) and end < len(rows):
                continue
            came = find_delta(tables, known if data.draw(st.booleans()) else None)
            assert came is not None
            for part in came.ranges:
                changes, lost = came.read_range(part).changes.to_pylist(), came.find_lost_documents(part).to_pylist()
                touched = [(line["vbucket"], line["collection_id"], line["key"]) for line in [*changes, *lost]]
                assert len(touched) == len(set(touched))
                for identity, line in zip(touched, changes + [{"event": "deletion"}] * len(lost), strict=True):
                    copy.pop(identity, None)
                    if line["event"] == "mutation":
                        copy[identity] = (line["cas"], line["value"])
            known = came.changelog_id, came.version
            assert copy == model(rows[:end])


@given(st.lists(st.binary(max_size=6) | st.text(max_size=4).map(str.encode), max_size=30, unique=True))
def test_a_key_is_text_where_it_is_utf8(keys):
    found = merge_changes(table(row(1, number, key) for number, key in enumerate(keys, 1)))
    assert found.num_rows == len(keys)
    for line in found.to_pylist():
        key = keys[line["seqno"] - 1]
        try:
            assert (line["key"], line["key_bytes"]) == (key.decode(), None)
        except UnicodeDecodeError:
            assert (line["key"], line["key_bytes"]) == (None, key)


def in_8(seqno, key=None, event="mutation", **more):
    return row(1, seqno, key, b"%d" % seqno, event, collection_id=8, **more)


STORIES = [
    ("nothing", [], {}),
    ("an empty key and an empty value", [row(1, 1, b"", b"")], {b"": b""}),
    ("the newest wins", [row(1, 1, b"a", b"1"), row(1, 2, b"a", b"2")], {b"a": b"2"}),
    ("deleted", [row(1, 1, b"a", b"1"), row(1, 2, b"a", event="deletion")], {}),
    ("expired", [row(1, 1, b"a", b"1"), row(1, 2, b"a", event="expiration")], {}),
    ("created again", [row(1, 1, b"a", event="deletion"), row(1, 2, b"a", b"2")], {b"a": b"2"}),
    (
        "a deletion taken back",
        [row(1, 1, b"a", b"1"), row(1, 2, b"a", event="deletion"), rollback(1, 1, 1)],
        {b"a": b"1"},
    ),
    ("an older version restored", [row(1, 1, b"a", b"1"), row(1, 5, b"a", b"5"), rollback(1, 3, 1)], {b"a": b"1"}),
    (
        "a lower seqno of a higher history is newer",
        [row(1, 1, b"a", b"1"), row(1, 9, b"b", b"9"), rollback(1, 1, 1), row(1, 2, b"a", b"2", history=1)],
        {b"a": b"2"},
    ),
    (
        "two rollbacks",
        [row(1, 1, b"a", b"1"), row(1, 2, b"a", b"2"), rollback(1, 2, 1), rollback(1, 1, 2)],
        {b"a": b"1"},
    ),
    ("a rollback of another vbucket", [row(1, 5, b"a", b"5"), rollback(2, 0, 1)], {b"a": b"5"}),
    ("a flush", [row(1, 5, b"a", b"5"), rollback(1, 0, 1, "flush")], {}),
    ("a flush without seqno", [row(1, 5, b"a", b"5"), rollback(1, None, 1, "flush")], {}),
    ("a system event", [row(1, 5, b"a", b"5", "create_scope")], {}),
    ("a collection dropped", [in_8(5, b"a"), row(1, 6, b"b", b"6"), in_8(7, event="end_collection")], {b"b": b"6"}),
    ("a collection emptied", [in_8(5, b"a"), in_8(6, event="begin_collection"), in_8(7, b"b")], {b"b": b"7"}),
    ("a drop taken back", [in_8(5, b"a"), in_8(6, event="end_collection"), rollback(1, 5, 1)], {b"a": b"5"}),
    (
        "a drop, and a rollback below the document",
        [in_8(5, b"a"), in_8(6, event="end_collection"), rollback(1, 4, 1)],
        {},
    ),
    ("seqnos are unsigned", [row(1, 7, b"a", b"7"), row(1, -2, b"a", b"-2")], {b"a": b"-2"}),
]


@pytest.mark.parametrize(("rows", "wanted"), [story[1:] for story in STORIES], ids=[story[0] for story in STORIES])
def test_merged_history_equals_expected_documents(tmp_path, rows, wanted):
    assert {identity[2]: value for identity, (_, value) in as_documents(merge_changes(table(rows))).items()} == wanted
    tables = Lake(tmp_path)
    for batch, change in enumerate(rows):
        append(tables, batch, [change])
        merge_current(tables)
    assert (
        not rows
        or dict(zip(*read_documents(tables).select(["key", "value"]).to_pydict().values(), strict=True)) == wanted
    )


@pytest.fixture
def tables(tmp_path):
    return Lake(tmp_path / "lake")


@pytest.mark.parametrize(
    ("pending", "rows", "age", "due"),
    [
        (0, 0, 10**9, False),
        (99_999, 0, 0, False),
        (100_000, 0, 0, True),
        (100_000, 2_000_000, 0, True),
        (100_000, 2_000_001, 0, False),
        (400_000, 8_000_000, 0, True),
        (1, 8_000_000, 599, False),
        (1, 8_000_000, 600, True),
    ],
)
def test_policy_decides_when_a_merge_is_due(pending, rows, age, due):
    assert MergePolicy(age_seconds=600).is_due(pending, rows, age) == due


def test_readers_see_pending_changes_before_the_merge(tables):
    policy = MergePolicy(rows=4, share=0.5, age_seconds=3600)
    append(tables, 0, [row(n, 1, b"%d" % n, b"0") for n in range(1, 4)])
    # The table does not exist yet, so the first merge ignores the policy.
    assert merge_current(tables, policy) == MergeProgress(0, changes=3, rewritten=False)
    append(tables, 1, [row(1, 2, b"1", b"1"), rollback(2, 0, 1), row(9, 1, b"9", b"1")])
    assert merge_current(tables, policy) == MergeProgress(0, pending=3)
    assert lakes.read_table_documents(tables).num_rows == count_documents(tables) == 3
    wanted = {(1, 0, b"1"): b"1", (3, 0, b"3"): b"0", (9, 0, b"9"): b"1"}
    assert {identity: value for identity, (_, value) in as_documents(tables.current()).items()} == wanted
    assert read_current(tables, 2)["key"].to_pylist() == ["1", "3"]
    assert tables.current(["key"], where=pc.field("value") == b"1").to_pydict() == {"key": ["1", "9"]}
    append(tables, 2, [row(9, 2, b"9", event="deletion")])
    assert merge_current(tables, policy) == MergeProgress(2, changes=4, rolled_back=1)
    assert lakes.read_table_documents(tables).num_rows == count_documents(tables) == 2
    append(tables, 3, [row(1, 3, b"1", b"3")])
    assert merge_current(tables, policy).pending == 1
    assert merge_current(tables, MergePolicy(age_seconds=0)) == MergeProgress(3, changes=1)


def test_many_small_files_do_not_wait_for_many_rows(tables):
    for batch in range(4):
        append(tables, batch, [row(1, batch + 1, b"a")])
        assert merge_current(tables, MergePolicy(files=3)).pending == [0, 1, 2, 0][batch]


def test_merge_reports_its_progress(tables):
    assert merge_current(tables) == MergeProgress(-1)
    append(tables, 0, [row(1, 1, b"a"), row(40, 1, b"b")])
    append(tables, 1, [row(1, 2, b"c")])
    assert merge_current(tables) == MergeProgress(1, changes=3)
    assert merge_current(tables) == MergeProgress(1)
    append(tables, 2, [])
    assert merge_current(tables) == MergeProgress(2)
    append(tables, 3, [rollback(1, 1, 1)])
    assert merge_current(tables) == MergeProgress(3, changes=1, rolled_back=1)
    assert count_rows(tables.current_table) == 2


def test_one_document_touches_only_its_range(tables):
    append(tables, 0, [row(n % 64, n, b"k%d" % n, b"0") for n in range(1, 641)])
    merge_current(tables)
    before = {file.path for file in tables.current_table.list_files(tables.current_table.open())}
    append(tables, 1, [row(9, 700, b"k9", b"1")])
    merge_current(tables)
    after = {file.path for file in tables.current_table.list_files(tables.current_table.open())}
    assert len(before) == len(after) == 16
    assert len(before & after) == 15


@pytest.mark.long
def test_files_stay_few_when_every_merge_adds_documents(tables):
    for batch in range(30):
        append(tables, batch, [row(n, batch + 1, b"%d of %d" % (n, batch)) for n in range(0, 64, 4)])
        merge_current(tables)
    assert count_rows(tables.current_table) == 30 * 16
    assert len(tables.current_table.list_files(tables.current_table.open())) == 16


def test_a_large_file_without_a_changed_document_stays(tables, monkeypatch):
    monkeypatch.setattr(table_rewrite, "SMALL_ROWS", 10)
    append(tables, 0, [row(1, n, b"old %d" % n) for n in range(1, 21)])
    merge_current(tables)
    for batch in range(1, 4):
        append(tables, batch, [row(1, 100 * batch + n, b"new %d of %d" % (n, batch)) for n in range(6)])
        merge_current(tables)
    assert sorted(file.rows for file in tables.current_table.list_files(tables.current_table.open())) == [6, 12, 20]
    assert count_rows(tables.current_table) == 38


def test_superseded_files_leave_the_disk(tables, monkeypatch):
    monkeypatch.setattr(current, "VACUUM_EVERY", 5)
    monkeypatch.setitem(tables.current_table.configuration, "delta.deletedFileRetentionDuration", "interval 0 seconds")
    for batch in range(12):
        append(tables, batch, [row(1, batch + 1, b"a", b"%d" % batch)])
        merge_current(tables)
    assert len(lakes.orphans(tables)) <= 5
    assert read_documents(tables)["value"].to_pylist() == [b"11"]


def test_uncommitted_merge_has_no_effect(tables):
    append(tables, 0, [row(1, 1, b"a", b"1")])
    prepare_merge(tables)
    append(tables, 1, [row(1, 2, b"a", b"2")])
    merge_current(tables)
    prepare_merge(tables)
    assert as_documents(lakes.read_table_documents(tables)) == model([row(1, 2, b"a", b"2")])


def test_one_of_two_concurrent_merges_fails(tables):
    append(tables, 0, [row(1, 1, b"a", b"1")])
    merge_current(tables)
    append(tables, 1, [row(1, 2, b"a", b"2")])
    first, second = prepare_merge(tables), prepare_merge(tables)
    assert isinstance(first, PreparedMerge)
    assert isinstance(second, PreparedMerge)
    first.commit()
    with pytest.raises(CommitFailed):
        second.commit()
    assert as_documents(lakes.read_table_documents(tables)) == model([row(1, 2, b"a", b"2")])
    assert merge_current(tables) == MergeProgress(1)


@pytest.mark.long
def test_readers_see_one_state_during_merges_and_vacuums(tables):
    """Every batch sets all documents to one value, so a reader that sees two values has seen half a batch."""
    batches = 24

    def keep():
        for batch in range(1, batches):
            append(tables, batch, [row(n, batch + 1, b"%d" % n, b"%d" % batch) for n in range(0, 64, 3)])
            if batch % 2:
                merge_current(Lake(tables.path))
            if batch % 6 == 0:
                vacuum(Lake(tables.path), 0)

    append(tables, 0, [row(n, 1, b"%d" % n, b"0") for n in range(0, 64, 3)])
    seen = []
    with ThreadPoolExecutor(1) as pool:
        keeping = pool.submit(keep)
        while not keeping.done():
            for read in (tables.current, lambda: read_current(tables, 5), lambda: read_documents(tables)):
                values = set(read()["value"].to_pylist())
                assert len(values) == 1
                seen.append(int(values.pop()))
        keeping.result()
    assert seen == sorted(seen)
    assert set(tables.current()["value"].to_pylist()) == {b"%d" % (batches - 1)}


@pytest.mark.long
def test_expired_log_makes_the_merge_read_everything(tables, monkeypatch):
    """Delta removes old commits when it writes a checkpoint; versions not merged by then are read from the files."""
    monkeypatch.setitem(tables.changelog_table.configuration, "delta.logRetentionDuration", "interval 0 seconds")
    append(tables, 0, [row(1, 1, b"a", b"1"), row(1, 2, b"b", b"2")])
    merge_current(tables)
    for batch in range(1, 60):
        append(tables, batch, [row(1, batch + 2, b"a", event="deletion")])
    assert tables.changelog_table.list_added_since(tables.changelog_table.open(), 0) is None
    progress = merge_current(tables)
    assert progress.rewritten
    assert as_documents(lakes.read_table_documents(tables)) == model([row(1, 2, b"b", b"2")])


def test_current_of_another_changelog_is_computed_again(tables, tmp_path):
    append(tables, 0, [row(1, 1, b"a", b"1"), row(60, 1, b"b", b"1")])
    merge_current(tables)
    tables.changelog_table.path.rename(tmp_path / "elsewhere")
    append(tables, 0, [row(1, 1, b"c", b"3")])
    assert merge_current(tables) == MergeProgress(0, changes=1, rewritten=True)
    assert as_documents(lakes.read_table_documents(tables)) == model([row(1, 1, b"c", b"3")])


def test_versions_without_rows_advance_the_merged_version(tables, monkeypatch):
    monkeypatch.setattr(current, "IDLE_VERSIONS", 3)
    append(tables, 0, [row(1, 1, b"a", b"1")])
    for batch in range(1, 8):
        append(tables, batch, [])
        merge_current(tables)
    name = str(tables.changelog_table.open().metadata().id)
    assert current.read_merged_version(tables, tables.current_table, tables.current_table.open()) == (name, 7)
    assert tables.current_table.open().version() == 0


@pytest.mark.parametrize("parallel_rows", [1, 16 << 20])
def test_full_pool_drops_superseded_rows(tables, monkeypatch, parallel_rows):
    monkeypatch.setattr(delta, "POOL_BYTES", 2_000)
    monkeypatch.setattr(table_rewrite, "PARALLEL_ROWS", parallel_rows)
    rows = [row(1, n, b"k%d" % (n % 7), b"%d" % n, "deletion" if n % 11 == 0 else "mutation") for n in range(1, 500)]
    for batch in range(5):
        append(tables, batch, rows[batch * 100 : batch * 100 + 100])
    merge_current(tables)
    assert as_documents(lakes.read_table_documents(tables)) == model(rows)


@pytest.mark.long
def test_large_merge_equals_the_model(tables):
    random = np.random.default_rng(7)
    count = 60_000
    vbuckets = random.integers(0, 64, count).astype(np.int32)
    keys = pc.cast(pc.cast(pa.array(random.integers(0, 9_000, count)), pa.string()), pa.binary())
    rows = pa.table(
        {
            "vbucket": vbuckets,
            "seqno": np.arange(1, count + 1),
            "history": pa.array(np.zeros(count, np.int32)),
            "cas": np.arange(1, count + 1),
            "event": pa.array(np.where(random.random(count) < 0.2, "deletion", "mutation")),
            "key": keys,
            "value": keys,
        }
    )
    missing = {
        field.name: pa.nulls(count, field.type) for field in CHANGE_SCHEMA if field.name not in rows.schema.names
    }
    rows = pa.table({**dict(zip(rows.schema.names, rows.columns, strict=True)), **missing}).select(CHANGE_SCHEMA.names)
    for batch in range(3):
        part = rows.slice(batch * 20_000, 20_000).cast(CHANGE_SCHEMA)
        files = write_files(part.to_batches(), tables.changelog_table.path, 64)
        commit_batch(tables, lakes.QUERY, batch, files, vbuckets=64)
        merge_current(tables)
    wanted = merge_changes(rows.cast(CHANGE_SCHEMA)).sort_by("seqno")
    assert lakes.read_table_documents(tables).sort_by("seqno").equals(wanted)


def test_the_schemas_agree():
    assert merge_changes(table([])).schema.equals(CURRENT_COLUMNS)
    assert CURRENT_SCHEMA.names == [*CURRENT_COLUMNS.names, "vbucket_range"]
