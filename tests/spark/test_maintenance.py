"""Compaction and vacuum neither lose nor repeat rows, beside a pipeline and after kills."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import LakeRefused, UsageError
from penstock.spark import Lake, vacuum
from penstock.spark.lake.changelog.changelog_delta import find_delta
from penstock.spark.lake.current import current_table as current
from penstock.spark.lake.current import table_rewrite
from penstock.spark.lake.current.current_table import (
    MergeProgress,
    PreparedMerge,
    merge_current,
    prepare_merges,
)
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.maintenance import lake_compaction
from penstock.spark.lake.maintenance.lake_compaction import (
    COMPACTED_BYTES,
    SMALL_BYTES,
    compact,
    group_small_files,
    maintain_changelog,
)
from penstock.spark.lake.maintenance.maintenance_report import TableReport
from penstock.spark.lake.tables.data_files import DataFile
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.lake.tables.lake_table import CommitFailed
from tests.examples import scaled
from tests.patience import PATIENCE
from tests.spark import lakes
from tests.spark.lakes import append, as_documents, identities, model, prepare_merge, row, write
from tests.spark.test_current import FORMATS, histories
from tests.spark.typed_readers import read_rows

MIB = 1 << 20


def rows(batch, count=64):
    return [row(n % 64, batch + 1, b"k%d" % (n + batch % 3), b"%d" % batch) for n in range(count)]


def filled(lake, batches=6):
    for batch in range(batches):
        append(lake, batch, rows(batch))
        merge_current(lake)
    return [change for batch in range(batches) for change in rows(batch)]


def files(table):
    opened = table.open()
    return table.list_files(opened) if opened is not None else []


def date_commits_back(monkeypatch, hours):
    """Date later commits back by the given number of hours."""
    now = time.time_ns
    monkeypatch.setattr(
        "penstock.spark.lake.tables.delta_table.time.time_ns", lambda: now() - round(hours * 3600 * 10**9)
    )


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ([], []),
        ([1], []),
        ([1, 2, 3], [[1, 2, 3]]),
        ([SMALL_BYTES, 1, SMALL_BYTES + 5, 2], [[1, 2]]),
        ([SMALL_BYTES - 1] * 3, [[SMALL_BYTES - 1] * 3]),
        ([SMALL_BYTES - MIB] * 4 + [1, 2], [[SMALL_BYTES - MIB] * 3, [SMALL_BYTES - MIB, 1, 2]]),
        ([SMALL_BYTES - 1] * 3 + [1], [[SMALL_BYTES - 1] * 3]),
    ],
)
def test_small_neighbours_are_grouped_up_to_the_target_size(sizes, wanted):
    found = group_small_files(DataFile(f"{number}", size, 1, 0) for number, size in enumerate(sizes))
    assert [[file.size for file in group] for group in found] == wanted
    assert COMPACTED_BYTES <= 3 * SMALL_BYTES


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ([], []),
        ([5, 1, 1], [[1, 1]]),
        ([4, 2, 1], []),
        ([4, 1, 3, 1], [[4, 1, 3, 1]]),
        ([100, 9, 4, 4, 2], [[9, 4, 4, 2]]),
        ([SMALL_BYTES, 1, 1], [[1, 1]]),
    ],
)
def test_tiered_groups_have_files_of_similar_size(sizes, wanted):
    found = group_small_files((DataFile(f"{number}", size, 1, 0) for number, size in enumerate(sizes)), is_tiered=True)
    assert [[file.size for file in group] for group in found] == wanted


def test_tiered_compaction_copies_a_row_few_times():
    sizes, copied = [], 0
    for _ in range(1024):
        sizes.append(1)
        if len(sizes) % 16 == 0:
            groups = group_small_files(
                (DataFile(f"{number}", size, 1, 0) for number, size in enumerate(sizes)), is_tiered=True
            )
            for group in groups:
                copied += sum(file.size for file in group)
                first = int(group[0].path)
                sizes[first : first + len(group)] = [sum(file.size for file in group)]
    assert sum(sizes) == 1024
    assert len(sizes) < 32
    assert copied < 1024 * 10


@pytest.mark.long
def test_run_compacts_very_many_small_files_and_removes_old_files(lake, monkeypatch):
    monkeypatch.setattr(lake_compaction, "MAX_SMALL_FILES", 60)
    written = filled(lake, 3)
    assert not maintain_changelog(lake)
    append(lake, 3, rows(3))
    unwritten = write(lake, rows(9))
    with monkeypatch.context() as past:
        date_commits_back(past, hours=24.5)
        assert maintain_changelog(lake)  # except files that the current table has not merged
    assert len(files(lake.changelog_table)) == 2 * 16
    assert {path for path in lakes.orphans(lake) if "/changelog/" in path} == set(
        lake.changelog_table.list_paths(unwritten)
    )
    merge_current(lake)
    assert as_documents(lakes.read_table_documents(lake)) == model([*written, *rows(3)])
    assert not maintain_changelog(lake)
    for batch in range(4, 7):
        append(lake, batch, rows(batch))
        merge_current(lake)
    assert maintain_changelog(lake)
    assert all((lake.changelog_table.path / file.path).exists() for file in unwritten)
    assert lake.changelog().num_rows == 7 * 64


def test_run_joins_small_ranges_in_one_commit_and_leaves_files_of_late_dependents(lake, monkeypatch):
    monkeypatch.setattr(lake_compaction, "MAX_SMALL_FILES", 60)
    filled(lake)
    table = lake.changelog_table
    version, late = table.open().version(), 2
    assert maintain_changelog(lake, [(table.read_id(table.open()), late)])
    assert table.open().version() == version + 1
    assert len(files(table)) == 16 * (6 - late)
    delta = find_delta(lake, (table.read_id(table.open()), late))
    assert delta is not None
    assert (delta.is_full, delta.rows) == (False, 3 * 64)
    assert lake.changelog().num_rows == 6 * 64


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ({}, []),
        ({3: [1]}, [{3}]),
        ({0: [1], 1: [2, 3], 2: [4]}, [{0, 1, 2}]),
        ({0: [COMPACTED_BYTES - 1], 1: [1], 2: [1]}, [{0, 1}, {2}]),
        ({0: [1], 1: [COMPACTED_BYTES, COMPACTED_BYTES], 2: [1]}, [{0}, {1}, {2}]),
    ],
)
def test_ranges_are_joined_by_one_commit_up_to_the_target_size(sizes, wanted):
    groups = [[DataFile("", size, 1, part)] for part, some in sizes.items() for size in some]
    assert lake_compaction._split_ranges(reversed(groups)) == wanted


@pytest.mark.long
def test_run_removes_replaced_files_without_compaction(lake, monkeypatch):
    """With rare batches, the log forgets replaced files before there are enough files for the next compaction."""
    filled(lake)
    with monkeypatch.context() as past:
        date_commits_back(past, hours=24.5)
        compact(lake)
    unwritten = write(lake, rows(9))
    versions = lake.changelog_table.open().version()
    for _ in range(2):
        assert not maintain_changelog(lake)
        there = {path for path in lakes.orphans(lake) if "/changelog/" in path}
        assert there == set(lake.changelog_table.list_paths(unwritten))
    assert lake.changelog_table.open().version() == versions
    assert lake.changelog().num_rows == 6 * 64


def test_only_files_of_one_range_are_joined():
    found = group_small_files(DataFile(f"{number}", 1, 1, number % 3) for number in range(8))
    assert [[file.path for file in group] for group in found] == [["0", "3", "6"], ["1", "4", "7"], ["2", "5"]]


@pytest.mark.long
def test_compaction_adds_nothing_to_deltas(lake):
    written = filled(lake)
    known = current.read_merged_version(lake, lake.current_table, lake.current_table.open())
    report = compact(lake)
    assert (report.changelog.files_before, report.changelog.files_after) == (96, 16)
    assert len(files(lake.changelog_table)) == 16
    assert report.current == TableReport(16, 16, report.current.bytes_after, report.current.bytes_after)
    assert identities(lake) == sorted((r["vbucket"], r["history"], r["seqno"]) for r in written)
    delta = find_delta(lake, known)
    assert delta is not None
    assert (delta.is_full, delta.files) == (False, ())
    assert merge_current(lake) == MergeProgress(delta.version)
    assert compact(lake).changelog == TableReport(16, 16, report.changelog.bytes_after, report.changelog.bytes_after)
    append(lake, 6, rows(6))
    assert merge_current(lake).changes == 64
    assert as_documents(lakes.read_table_documents(lake)) == model([*written, *rows(6)])


@pytest.mark.long
def test_compaction_keeps_the_newest_batch_known(lake):
    filled(lake)
    compact(lake)
    assert not append(lake, 5, rows(5))
    assert append(lake, 6, rows(6))


@pytest.mark.long
def test_compaction_leaves_files_that_a_dependent_has_not_applied(lake):
    filled(lake)
    changelog = str(lake.changelog_table.open().metadata().id)
    assert compact(lake, [(changelog, 2)]).changelog.files_after == 16 + 3 * 16
    delta = find_delta(lake, (changelog, 2))
    assert delta is not None
    assert (delta.is_full, delta.rows) == (False, 3 * 64)
    assert compact(lake, [None, ("another", 0)]).changelog.files_after == 16
    append(lake, 6, rows(6))
    append(lake, 7, rows(7))
    assert compact(lake).changelog.files_after == 16 + 2 * 16
    assert merge_current(lake) == MergeProgress(lake.changelog_table.open().version(), changes=128)


@pytest.mark.long
def test_dependent_without_a_valid_version_does_not_block_compaction(lake, monkeypatch):
    monkeypatch.setitem(lake.changelog_table.configuration, "delta.logRetentionDuration", "interval 0 seconds")
    written = [change for batch in range(60) for change in rows(batch, 4)]
    for batch in range(60):
        append(lake, batch, rows(batch, 4))
    assert compact(lake).changelog.files_after == 1
    merge_current(lake)
    changelog = str(lake.changelog_table.open().metadata().id)
    append(lake, 60, rows(60, 4))
    assert lake.changelog_table.list_added_since(lake.changelog_table.open(), 0) is None
    assert compact(lake, [(changelog, 0)]).changelog.files_after == 2
    assert merge_current(lake).changes == 4
    assert as_documents(lakes.read_table_documents(lake)) == model([*written, *rows(60, 4)])


@pytest.mark.long
def test_merge_prepared_before_compaction_of_current_is_not_applied_twice(lake, monkeypatch):
    monkeypatch.setattr(table_rewrite, "SMALL_ROWS", 0)
    written = filled(lake, 3)
    append(lake, 3, rows(3))
    written += rows(3)
    merge = prepare_merge(lake)
    assert isinstance(merge, PreparedMerge)
    assert compact(lake).current.files_before > 16
    assert len(files(lake.current_table)) == 16
    with pytest.raises(CommitFailed):
        merge.commit()
    merge_current(lake)
    assert as_documents(lakes.read_table_documents(lake)) == model(written)


def test_rows_are_added_beside_a_compaction(lake):
    """A merge that only adds files is not prepared again: the compaction has committed the same transaction."""
    table = TypedTable(lake, lakes.CHANGES)
    written = []
    for batch in range(4):
        append(lake, batch, rows(batch))
        written += rows(batch)
        merge = prepare_merges([table.describe()])[0]
        assert isinstance(merge, PreparedMerge)
        compact(lake)
        before = len(files(table.table))
        merge.commit()
        assert len(files(table.table)) > before
    own = [row for row in written if not row.get("collection_id")]
    places = [(row["vbucket"], row["history"], row["seqno"]) for row in own]
    changes = [(row["_vbucket"], row["_history"], row["_seqno"]) for row in read_rows(table)]
    assert sorted(changes) == sorted(places)


@pytest.mark.long
def test_merge_restarts_after_a_concurrent_compaction(lake, monkeypatch):
    monkeypatch.setattr(table_rewrite, "SMALL_ROWS", 0)
    written = filled(lake, 3)
    append(lake, 3, rows(3))
    merges = []

    def late(*arguments):
        merges.append(prepare_merges(*arguments))
        if len(merges) == 1:
            compact(lake)
        return merges[-1]

    monkeypatch.setattr(current, "prepare_merges", late)
    assert merge_current(lake).changes == 64
    assert len(merges) == 2
    assert as_documents(lakes.read_table_documents(lake)) == model([*written, *rows(3)])
    vacuum(lake, 0)
    assert lakes.orphans(lake) == []


@pytest.mark.long
@settings(max_examples=scaled(10))
@given(histories(), FORMATS, st.data())
def test_maintenance_at_any_time_changes_no_rows(rows, table_format, data):
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    with TemporaryDirectory() as directory:
        lake = Lake(directory, table_format)
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(lake, batch, rows[start:end])
            for step in data.draw(st.lists(st.sampled_from([merge_current, compact, lambda lake: vacuum(lake, 0)]))):
                step(lake)
            assert as_documents(lake.current()) == model(rows[:end])
            assert lake.changelog().num_rows == end


def joiner(lake, seconds=None):
    code = (
        "import signal, sys\nfrom penstock.spark import Lake\n"
        "from penstock.spark.lake.maintenance.lake_compaction import compact\n"
        f"signal.setitimer(signal.ITIMER_REAL, {seconds or 0})\n"
        f"while True:\n    compact(Lake({str(lake.path)!r}))\n    print('joined', flush=True)\n"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=lakes.ROOT)


@pytest.mark.process
def test_compaction_runs_beside_a_killed_driver(lake):
    batches = 14
    append(lake, 0, lakes.batch_rows(0))
    merge_current(lake)
    lakes.checkpoint(lake.checkpoint, batches=1)
    with joiner(lake) as joining:
        assert joining.stdout is not None
        joining.stdout.readline()
        for seconds in (*lakes.delays(seed=3, count=2), None):
            lakes.run_driver(lake, batches, "never" if seconds is None else f"timer:{seconds}")
        joining.stdout.readline()
        joining.kill()
    lakes.check_driven(lake, batches)
    compact(lake)
    assert len(files(lake.changelog_table)) == 16
    lakes.check_driven(lake, batches)


@pytest.mark.process
def test_killed_compaction_changes_no_rows(lake):
    written = filled(lake, 8)
    for batch, seconds in enumerate((0.001, 0.02, 0.05, 0.1), 8):
        with joiner(lake, seconds) as joining:
            assert joining.wait(PATIENCE) == -signal.SIGALRM
        assert as_documents(lakes.read_table_documents(lake)) == model(written)
        assert identities(lake) == sorted((r["vbucket"], r["history"], r["seqno"]) for r in written)
        append(lake, batch, rows(batch))
        merge_current(lake)
        written += rows(batch)


@pytest.mark.long
def test_failed_compaction_leaves_no_file(lake, monkeypatch):
    written = filled(lake)
    rewritten = lake_compaction._rewrite_files
    monkeypatch.setattr(
        lake_compaction, "group_small_files", lambda files: [[file] for file in files if file.vbucket_range == 3]
    )

    def failing(table, group):
        if len(lakes.orphans(lake)) > 1:
            raise OSError("the disk is full")
        return rewritten(table, group)

    vacuum(lake, 0)
    monkeypatch.setattr(lake_compaction, "_rewrite_files", failing)
    with pytest.raises(OSError, match="the disk is full"):
        compact(lake)
    assert not lakes.orphans(lake)
    assert as_documents(lakes.read_table_documents(lake)) == model(written)


@pytest.mark.long
def test_vacuum_removes_files_that_no_version_needs(lake, monkeypatch):
    written = filled(lake, 2)
    compact(lake)
    assert len(lakes.orphans(lake)) >= 32
    kept = vacuum(lake)
    assert (kept.changelog.files_before, kept.changelog.files_after) == (48, 48)
    unwritten = write(lake, rows(9))
    old = write(lake, rows(9))
    for path in lake.changelog_table.list_paths(old):
        os.utime(path, (0, 0))
    assert vacuum(lake).changelog.files_after == 48 + len(unwritten)
    done = vacuum(lake, 0)
    assert done.changelog.files_after == done.current.files_after == 16
    assert done.changelog.bytes_after == sum(file.size for file in files(lake.changelog_table))
    assert lakes.orphans(lake) == []
    assert as_documents(lakes.read_table_documents(lake)) == model(written)
    assert identities(lake) == sorted((r["vbucket"], r["history"], r["seqno"]) for r in written)


@pytest.mark.long
def test_vacuum_keeps_files_for_the_given_hours(lake, monkeypatch):
    filled(lake)
    with monkeypatch.context() as past:
        date_commits_back(past, hours=3)
        compact(lake)
    assert vacuum(lake, 4).changelog.files_after == 112
    assert vacuum(lake, 2).changelog.files_after == 16


def test_vacuum_at_once_is_refused_while_a_pipeline_runs(lake):
    filled(lake, 1)
    with hold_lock(lake.path, 0):
        assert vacuum(lake).changelog.files_after == 16
        with pytest.raises(LakeRefused, match="another run"):
            vacuum(lake, 0)
    with pytest.raises(UsageError, match="-1 hours"):
        vacuum(lake, -1)


def test_a_lake_without_tables(lake):
    with pytest.raises(UsageError, match="there is no table"):
        compact(lake)
    assert vacuum(lake).changelog == vacuum(lake, 0).current == TableReport()
