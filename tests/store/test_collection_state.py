"""Collection states in notes of the log: how they are written and read."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.store.definition.manifest import DEFAULT_MANIFEST
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.checked_json import replace_json, unpack_json
from penstock.store.history.collection_state import CollectionState
from tests.store.failing import Place, directory_in_memory
from tests.store.model import make_bucket

COLLECTIONS = 200
MANY = DEFAULT_MANIFEST
for number in range(COLLECTIONS):
    MANY = MANY.with_collection("_default", f"c{number}")
NONE_OF_THEM = MANY
for number in range(COLLECTIONS):
    NONE_OF_THEM = NONE_OF_THEM.without_collection("_default", f"c{number}")


def read_back(state: CollectionState) -> CollectionState:
    """Return the state that is read from a note of `state`."""
    return CollectionState.from_dict(json.loads(json.dumps(state.to_dict())))


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 20)))
def test_note_lists_the_ended_collections(emptied: dict[int, int]) -> None:
    state = CollectionState({0: 0})
    state.emptied = emptied
    again = read_back(state)
    assert again.emptied == emptied
    assert again.to_dict() == state.to_dict()


def test_collections_that_one_manifest_drops_are_one_entry_of_a_note() -> None:
    """Each log file starts with the state of all vbuckets: an entry for each collection would take 0.3 s to write."""
    bucket = make_bucket(segment_bytes=1 << 20)
    bucket.rollout.set_manifest(MANY)
    bucket.rollout.set_manifest(NONE_OF_THEM)
    for vbucket in bucket.vbuckets:
        assert vbucket.changes.collection_state is not None
        assert len(vbucket.changes.collection_state.emptied) == COLLECTIONS
        assert vbucket.changes.collection_state.to_dict()["emptied"] == [[8, COLLECTIONS + 1, COLLECTIONS]]


def test_note_omits_forgotten_collections() -> None:
    state = CollectionState({0: 0})
    state.emptied = {8: 3, 9: 4, 10: 5}
    assert state.to_dict()["emptied"] == [[8, 3, 3]]
    state.forget_ends([9])
    assert state.to_dict()["emptied"] == [[8, 3, 1], [10, 5, 1]]


def test_a_note_of_format_3_is_read() -> None:
    note = {"uid": 2, "seqno": 5, "known": [[0, 0]], "emptied": [[8, 3], [9, 4]]}
    state = CollectionState.from_dict(note)
    assert state.emptied == {8: 3, 9: 4}
    assert state.to_dict()["emptied"] == [[8, 3, 2]]


def test_a_directory_of_format_3_becomes_one_of_format_4() -> None:
    with directory_in_memory() as path:
        place = Place(path / "beer")
        bucket = place()
        bucket.vbuckets[0].set(b"\0k", b"v")
        bucket.close()
        replace_json(Directory(place.path), "bucket.json", {**read_bucket_record(place.path), "format": 3})
        bucket = place()
        assert bucket.vbuckets[0].get(b"\0k") is not None
        bucket.close()
        assert read_bucket_record(place.path)["format"] == 4


def read_bucket_record(path: Path) -> dict[str, object]:
    found: dict[str, object] = unpack_json(Directory(path).read("bucket.json"))
    return found
