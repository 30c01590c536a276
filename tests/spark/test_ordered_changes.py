"""Ordered changes: a consumer that applies them has the documents of the bucket, and gets each change once."""

from itertools import pairwise
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark import Lake, compact, merge_current
from penstock.spark.lake.changelog.changelog_delta import find_delta
from penstock.spark.lake.changelog.ordered_changes import read_ordered_changes
from tests.examples import scaled
from tests.spark.lakes import append, model, rollback, row
from tests.spark.test_current import histories


def identity(line):
    return line["vbucket"], line["collection_id"], line["key"]


class Consumer:
    """A copy of the bucket; it has the last version of each document, deletions included."""

    def __init__(self):
        self.versions = {}
        self.received = []

    def apply(self, found, with_known):
        changes, lost = found.changes.to_pylist(), found.lost.to_pylist()
        if with_known and not found.is_snapshot:
            touched = {identity(line) for line in [*changes, *lost]}
            known = {identity(line): line for line in found.known.to_pylist()}
            assert {key: line["cas"] for key, line in known.items() if key in touched} == {
                key: line["cas"] for key, line in self.versions.items() if key in touched
            }
            assert all(line["value"] == self.versions[key]["value"] for key, line in known.items() if key in touched)
        if not found.is_snapshot:
            assert all(self.versions[identity(line)]["cas"] == line["cas"] for line in lost)
            self.received += [(line["vbucket"], line["history"], line["seqno"]) for line in changes]
        for line in lost:
            self.versions.pop(identity(line), None)
        for line in [*found.restored.to_pylist(), *changes]:
            self.versions[identity(line)] = line

    @property
    def documents(self):
        return {key: (line["cas"], line["value"]) for key, line in self.versions.items() if line["event"] == "mutation"}


@settings(max_examples=scaled(40))
@given(histories(), st.booleans(), st.data())
def test_consumer_has_the_documents_of_the_bucket(rows, with_known, data):
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    consumer, known = Consumer(), None
    with TemporaryDirectory() as directory:
        lake = Lake(directory)
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(lake, batch, rows[start:end])
            if data.draw(st.integers(0, 4)) == 0:
                merge_current(lake)
                compact(lake)  # files then join rows that the consumer has with rows that it lacks
            if data.draw(st.booleans()) and end < len(rows):
                continue
            delta = find_delta(lake, None if data.draw(st.integers(0, 9)) == 0 else known)
            assert delta is not None
            for part in delta.ranges:
                consumer.apply(read_ordered_changes(delta, part, with_known=with_known), with_known)
            known = delta.changelog_id, delta.version
            assert consumer.documents == model(rows[:end])
    assert len(consumer.received) == len(set(consumer.received))


def of(key, seqno, event="mutation", **more):
    return row(1, seqno, key, b"%d" % seqno, event, **more)


A1, A2, B3 = of(b"a", 1), of(b"a", 2), of(b"b", 3)
IN_8 = {"collection_id": 8}
END_8 = row(1, 5, None, event="end_collection", collection_id=8)
STORIES = [
    ("an overwritten version returns", [A1, A2, B3], [rollback(1, 1, 1)], {b"a": 2, b"b": 3}, {b"a": 1}, []),
    ("a deletion is undone", [A1, of(b"a", 2, "deletion")], [rollback(1, 1, 1)], {b"a": 2}, {b"a": 1}, []),
    ("a deletion returns", [of(b"a", 1, "deletion"), A2], [rollback(1, 1, 1)], {b"a": 2}, {b"a": 1}, []),
    ("a flush", [A1, A2, B3], [rollback(1, None, 1, "flush")], {b"a": 2, b"b": 3}, {}, []),
    ("others stay", [A1, row(2, 9, b"a"), B3], [rollback(1, 2, 1), row(2, 10, b"c")], {b"b": 3}, {}, [(b"c", 10)]),
    ("a new branch", [A1, B3], [rollback(1, 1, 1), of(b"b", 2, history=1)], {b"b": 3}, {}, [(b"b", 2)]),
    ("void changes are left out", [A1], [A2, B3, rollback(1, 2, 1)], {}, {}, [(b"a", 2)]),
    ("two rollbacks", [A1, A2, B3], [rollback(1, 2, 1), rollback(1, 1, 2)], {b"a": 2, b"b": 3}, {b"a": 1}, []),
    ("a collection ends", [A1, of(b"b", 3, **IN_8)], [END_8], {b"b": 3}, {}, []),
    ("a null id is 0", [of(b"a", 1, collection_id=None)], [{**END_8, "collection_id": 0}], {b"a": 1}, {}, []),
    ("the end is undone", [A1, of(b"b", 3, **IN_8), END_8], [rollback(1, 4, 1)], {}, {b"b": 3}, []),
    ("every version counts", [A1], [A2, of(b"a", 3), of(b"a", 4, "deletion")], {}, {}, [(b"a", n) for n in (2, 3, 4)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "rows", "lost", "restored", "changes"), [s[1:] for s in STORIES], ids=[s[0] for s in STORIES]
)
def test_versions_that_count_no_longer_are_corrected(lake, before, rows, lost, restored, changes):
    append(lake, 0, before)
    known = find_delta(lake, None)
    append(lake, 1, rows)
    assert known is not None
    delta = find_delta(lake, (known.changelog_id, known.version))
    assert delta is not None
    parts = [read_ordered_changes(delta, part) for part in delta.ranges]

    def list_versions(name):
        return [(line["key"], line["seqno"]) for part in parts for line in getattr(part, name).to_pylist()]

    assert (dict(list_versions("lost")), dict(list_versions("restored"))) == (lost, restored)
    assert list_versions("changes") == changes
