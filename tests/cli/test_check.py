"""`penstock check` of whole, damaged and repaired buckets, and the rollbacks of their consumers."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Node
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.checked_json import replace_json
from penstock.store.disk.log_file import make_log_name
from penstock.store.recovery import bucket_directory
from tests.store.failing import Place, read_files
from tests.store.written import flip_bit, write_all_file_kinds, write_files, write_one_log_file


@pytest.fixture
def beer(tmp_path):
    """The directory of a bucket with a segment and two log files."""
    path = tmp_path / "data" / "beer"
    path.mkdir(parents=True)
    write_files(path, write_all_file_kinds().files)
    return path


def damage(path: Path, at: int) -> str:
    """Flip a byte of the newest log file, or of the segment if `at` is negative, and return its name."""
    name = max(read_files(path), key=lambda name: (name.startswith("log" if at >= 0 else "segment"), name))
    (path / name).write_bytes(flip_bit((path / name).read_bytes(), abs(at)))
    return name


def test_whole_bucket_is_reported(run, beer):
    before = read_files(beer)
    code, out, err = run("check", beer)
    assert (code, err) == (0, "")
    assert out.startswith(f"{beer}: bucket beer is whole: 48 changes and 34 documents in 3 of 4 vbuckets")
    assert out.endswith("; 1 segment and 2 log files\n")
    assert read_files(beer) == before
    found = run("check", beer, "--json").json
    assert (found["directory"], found["bucket"], found["whole"], found["clean"]) == (str(beer), "beer", True, False)
    assert (found["segments"], found["log_files"], found["damage"]) == (1, 2, [])
    assert found["changes"] == sum(vbucket["changes"] for vbucket in found["vbuckets"])
    assert [vbucket["state"] for vbucket in found["vbuckets"]] == ["active", "active", "replica", "active"]
    assert found["vbuckets"][3] == {
        "vbucket": 3, "state": "active", "documents": 0, "changes": 0, "first_seqno": 0, "high_seqno": 0,
        "rollback": None,
    }  # fmt: skip


def test_torn_end_is_reported_and_is_no_damage(run, tmp_path):
    written = write_one_log_file()
    content = written.files[written.last_log][:-1]
    write_files(tmp_path, {**written.files, written.last_log: content})
    last = written.records[-1]
    code, out, _ = run("check", tmp_path)
    assert code == 0
    rest = f"{last.end - last.start - 1} bytes from offset {last.start} are an incomplete last write"
    assert out.splitlines()[1] == f"  {written.last_log}: {rest}"
    torn = {"file": written.last_log, "offset": last.start, "bytes": last.end - last.start - 1}
    assert run("check", tmp_path, "--json").json["torn"] == torn


def test_damage_is_reported_before_it_is_repaired(run, beer):
    segment = damage(beer, -70)
    before = read_files(beer)
    expected = [
        f"{beer}: bucket beer is damaged; 1 segment and 2 log files",
        rf"  {segment}, offset 64: 548 bytes do not match their checksum",
    ]
    code, out, err = run("check", beer)
    assert (code, err) == (1, "")
    assert out.splitlines()[:2] == expected
    assert out.splitlines()[2].startswith("    lost with that: 8 changes: vbucket 0 ")
    assert "  consumers start over in vbuckets 0-2" in out.splitlines()
    assert read_files(beer) == before
    found = run("check", beer, "--json")
    assert found.code == 1
    (loss,) = found.json["damage"]
    assert (loss["file"], loss["offset"], loss["bytes"]) == (segment, 64, 548)
    assert sum(lost["changes"] for lost in loss["lost"]) == 8
    assert [vbucket["rollback"] for vbucket in found.json["vbuckets"]] == [0, 0, 0, 0]

    code, repaired, err = run("check", beer, "--repair")
    assert (code, err) == (0, "")
    assert repaired == f"{out}  repaired; the replaced files are in {beer}/damaged\n"
    assert (beer / "damaged" / segment).read_bytes() == before[segment]
    code, out, _ = run("check", beer)
    assert code == 0
    assert out.startswith(f"{beer}: bucket beer is whole: 40 changes and 27 documents")
    bucket = Place(beer)()
    bucket.close()


def test_a_repair_as_json_is_two_lines(run, beer):
    name = damage(beer, 40)
    code, out, _ = run("check", beer, "--repair", "--json")
    assert code == 0
    report, done = map(json.loads, out.splitlines())
    assert report["damage"][0]["file"] == name
    assert report["damage"][0]["unreadable_bytes"] > 0
    assert done == {"directory": str(beer), "repaired": True, "replaced": f"{beer}/damaged"}


def test_loss_that_cannot_be_counted_is_reported_as_such(run, beer):
    (segment,) = beer.glob("segment*")
    segment.unlink()
    code, out, _ = run("check", beer)
    assert code == 1
    lines = out.splitlines()
    assert lines[1] == f"  {segment.name}: missing, and inventory.json lists it"
    assert lines[2].startswith("    lost with that: all changes in vbucket 0 from seqno 1 to ")
    assert lines[2].endswith("vbucket 3 from seqno 1 on")
    (loss,) = run("check", beer, "--json").json["damage"]
    assert (loss["offset"], loss["bytes"], loss["lost"][-1]) == (
        None, 0, {"vbucket": 3, "changes": None, "first_seqno": 1, "last_seqno": None}
    )  # fmt: skip


def test_all_buckets_of_a_node_are_checked(run, beer):
    wine = beer.parent / "wine"
    wine.mkdir()
    write_files(wine, write_one_log_file().files)
    code, out, _ = run("check", beer.parent)
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == [str(beer), str(wine)]
    damage(beer, -70)
    code, out, _ = run("check", beer.parent, "--json")
    assert code == 1
    assert [json.loads(line)["whole"] for line in out.splitlines()] == [False, True]


def test_a_bucket_in_use_is_left_alone(run, tmp_path):
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path):
        code, out, err = run("check", tmp_path, "--repair")
    assert (code, out) == (2, "")
    assert err.startswith(f"penstock: {tmp_path}/beer: in use by process ")
    assert run("check", tmp_path).code == 0


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda path: None, "data is no directory, expected the directory of a bucket or a node's data directory"),
        (
            lambda path: path.mkdir(),
            "data has no bucket, expected the directory of a bucket or a node's data directory",
        ),
        (
            lambda path: write_files(path, {"bucket.json": b'{"format": 5}'}),
            "data: format 5, this version knows 2 to 4",
        ),
    ],
)
def test_directory_that_cannot_be_checked_is_refused(run, tmp_path, prepare, reason):
    path = tmp_path / "data"
    prepare(path)
    code, out, err = run("check", path, "--repair")
    assert (code, out) == (2, "")
    assert err == f"penstock: {tmp_path}/{reason}\n"


@pytest.mark.parametrize("copy", [None, b"{", b'{"format": 3}'])
def test_damaged_bucket_record_cannot_be_repaired_without_its_copy(run, beer, copy):
    (beer / "bucket.json").write_bytes(b"{")
    (beer / "bucket-copy.json").unlink()
    code, out, err = run("check", beer)
    assert (code, out) == (1, "")
    assert err.startswith(f"penstock: {beer}/bucket.json: does not describe a bucket: ")
    if copy is not None:
        (beer / "bucket-copy.json").write_bytes(copy)
    code, out, err = run("check", beer, "--repair")
    assert (code, out) == (1, "")
    reason = "does not describe a bucket: " if copy else "missing, so bucket.json cannot be restored from it\n"
    assert err.startswith(f"penstock: {beer}/bucket-copy.json: {reason}")
    assert (beer / "bucket.json").read_bytes() == b"{"


@pytest.mark.parametrize("how", ["missing", "emptied", "flipped", "another format"])
def test_bucket_record_is_restored_from_its_copy(run, beer, how):
    name, content = beer / "bucket.json", (beer / "bucket.json").read_bytes()
    format7 = content.replace(b'"format": %d' % bucket_directory.FORMAT, b'"format": 7')
    hurt = {"emptied": b"", "flipped": flip_bit(content, 40), "another format": format7}
    if how == "missing":
        name.unlink()
    else:
        name.write_bytes(hurt[how])
    code, out, err = run("check", beer)
    assert (code, out) == (1, "")
    assert err.startswith(f"penstock: {name}: ")
    assert err.endswith("; `penstock check --repair` restores it from bucket-copy.json\n")
    code, out, _ = run("check", beer, "--repair")
    assert code == 0
    first, second = out.splitlines()
    assert first == f"{beer}: bucket.json was restored from its copy"
    assert " is whole: " in second
    assert name.read_bytes() == content
    kept = read_files(beer / "damaged") if (beer / "damaged").exists() else {}
    assert kept == ({"bucket.json": hurt[how]} if how in hurt else {})
    assert run("check", beer).code == 0


def test_a_copy_of_another_bucket_restores_nothing(run, beer):
    record = json.loads((beer / "bucket-copy.json").read_bytes())
    del record["crc32c"]
    replace_json(Directory(beer), "bucket-copy.json", {**record, "uuid": "00" * 16})
    (beer / "bucket.json").unlink()
    before = read_files(beer)
    code, out, err = run("check", beer, "--repair", "--json")
    assert (code, out) == (1, "")
    assert err.startswith(f"penstock: {beer}/bucket-copy.json: it is of the bucket with uuid 0000")
    assert read_files(beer) == before


@pytest.mark.parametrize("of_node", [False, True])
def test_bucket_without_its_record_is_not_overlooked(run, beer, of_node):
    (beer / "bucket.json").unlink()
    code, out, err = run("check", beer.parent if of_node else beer)
    assert (code, out) == (1, "")
    restores = "; `penstock check --repair` restores it from bucket-copy.json"
    assert err == f"penstock: {beer}/bucket.json: missing{restores}\n"
    (beer / "bucket-copy.json").unlink()
    code, out, err = run("check", beer.parent if of_node else beer)
    assert (code, out) == (2, "")
    assert err == f"penstock: {beer}: has inventory.json, but no bucket.json: it is no bucket's directory\n"
    with (
        pytest.raises(penstock.errors.Error, match=r"but no bucket\.json"),
        Node.running(["beer"], data_dir=beer.parent),
    ):
        raise AssertionError("a damaged bucket was opened")


def test_interrupted_repair_is_finished(run, beer):
    written = write_all_file_kinds()
    record = json.loads(written.files["bucket.json"])
    record["repair"] = {"aside": "damaged", "written": [written.last_log], "removed": []}
    (beer / "damaged").mkdir()
    damage(beer, 700)
    (beer / f"{written.last_log}.repaired").write_bytes(written.files[written.last_log])
    del record["crc32c"]
    bucket_directory.write_record(Directory(beer), record)
    code, _, err = run("check", beer)
    assert (code, err) == (2, f"penstock: {beer}: a repair was interrupted; finish it with `penstock check --repair`\n")
    code, out, _ = run("check", beer, "--repair")
    assert (code, len(out.splitlines())) == (0, 1)
    assert " is whole: " in out
    assert read_files(beer) == written.files


class BucketFollower:
    """Follows a bucket, and keeps the changes that are still valid.

    Attributes:
        changes: in the order of their arrival.
        positions: where the next stream starts.
        rollbacks: (vbucket, seqno) of each rollback row.
    """

    def __init__(self) -> None:
        self.changes: list[penstock.Change] = []
        self.positions: Any = "beginning"
        self.rollbacks: list[tuple[int, int]] = []

    def follow(self, url: str) -> None:
        asyncio.run(self._follow(url))

    async def _follow(self, url: str) -> None:
        async with penstock.connect(url) as bucket, await bucket.stream(self.positions, "now") as stream:
            async for change in stream.changes():
                if change.event == "rollback":
                    assert change.seqno is not None
                    self.roll_back(change.vbucket, change.seqno)
                else:
                    self.changes.append(change)
            self.positions = stream.positions

    def roll_back(self, vbucket: int, seqno: int) -> None:
        self.rollbacks.append((vbucket, seqno))
        self.changes = [change for change in self.changes if change.vbucket != vbucket or (change.seqno or 0) <= seqno]

    @property
    def documents(self) -> dict[bytes | None, bytes | None]:
        return {change.key: change.value for change in self.changes}


async def store(url: str, numbers: range) -> None:
    async with penstock.connect(url) as bucket:
        for number in numbers:
            await bucket.upsert(f"key {number}", b"value %d" % number)


def lose_all(path: Path) -> None:
    """Remove the only log file."""
    (path / make_log_name(1)).unlink()


def empty_all(path: Path) -> None:
    """Empty the only log file."""
    (path / make_log_name(1)).write_bytes(b"")


def forget_files(path: Path) -> None:
    """Remove the inventory, and the end of the log file that the inventory covers."""
    (path / "inventory.json").unlink()
    log = path / make_log_name(1)
    log.write_bytes(log.read_bytes()[: log.stat().st_size * 2 // 3])


@pytest.mark.parametrize("hurt", [lose_all, empty_all, forget_files])
def test_a_consumer_rolls_back_after_files_were_lost(run, tmp_path, hurt):
    """It has the documents of a consumer that starts afterwards. Without the repair it would keep lost documents."""
    consumer = BucketFollower()
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node:
        asyncio.run(store(node.url("beer"), range(100)))
        consumer.follow(node.url("beer"))
    assert len(consumer.documents) == 100
    hurt(tmp_path / "beer")
    with (
        pytest.raises(penstock.errors.StoreDamaged, match="`penstock check --repair` saves the others"),
        Node.running(["beer"], vbuckets=4, data_dir=tmp_path),
    ):
        raise AssertionError("a damaged bucket was opened")
    assert run("check", tmp_path / "beer").code == 1
    assert run("check", tmp_path / "beer", "--repair").code == 0
    assert run("check", tmp_path / "beer").code == 0
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node:
        asyncio.run(store(node.url("beer"), range(1000, 1100)))  # these changes get the seqnos of the lost changes
        consumer.follow(node.url("beer"))
        fresh = BucketFollower()
        fresh.follow(node.url("beer"))
    assert {vbucket for vbucket, _ in consumer.rollbacks} == {0, 1, 2, 3}
    assert consumer.documents == fresh.documents
    assert len(fresh.documents) in range(100, 200)


def test_consumer_rolls_back_to_before_the_lost_changes(run, tmp_path):
    consumer = BucketFollower()
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node:
        for number in range(10):  # over several commits
            asyncio.run(store(node.url("beer"), range(number * 20, number * 20 + 20)))
            consumer.follow(node.url("beer"))
    assert len(consumer.documents) == 200
    path = tmp_path / "beer" / make_log_name(1)
    damage(path.parent, path.stat().st_size // 2)
    with (
        pytest.raises(penstock.errors.StoreDamaged, match="`penstock check` lists the changes that are lost"),
        Node.running(["beer"], vbuckets=4, data_dir=tmp_path),
    ):
        raise AssertionError("a damaged bucket was opened")
    report = run("check", tmp_path / "beer", "--repair", "--json").json_lines[0]
    left = {vbucket["vbucket"]: vbucket["rollback"] for vbucket in report["vbuckets"]}
    assert 0 < report["changes"] < 150
    with Node.running(["beer"], vbuckets=4, data_dir=tmp_path) as node:
        asyncio.run(store(node.url("beer"), range(1000, 1020)))
        consumer.follow(node.url("beer"))
        fresh = BucketFollower()
        fresh.follow(node.url("beer"))
    assert {vbucket for vbucket, _ in consumer.rollbacks} == left.keys()
    assert all(seqno <= left[vbucket] for vbucket, seqno in consumer.rollbacks)
    assert consumer.documents == fresh.documents
    assert Counter(change.vbucket for change in fresh.changes) == Counter(change.vbucket for change in consumer.changes)
    assert len(fresh.documents) == report["documents"] + 20
