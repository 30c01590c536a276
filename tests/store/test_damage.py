"""Damaged files: a torn end is cut off; any other damage refuses the opening and changes nothing."""

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
from tests.store.failing import Place, capture_state, directory_in_memory, read_files
from tests.store.memory_disk import MemoryDisk
from tests.store.written import WrittenBucket, flip_bit, write_all_file_kinds, write_files, write_one_log_file


def check_refused(place: Place, files: dict[str, bytes], *places: str) -> None:
    """Check that a bucket with these files is refused, and that the files are unchanged and unlocked.

    Args:
        place: directory of the bucket.
        files: content of each file.
        places: texts that the error must contain, such as a file and an offset.
    """
    write_files(place.path, files)
    with pytest.raises(StoreDamaged) as raised:
        place()
    message = str(raised.value)
    assert message.startswith(f"{place.path}: ")
    assert "\n" not in message
    for name in places:
        assert name in message
    assert read_files(place.path) == files
    assert place.directory.lock()
    place.directory.unlock()


def check_cut_off(place: Place, written: WrittenBucket, content: bytes, start: int) -> None:
    """Check that a bucket opens without the end of its last log file, reports the cut, and takes changes.

    Args:
        place: directory of the bucket.
        written: the undamaged bucket.
        content: content of the last log file.
        start: offset of the first record that is lost.
    """
    write_files(place.path, {**written.files, written.last_log: content})
    bucket = place()
    if start == written.records[0].start:  # without its first note, no record of the file is valid
        start = 0
    nbytes = len(content) - start
    report = f"{written.last_log}: {nbytes} bytes from offset {start} on were cut off"
    assert bucket.recovery_summary.endswith(report if nbytes else "after a stop that was not clean" if content else "")
    assert capture_state(bucket) == written.find_state_before(start)
    for vbucket in bucket.vbuckets:
        assert (
            vbucket.history.state is not VbucketState.ACTIVE
            or vbucket.history.failover_log[0].seqno == vbucket.changes.high_seqno
        )
        assert vbucket.history.persisted_seqno == vbucket.changes.high_seqno
    bucket.vbuckets[0].set(b"new", b"value")
    state = capture_state(bucket)
    bucket.close()
    bucket = place()
    assert capture_state(bucket) == state
    bucket.close()


@pytest.fixture
def place(memory_path: Path) -> Place:
    return Place(memory_path / "beer")


# The last log file


def list_offsets(written: WrittenBucket) -> list[int]:
    """Return every offset in the header and in the last records of the last log file, and some in between."""
    first, last = written.records[0], written.records[-3]
    size = len(written.files[written.last_log])
    return [*range(first.start + 30), *range(first.start + 30, last.start, 17), *range(last.start - 1, size)]


@pytest.mark.long
def test_missing_end_is_cut_off_unless_it_had_been_on_disk(place: Place) -> None:
    """A file that is shorter than the inventory lists is refused."""
    written = write_one_log_file()
    content = written.files[written.last_log]
    outcomes = set()
    for size in list_offsets(written):
        outcomes.add(size < written.proven_end)
        if size < written.proven_end:
            check_refused(place, {**written.files, written.last_log: content[:size]}, f"{written.last_log}, offset ")
        else:
            check_cut_off(place, written, content[:size], written.find_start(size))
    assert outcomes == {False, True}


@pytest.mark.long
def test_a_flipped_byte_is_cut_off_unless_it_had_been_on_disk(place: Place) -> None:
    written = write_one_log_file()
    outcomes = set()
    for at in list_offsets(written):
        content = flip_bit(written.files[written.last_log], at)
        proven = written.is_proven(at)
        if proven:
            check_refused(
                place,
                {**written.files, written.last_log: content},
                f"{written.last_log}, offset {written.find_start(at)}: ",
            )
        else:
            check_cut_off(place, written, content, written.find_start(at))
        outcomes.add(proven)
    assert outcomes == {False, True}


@pytest.mark.long
def test_a_segment_proves_how_far_the_log_had_been_on_disk(place: Place) -> None:
    written = write_all_file_kinds()
    content = written.files[written.last_log]
    for size in list_offsets(written):
        if size < written.proven_end:
            check_refused(place, {**written.files, written.last_log: content[:size]}, f"{written.last_log}, offset ")
        else:
            check_cut_off(place, written, content[:size], written.find_start(size))


def test_a_record_is_valid_only_at_its_own_offset(place: Place) -> None:
    written = write_one_log_file()
    content = written.files[written.last_log]
    last = written.records[-1]
    check_cut_off(place, written, content + content[last.start : last.end], last.end)


def test_a_value_with_a_copy_of_the_log_proves_nothing(place: Place) -> None:
    """A value that holds a copy of the log file is not read as records."""
    bucket = place()
    bucket.vbuckets[0].set(b"key", b"value")
    bucket.log.commits.run()
    before = capture_state(bucket)
    content = read_files(place.path)[make_log_name(1)]
    bucket.vbuckets[0].set(b"log", content)
    bucket.log.commits.run()
    place.directory.kill()
    path = place.path / make_log_name(1)
    path.write_bytes(path.read_bytes()[:-1])
    assert capture_state(place()) == before


# Segments, and log files in front of the last one


@pytest.mark.long
@pytest.mark.parametrize("kind", ["segment", "log"])
def test_any_damage_of_segments_and_sealed_logs_is_refused(place: Place, kind: str) -> None:
    written = write_all_file_kinds()
    name = min(name for name in written.files if name.startswith(kind))
    content = written.files[name]
    assert name != written.last_log
    for at in [*range(0, len(content), 5), *range(len(content) - 20, len(content))]:
        check_refused(place, {**written.files, name: flip_bit(content, at)}, f"{name}, offset")
        check_refused(place, {**written.files, name: content[:at]}, f"{name}, offset")
    for other in (content + b"\0", content[:-16] + bytes(8) + content[-8:], bytes(len(content)), b""):
        check_refused(place, {**written.files, name: other}, f"{name}, offset")


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (1, "segment-0000000001-0000000001: missing, and inventory.json lists it"),
        (2, "log-0000000002: missing, and no segment replaces it"),
        (3, "log-0000000003: missing, but log-0000000003 had "),
    ],
)
def test_missing_file_is_refused(place: Place, number: int, message: str) -> None:
    files = dict(write_all_file_kinds().files)
    files.pop(next(name for name in files if name.startswith((f"log-{number:010}", f"segment-{number:010}"))))
    check_refused(place, files, message)


def test_missing_last_log_files_are_refused(place: Place) -> None:
    files = dict(write_all_file_kinds().files)
    (segment,) = (name for name in files if name.startswith("segment"))
    message = "log-0000000002: missing, and no log file follows the segments"
    check_refused(place, {name: files[name] for name in ("bucket.json", "inventory.json", segment)}, message)
    last = "log-0000000005"
    old = {"bucket.json": make_record_of_format_2(files["bucket.json"]), last: b""}
    check_refused(place, old, "log-0000000001: missing, with all up to log-0000000004")


def make_record_of_format_2(content: bytes) -> bytes:
    """Return the content of a bucket.json as releases without inventories wrote it."""
    disk = MemoryDisk()
    replace_json(disk(Path()), "bucket.json", {**unpack_json(content), "format": 2})
    return disk.names["bucket.json"].data


# Any damage


def try_open(place: Place, files: dict[str, bytes]) -> BucketStore | str:
    """Return the bucket with these files, or the message of the refusal, which leaves the files unchanged."""
    write_files(place.path, files)
    try:
        return place()
    except (StoreDamaged, StoreRefused) as error:
        left = read_files(place.path)
        message = str(error)
    assert left == files
    assert "\n" not in message
    return message


@pytest.mark.long
def test_any_bad_byte_of_the_bucket_record_is_found(place: Place) -> None:
    """Some changed bytes leave equal JSON: another spelling of a character or of a number."""
    written = write_all_file_kinds()
    content = written.files["bucket.json"]
    for at in range(len(content)):
        for other in (flip_bit(content, at), content[:at], content[:at] + b"\xff" + content[at + 1 :]):
            found = try_open(place, {**written.files, "bucket.json": other})
            if isinstance(found, BucketStore):
                assert json.loads(other) == json.loads(content)
                assert capture_state(found) == written.records[-1].state
                found.close()


@given(st.randoms(use_true_random=False))
def test_no_damage_leads_to_a_wrong_answer(random: Random) -> None:
    written = write_all_file_kinds()
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
        found = try_open(Place(path), {**written.files, name: bytes(content)})
        if isinstance(found, str):
            assert re.search(rf"{name}(, offset|:)", found)
        else:
            # The inventory may differ in white space only, and an opening does not need bucket-copy.json.
            if bytes(content) == before or name in {"inventory.json", "bucket-copy.json"}:
                assert capture_state(found) == written.records[-1].state
            else:
                assert name == written.last_log
                assert same >= written.proven_end
                assert capture_state(found) == written.find_state_before(written.find_start(same))
            found.close()
