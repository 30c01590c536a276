"""Files that are not as they were written: a torn end is cut off, anything else stops the start and changes nothing."""

import json
import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from penstock.errors import StoreDamaged, StoreRefused
from penstock.store.bucket_store import BucketStore
from penstock.store.disk.checked_json import replace_json, unpack_json
from penstock.store.disk.log_file import make_log_name
from penstock.wire.codec.constants import VbucketState
from tests.store.failing import Place, contents, directory_in_memory, shown
from tests.store.memory_disk import Disk
from tests.store.written import Written, flipped, of_all_kinds, of_one_file, put


def refused(place: Place, files: dict[str, bytes], *places: str) -> None:
    """Check that a bucket with these files is not opened, that nothing happens to them, and nobody has them.

    places: what the sentence must name.
    """
    put(place.path, files)
    with pytest.raises(StoreDamaged) as raised:
        place()
    said = str(raised.value)
    assert said.startswith(f"{place.path}: ")
    assert "\n" not in said
    for name in places:
        assert name in said
    assert contents(place.path) == files
    assert place.directory.lock()
    place.directory.unlock()


def cut(place: Place, written: Written, content: bytes, start: int) -> None:
    """Check that a bucket with this content of its last log file is what it was at `start`, says so, and goes on."""
    put(place.path, {**written.files, written.last: content})
    bucket = place()
    if start == written.records[0].start:  # without that note nothing counts in it
        start = 0
    nbytes = len(content) - start
    said = f"{written.last}: {nbytes} bytes from offset {start} on were cut off"
    assert bucket.recovery_summary.endswith(said if nbytes else "after a stop that was not clean" if content else "")
    assert shown(bucket) == written.before(start)
    for vbucket in bucket.vbuckets:
        assert (
            vbucket.history.state is not VbucketState.ACTIVE
            or vbucket.history.failover_log[0].seqno == vbucket.changes.high_seqno
        )
        assert vbucket.history.persisted_seqno == vbucket.changes.high_seqno
    bucket.vbuckets[0].set(b"new", b"value")
    state = shown(bucket)
    bucket.close()
    bucket = place()
    assert shown(bucket) == state
    bucket.close()


@pytest.fixture
def place(memory: Path) -> Place:
    return Place(memory / "beer")


# The last log file


def places_in(written: Written) -> list[int]:
    """Return every offset in the last records and in the header of the last log file, and some in between."""
    first, last = written.records[0], written.records[-3]
    size = len(written.files[written.last])
    return [*range(first.start + 30), *range(first.start + 30, last.start, 17), *range(last.start - 1, size)]


@pytest.mark.long
def test_an_end_that_is_missing_is_cut_off(place: Place) -> None:
    """But not what the inventory says was on disk."""
    written = of_one_file()
    content = written.files[written.last]
    outcomes = set()
    for size in places_in(written):
        outcomes.add(size < written.as_of)
        if size < written.as_of:
            refused(place, {**written.files, written.last: content[:size]}, f"{written.last}, offset ")
        else:
            cut(place, written, content[:size], written.start_of(size))
    assert outcomes == {False, True}


def test_a_flipped_byte_is_cut_off_unless_it_had_been_on_disk(place: Place) -> None:
    written = of_one_file()
    outcomes = set()
    for at in places_in(written):
        content = flipped(written.files[written.last], at)
        proven = written.is_proven(at)
        if proven:
            refused(place, {**written.files, written.last: content}, f"{written.last}, offset {written.start_of(at)}: ")
        else:
            cut(place, written, content, written.start_of(at))
        outcomes.add(proven)
    assert outcomes == {False, True}


@pytest.mark.long
def test_a_segment_proves_how_far_the_log_had_been_on_disk(place: Place) -> None:
    written = of_all_kinds()
    content = written.files[written.last]
    for size in places_in(written):
        if size < written.as_of:
            refused(place, {**written.files, written.last: content[:size]}, f"{written.last}, offset ")
        else:
            cut(place, written, content[:size], written.start_of(size))


def test_a_record_counts_in_its_place_alone(place: Place) -> None:
    written = of_one_file()
    content = written.files[written.last]
    last = written.records[-1]
    cut(place, written, content + content[last.start : last.end], last.end)


def test_a_value_proves_nothing(place: Place) -> None:
    """Not even one that is the log file itself."""
    bucket = place()
    bucket.vbuckets[0].set(b"key", b"value")
    bucket.log.commits.run()
    before = shown(bucket)
    content = contents(place.path)[make_log_name(1)]
    bucket.vbuckets[0].set(b"log", content)
    bucket.log.commits.run()
    place.directory.let_go()
    path = place.path / make_log_name(1)
    path.write_bytes(path.read_bytes()[:-1])
    assert shown(place()) == before


# Segments, and log files in front of the last one


@pytest.mark.long
@pytest.mark.parametrize("kind", ["segment", "log"])
def test_any_byte_of_any_other_file_counts(place: Place, kind: str) -> None:
    written = of_all_kinds()
    name = min(name for name in written.files if name.startswith(kind))
    content = written.files[name]
    assert name != written.last
    for at in [*range(0, len(content), 5), *range(len(content) - 20, len(content))]:
        refused(place, {**written.files, name: flipped(content, at)}, f"{name}, offset")
        refused(place, {**written.files, name: content[:at]}, f"{name}, offset")
    for other in (content + b"\0", content[:-16] + bytes(8) + content[-8:], bytes(len(content)), b""):
        refused(place, {**written.files, name: other}, f"{name}, offset")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1, "segment-0000000001-0000000001: missing, and inventory.json lists it"),
        (2, "log-0000000002: missing, and no segment replaces it"),
        (3, "log-0000000003: missing, but log-0000000003 had "),
    ],
)
def test_a_missing_file(place: Place, number: int, said: str) -> None:
    files = dict(of_all_kinds().files)
    files.pop(next(name for name in files if name.startswith((f"log-{number:010}", f"segment-{number:010}"))))
    refused(place, files, said)


def test_log_files_that_are_missing_and_the_last_one(place: Place) -> None:
    files = dict(of_all_kinds().files)
    (segment,) = (name for name in files if name.startswith("segment"))
    said = "log-0000000002: missing, and no log file follows the segments"
    refused(place, {name: files[name] for name in ("bucket.json", "inventory.json", segment)}, said)
    last = "log-0000000005"
    old = {"bucket.json": without_inventory(files["bucket.json"]), last: b""}
    refused(place, old, "log-0000000001: missing, with all up to log-0000000004")


def without_inventory(content: bytes) -> bytes:
    """Return what a bucket.json said before there were inventories."""
    disk = Disk()
    replace_json(disk(Path()), "bucket.json", {**unpack_json(content), "format": 2})
    return disk.names["bucket.json"].data


# Anything anywhere


def opened(place: Place, files: dict[str, bytes]) -> BucketStore | str:
    """Return the bucket with these files, or why it was not opened; then nothing has happened to them."""
    put(place.path, files)
    try:
        return place()
    except (StoreDamaged, StoreRefused) as error:
        left = contents(place.path)
        said = str(error)
    assert left == files
    assert "\n" not in said
    return said


def test_any_bad_byte_of_the_bucket_record_is_found(place: Place) -> None:
    """Some can be another letter, or the same number written otherwise."""
    written = of_all_kinds()
    content = written.files["bucket.json"]
    for at in range(len(content)):
        for other in (flipped(content, at), content[:at], content[:at] + b"\xff" + content[at + 1 :]):
            found = opened(place, {**written.files, "bucket.json": other})
            if isinstance(found, BucketStore):
                assert json.loads(other) == json.loads(content)
                assert shown(found) == written.records[-1].state
                found.close()


@given(st.randoms(use_true_random=False))
def test_no_damage_makes_a_wrong_answer(random: Random) -> None:
    written = of_all_kinds()
    name = random.choice([name for name in written.files if name != "bucket.json"])
    before = written.files[name]
    content = bytearray(before)
    start, length = random.randrange(len(content)), random.choice([1, 8, 100, 4096])
    kind = random.choice(["zeros", "noise", "gone", "again", "cut"])
    if kind == "cut":
        del content[start:]
    elif kind == "gone":
        del content[start : start + length]
    elif kind == "again":
        content[start:start] = content[start : start + length]
    else:
        content[start : start + length] = bytes(length) if kind == "zeros" else random.randbytes(length)
    pairs = zip(before, content, strict=False)
    same = next((at for at, (old, new) in enumerate(pairs) if old != new), min(len(before), len(content)))
    note(f"{name}: {kind} at {start}, {length} bytes; the first difference is at {same}")
    with directory_in_memory() as path:
        found = opened(Place(path), {**written.files, name: bytes(content)})
        if isinstance(found, str):
            assert re.search(rf"{name}(, offset|:)", found)
        else:
            if bytes(content) == before or name in {
                "inventory.json",
                "bucket-copy.json",
            }:  # with other spaces; or nobody needs it
                assert shown(found) == written.records[-1].state
            else:
                assert name == written.last
                assert same >= written.as_of
                assert shown(found) == written.before(written.start_of(same))
            found.close()
