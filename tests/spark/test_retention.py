"""Retention drops only versions that no state needs that may still be read or come back."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.spark import Lake
from penstock.spark.lake.current.current_table import merge_current
from penstock.spark.lake.maintenance.lake_compaction import compact
from penstock.spark.lake.maintenance.lake_retention import Retention, parse_retention, retain_changelog
from penstock.spark.source.offsets import Offset, ProvenEnd, VbucketOffset, make_first_offset
from tests.examples import scaled
from tests.spark.lakes import (
    VBUCKETS,
    Row,
    append,
    as_documents,
    checkpoint,
    model,
    read_table_documents,
    rollback,
    row,
)

ALL = Retention(seconds=0)
"""Drops versions of any age."""


def commit(lake: Lake, batch: int, rows: list[Row], end: Offset) -> None:
    """Write a batch as a query does: its planned end, then its rows."""
    checkpoint(lake.checkpoint)
    (lake.checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(end.to_json())}")
    append(lake, batch, rows)


def make_offset(ends: dict[int, VbucketOffset]) -> Offset:
    vbuckets = list(make_first_offset(VBUCKETS).vbuckets)
    for vbucket, end in ends.items():
        vbuckets[vbucket] = end
    return Offset(tuple(vbuckets))


@st.composite
def batches(draw):
    """Batches of two vbuckets: their rows, in complete snapshots, and their ends. Rollbacks go to proven ends or 0."""
    ends = {1: VbucketOffset(), 2: VbucketOffset()}
    made = []
    for number in range(draw(st.integers(2, 7))):
        rows = []
        for vbucket, end in ends.items():
            proven = (*end.proven, ProvenEnd(end.seqno, end.seqno))[-4:] if end.seqno > end.start else end.proven
            if number and draw(st.integers(0, 3)) == 0:
                kept = draw(st.integers(0, len(proven)))
                proven = proven[:kept]
                seqno = proven[-1].end if proven else 0
                end = VbucketOffset(end.history + 1, 1, seqno, proven, requested=end.seqno)
                rows.append(rollback(vbucket, seqno, end.history))
            start, last = end.seqno, end.seqno + draw(st.integers(0, 4))
            for seqno in range(start + 1, last + 1):
                key = draw(st.sampled_from([b"a", b"b", b"c"]))
                event = draw(st.sampled_from(["mutation", "mutation", "deletion"]))
                bounds = {"snapshot_start": start, "snapshot_end": last}
                rows.append(row(vbucket, seqno, key, b"%d" % number, event, history=end.history, **bounds))
            ends[vbucket] = replace(end, seqno=last, proven=proven)
        made.append((rows, make_offset(ends)))
    return made


def check_states(lake: Lake, made, count: int) -> int:
    """Check the current state and all past states that can be read; return the number of readable ones."""
    rows = [each for some, _ in made[:count] for each in some]
    assert as_documents(lake.current()) == model(rows)
    readable = 0
    for number, (_, end) in enumerate(made[:count], 1):
        with suppress(UsageError):
            found = lake.as_of(end)
            assert as_documents(found) == model([each for some, _ in made[:number] for each in some])
            readable += 1
    return readable


@settings(max_examples=scaled(15))
@given(batches(), st.data())
def test_remaining_states_equal_the_model(made, data):
    """No readable state lacks a version, also if a rollback to a proven end follows a retention."""
    with TemporaryDirectory() as path:
        lake = Lake(path)
        for number, (rows, end) in enumerate(made):
            commit(lake, number, rows, end)
            opened = lake.changelog_table.open()
            assert opened is not None
            step = data.draw(st.sampled_from(["nothing", "merge", "compact", "retain"]))
            if step == "merge":
                merge_current(lake)
            elif step == "compact":
                compact(lake)
            elif step == "retain":
                known = (str(opened.metadata().id), data.draw(st.integers(0, number)))
                planned = retain_changelog(lake, ALL, [known], dry_run=True)
                assert planned.rows_after == retain_changelog(lake, ALL, [known]).rows_after
        retain_changelog(lake, ALL)
        assert check_states(lake, made, len(made)) > 0
        assert retain_changelog(lake, ALL, dry_run=True).rows_after == lake.changelog(["vbucket"]).num_rows
        merge_current(lake)
        shutil.rmtree(str(lake.current_table.path))
        merge_current(lake)
        assert as_documents(read_table_documents(lake)) == model([each for rows, _ in made for each in rows])


def fill(lake: Lake, count: int = 8) -> list[Offset]:
    """Write versions of one document, in one batch each, and return the ends of the batches."""
    offsets: list[Offset] = []
    proven: tuple[ProvenEnd, ...] = ()
    for number in range(1, count + 1):
        end = VbucketOffset(0, 1, number, proven[-4:])
        offsets.append(make_offset({1: end}))
        changed = row(1, number, b"k", b"%d" % number, snapshot_start=number - 1, snapshot_end=number)
        commit(lake, number - 1, [changed], offsets[-1])
        proven = (*proven, ProvenEnd(number, number))
    return offsets


def test_old_versions_are_dropped_and_their_states_refused(lake):
    offsets = fill(lake)
    merge_current(lake)
    report = retain_changelog(lake, ALL)
    # The oldest proven end is 4: versions 1 to 3 were superseded there. The row `retained` is at 8.
    assert (report.rows_before, report.rows_after) == (8, 6)
    assert sorted(lake.changelog(["seqno"])["seqno"].to_pylist()) == [4, 5, 6, 7, 8, 8]
    with pytest.raises(
        UsageError, match=r"retention has dropped the state of .* at seqno 3 of vbucket 1; the oldest st"
    ):
        lake.as_of(offsets[2])
    with pytest.raises(UsageError, match=r"expected a time from .* on, or a position"):
        lake.as_of(datetime.now(UTC) - timedelta(days=1))
    assert lake.as_of(offsets[7])["value"].to_pylist() == [b"8"]
    assert lake.as_of(datetime.now(UTC))["value"].to_pylist() == [b"8"]
    assert report.oldest is not None
    files = lake.changelog_table.list_files(lake.changelog_table.open())
    assert report.oldest.timestamp() * 1000 == pytest.approx(files[-1].modified, abs=1)


def test_young_and_unapplied_versions_stay(lake):
    fill(lake)
    assert retain_changelog(lake, Retention(seconds=3600)).rows_after == 8
    merge_current(lake)
    known = str(lake.changelog_table.open().metadata().id)
    assert retain_changelog(lake, ALL, [(known, 0)]).rows_after == 8
    size = sum(file.size for file in lake.changelog_table.list_files(lake.changelog_table.open()))
    assert retain_changelog(lake, Retention(bytes=size)).rows_after == 8
    assert retain_changelog(lake, Retention(bytes=0), dry_run=True).rows_after == 6
    assert retain_changelog(lake, Retention(bytes=0)).rows_after == 6


def test_limit_is_an_age_or_a_size():
    assert parse_retention("30 days") == Retention(seconds=30 * 86400)
    assert parse_retention("1hour") == Retention(seconds=3600)
    assert parse_retention("100 GB") == Retention(bytes=100 * 10**9)
    for text in ("", "30", "days", "-1 days", "3 parsecs", "1.5 GB"):
        with pytest.raises(UsageError, match="expected an age such as 30 days or 12 hours, or a size such as 100 GB"):
            parse_retention(text)


def test_lake_without_checkpoint_is_refused(lake):
    append(lake, 0, [row(1, 1, b"k", b"1")])
    with pytest.raises(UsageError, match=r"there is no .*_checkpoint; expected the lake of a pipeline that has run"):
        retain_changelog(lake, ALL)
