"""Versions of documents: merged in parts, and compared with a model that goes through the whole changelog."""

from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.lake.changelog.merge_rules import fill_collection_ids
from penstock.spark.lake.current.table_shape import read_times
from penstock.spark.lake.current.version_rules import (
    CHANGE_COLUMNS,
    KNOWN_COLUMNS,
    VERSION_COLUMNS,
    merge_versions,
)
from tests.spark.lakes import table
from tests.spark.version_model import Version, model_versions, sort_versions
from tests.spark.versions import timed_histories


def list_changes(rows):
    """Return rows with CHANGE_COLUMNS."""
    found = fill_collection_ids(table(rows))
    return found.append_column("_changed_at", read_times(found["cas"])).select(CHANGE_COLUMNS.names)


def apply(known, changes):
    """Return the known versions after a merge."""
    merged = merge_versions(known, changes)
    assert not (merged.lost & merged.changed).any()
    kept = known.filter(pa.array(~merged.lost & ~merged.changed))
    places = [name for name in KNOWN_COLUMNS.names if name not in VERSION_COLUMNS.names]
    parts = [
        (known.filter(pa.array(merged.changed)), merged.updates),
        (changes.filter(pa.array(merged.fresh)), merged.added),
    ]
    joined = [pa.table([*some.select(places).columns, *new.columns], KNOWN_COLUMNS.names) for some, new in parts]
    return pa.concat_tables([kept, *joined]).cast(KNOWN_COLUMNS)


def read(known):
    """Return the versions of a table as the model has them."""
    found = []
    for line in known.to_pylist():
        assert line["_is_current"] == (line["_closed_seqno"] is None) == (line["_closed_history"] is None)
        place = (line["_closed_history"], line["_closed_seqno"])
        found.append(
            Version(
                line["vbucket"],
                line["collection_id"],
                line["key"],
                line["history"],
                line["seqno"],
                line["_valid_from"],
                line["_valid_to"],
                None if line["_is_current"] else place,
            )
        )
    return sort_versions(found)


def mark_unneeded(known, changes):
    """Return a mask of the known versions that a merge need not read."""
    times = [when for when in changes["_changed_at"].to_pylist() if when is not None]
    is_hidden = [
        not line["_is_current"]
        and all(
            line[name] is None or line[name] <= min(times, default=line[name]) for name in ("_valid_from", "_valid_to")
        )
        for line in known.to_pylist()
    ]
    return pa.array(is_hidden, pa.bool_())


@given(timed_histories(), st.randoms(use_true_random=False))
def test_versions_of_a_whole_changelog_equal_the_model(rows, random):
    wanted = model_versions(rows)
    random.shuffle(rows)
    assert read(apply(KNOWN_COLUMNS.empty_table(), list_changes(rows))) == wanted


@given(timed_histories(), st.data())
def test_versions_merged_in_parts_equal_the_model(rows, data):
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    known = KNOWN_COLUMNS.empty_table()
    for start, end in pairwise(ends):
        flushes = [each for each in rows[:start] if each["event"] == "flush"]
        has_all = any(each["event"] == "rollback" for each in rows[start:end])
        repeated = [*(flushes if has_all else []), *rows[start:end]]
        if data.draw(st.booleans()):
            repeated, has_all = rows[:end], True
        changes = list_changes(repeated)
        hidden = pa.array([False] * len(known), pa.bool_()) if has_all else mark_unneeded(known, changes)
        known = pa.concat_tables([known.filter(hidden), apply(known.filter(pc.invert(hidden)), changes)])
        assert read(known) == model_versions(rows[:end])
