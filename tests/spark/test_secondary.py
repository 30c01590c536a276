"""Secondary indexes: answers equal a scan of the documents after any changes, and read few parts of the files."""

import json
import signal
import subprocess
import sys
from decimal import Context, Decimal
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DiskFull, UsageError
from penstock.spark import Lake
from penstock.spark.dependents.dependent import Dependent, catch_up
from penstock.spark.dependents.json_paths import find_values
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.dependents.secondary import entries as entries_module
from penstock.spark.dependents.secondary import entry_files, entry_merge, index_table, sorted_entries
from penstock.spark.dependents.secondary.entries import PendingEntries
from penstock.spark.storage.object_path import parse_place
from penstock.spark.storage.scratch_file import ScratchFile
from tests.examples import scaled
from tests.patience import PATIENCE
from tests.spark.lakes import ROOT, append, model, rollback, row
from tests.spark.test_current import histories

BOUNDS = st.none() | st.integers(-1, 12)


def valued(rows):
    """Give each change a document by its position: with a number, an array of numbers, another type, or no value."""
    shapes = [
        lambda n: {"n": n % 12},
        lambda n: {"n": [n % 5, n % 7, n % 5]},
        lambda n: {"n": f"{n}"},
        lambda n: {"m": n},
        lambda n: [n],
        lambda n: {"n": [{"n": 1}, n % 3]},
    ]
    for place, change in enumerate(rows):
        if change["event"] == "mutation":
            change["value"] = b"no JSON" if place % 11 == 10 else json.dumps(shapes[place % 6](place)).encode()
    return rows


def scanned(rows, low=None, high=None):
    """Return (value, identity) of the matching documents by a scan, and the misfits."""
    found, misfits = set(), set()
    for identity, (_, value) in model(rows).items():
        if value == b"no JSON":
            continue
        for each in find_values(json.loads(value), ("n",)):
            if not isinstance(each, int):
                misfits.add((json.dumps(each), identity))
            elif (low is None or each >= low) and (high is None or each <= high):
                found.add((each, identity))
    return sorted(found), sorted(misfits)


def identity_of(line):
    key = line["key_bytes"] if line["key"] is None else line["key"].encode()
    return line["vbucket"], line["collection_id"], key


def entries(table, column="value"):
    return sorted((line[column], identity_of(line)) for line in table.to_pylist())


@pytest.mark.long
@settings(max_examples=scaled(40))
@given(histories(), st.data())
def test_answers_equal_a_scan(rows, data):
    rows = valued(rows)
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    with TemporaryDirectory() as directory:
        lake = Lake(directory)
        index = SecondaryIndex(lake, "n", "n", "long")
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(lake, batch, rows[start:end])
            if data.draw(st.booleans()):
                assert catch_up(index, lake) == batch
            low, high, descending = data.draw(BOUNDS), data.draw(BOUNDS), data.draw(st.booleans())
            found = index.range(low, high, descending=descending)
            wanted, misfits = scanned(rows[:end], low, high)
            assert entries(found) == wanted
            assert found["value"].to_pylist() == sorted(found["value"].to_pylist(), reverse=descending)
            limit = data.draw(st.integers(0, 4))
            first = index.range(low, high, descending=descending, limit=limit)
            assert first["value"].to_pylist() == found["value"].to_pylist()[:limit]
            assert set(entries(first)) <= set(wanted)
            assert entries(index.misfits(), "misfit") == misfits
            documents = model(rows[:end])
            for line in index.documents(low, high).to_pylist():
                assert documents[identity_of(line)] == (line["cas"], line["value"])
                wanted.remove((line["indexed"], identity_of(line)))
            assert wanted == []


@pytest.mark.long
@settings(max_examples=scaled(25))
@given(histories(), st.data())
def test_files_stay_sorted(rows, data):
    """Files are small, so that some are split, some are joined, and some stay. Merges may have little memory."""
    rows = valued(rows)
    ends = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=6)), 0, len(rows)})
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_files, "FILE_ROWS", 4)
        patch.setattr(entry_files, "SMALL_ROWS", 2)
        patch.setattr(entry_files, "GROUP_ROWS", 2)
        if data.draw(st.booleans()):
            patch.setattr(entries_module, "STEP_ROWS", 3)
            patch.setattr(sorted_entries, "RUN_BYTES", 200)
            patch.setattr(sorted_entries, "TABLE_BYTES", 100)
            patch.setattr(entry_merge, "MARK_ROWS", 2)
        lake = Lake(directory)
        index = SecondaryIndex(lake, "n", "n", "long")
        for batch, (start, end) in enumerate(pairwise(ends)):
            append(lake, batch, rows[start:end])
            catch_up(index, lake)
            assert entries(index.scan()) == scanned(rows[:end])[0]
            files = index.plan().paths
            values = [value for path in files for value in pq.read_table(path)["value"].to_pylist()]
            assert values == sorted(values, key=lambda value: (value is None, value or 0))
            assert all(pq.read_metadata(path).num_rows <= 8 for path in files)
            on_disk = {str(path) for path in index.table.path.glob("*.parquet")}
            assert on_disk >= set(files)


LARGE = 20_000


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Return a lake of documents with a number, a text and a time, and an index on each in many small files."""
    lake = Lake(tmp_path_factory.mktemp("large") / "lake")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_files, "FILE_ROWS", 1000)
        patch.setattr(entry_files, "GROUP_ROWS", 100)
        lines = [
            {
                "n": n * 7919 % LARGE,
                "s": f"{'x' * 40}{n * 7919 % LARGE:06}",
                "t": f"2020-01-01T00:00:{n % 60:02}.{n:06}",
            }
            for n in range(LARGE)
        ]
        append(lake, 0, [row(n % 64, n, b"key %d" % n, json.dumps(line).encode()) for n, line in enumerate(lines)])
        for name, kind in (("n", "double"), ("s", "string"), ("t", "timestamp")):
            catch_up(SecondaryIndex(lake, name, name, kind), lake)
    return lake


def without_row_groups(whole, footer, value):
    """Return a file's bytes with zeros for all row groups that cannot hold the value."""
    text = bytearray(whole)
    for group in (footer.row_group(number) for number in range(footer.num_row_groups)):
        bounds = group.column(0).statistics
        if not bounds.min <= value <= bounds.max:
            for column in (group.column(number) for number in range(group.num_columns)):
                start = column.dictionary_page_offset or column.data_page_offset
                text[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    return bytes(text)


@pytest.mark.long
def test_a_point_reads_one_row_group_of_one_file(large, tmp_path):
    index = SecondaryIndex(large, "n", "n", "double")
    plan = index.plan(777, 777)
    assert (plan.files, plan.row_groups) == (1, 1)
    assert plan.total_files == LARGE // 1000
    # A read of anything else fails: the other files are moved away, and the file's other row groups are zeros.
    [path] = plan.paths
    others = [other for other in index.table.path.glob("*.parquet") if str(other) != path]
    whole = Path(path).read_bytes()
    try:
        for other in others:
            Path(str(other)).rename(tmp_path / other.name)
        Path(path).write_bytes(without_row_groups(whole, pq.read_metadata(path), 777))
        found = index.lookup(777)
        with pytest.raises(UsageError, match="lacks files"):
            index.lookup(15_000)
        with pytest.raises(OSError, match=r"Corrupt|deserialize|data"):
            index.range(600, 777)
    finally:
        Path(path).write_bytes(whole)
        for other in others:
            (tmp_path / other.name).rename(other)
    assert found["value"].to_pylist() == [777.0]
    assert found["key"].to_pylist() == [f"key {next(n for n in range(LARGE) if n * 7919 % LARGE == 777)}"]


def test_range_reads_only_the_files_it_spans(large):
    index = SecondaryIndex(large, "n", "n", "double")
    plan = index.plan(1950, 2049)
    assert (plan.files, plan.row_groups) == (2, 2)
    assert index.range(1950, 2049)["value"].to_pylist() == list(range(1950, 2050))
    assert index.range(1950.5, limit=2)["value"].to_pylist() == [1951, 1952]
    assert index.range(None, 1950.5, limit=2, descending=True)["value"].to_pylist() == [1950, 1949]
    assert index.plan(LARGE, None).files == 0


def test_texts_longer_than_the_log_statistics_are_found(large):
    """All texts begin alike, so that only the footers' longer statistics distinguish them, not the log's."""
    index = SecondaryIndex(large, "s", "s")
    found = index.lookup(f"{'x' * 40}000777")
    assert found.num_rows == 1
    plan = index.plan(f"{'x' * 40}000777", f"{'x' * 40}000777")
    assert (plan.files, plan.row_groups) == (1, 1)


OF_A_KIND = {
    "string": st.text(max_size=3) | st.text("a\u00e9\U0002f600", min_size=30, max_size=36),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "boolean": st.booleans(),
    "timestamp": st.datetimes().map(lambda when: when.isoformat()),
    "date": st.dates().map(lambda day: day.isoformat()),
}


@pytest.mark.long
@settings(max_examples=scaled(25))
@given(st.data())
def test_every_value_is_within_the_log_statistics(data):
    kind = data.draw(st.sampled_from(sorted(OF_A_KIND)))
    values = data.draw(st.lists(OF_A_KIND[kind], min_size=3, max_size=12))
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_files, "FILE_ROWS", 2)
        lake = Lake(directory)
        index = SecondaryIndex(lake, "v", "v", kind)
        append(lake, 0, [row(1, n + 1, b"%d" % n, json.dumps({"v": v}).encode()) for n, v in enumerate(values)])
        catch_up(index, lake)
        for value in values:
            keys = {str(n) for n, other in enumerate(values) if other == value}
            assert set(index.lookup(value)["key"].to_pylist()) == keys
            assert keys <= set(index.range(value)["key"].to_pylist())


def test_separators_in_values_end_no_line_of_the_log(lake):
    """The log keeps the least and greatest value of a file; JSON escapes only some of the characters that end lines."""
    index = SecondaryIndex(lake, "v", "v", "string")
    for batch, text in enumerate(("\x85", "\u2028", "\u2029")):
        append(lake, batch, [row(1, batch + 1, b"%d" % batch, json.dumps({"v": text}).encode())])
        catch_up(index, lake)
        assert index.lookup(text)["key"].to_pylist() == [str(batch)]


LENGTHS = [0, 1, 31, 32, 33, 40, 4095, 4096, 5000, 70_000]


@pytest.mark.long
@pytest.mark.parametrize("group", [2, 100])
def test_values_of_any_length_are_found(lake, monkeypatch, group):
    """Parquet omits statistics of long values, and the Delta log omits those of some values."""
    monkeypatch.setattr(entry_files, "GROUP_ROWS", group)
    monkeypatch.setattr(entry_files, "FILE_ROWS", 2 * group)
    values = [letter * length + end for letter in ("a", "\U0010ffff", "é") for length in LENGTHS for end in ("", "z")]
    index = SecondaryIndex(lake, "s", "s")
    for batch in range(2):
        some = list(enumerate([*values, *[5] * 7]))[batch::2]
        append(lake, batch, [row(1, n + 1, b"key %d" % n, json.dumps({"s": value}).encode()) for n, value in some])
        catch_up(index, lake)
    wanted = sorted(values)
    assert index.scan()["value"].to_pylist() == wanted
    assert index.misfits().num_rows == 7
    for value in set(wanted):
        assert index.lookup(value)["value"].to_pylist() == [value] * wanted.count(value)
    for at in range(0, len(wanted), 5):
        assert index.range(wanted[at], limit=3)["value"].to_pylist() == wanted[wanted.index(wanted[at]) :][:3]
        last = index.range(None, wanted[at], limit=1, descending=True)
        assert last["value"].to_pylist() == [wanted[at]]


def test_timestamps_are_found_by_range(large):
    index = SecondaryIndex(large, "t", "t", "timestamp")
    found = index.range("2020-01-01T00:00:30Z", "2020-01-01T02:00:30.999999+02:00")
    assert found.num_rows == len([n for n in range(LARGE) if n % 60 == 30])
    assert index.lookup(found["value"][5].as_py())["key"].to_pylist() == [found["key"][5].as_py()]
    assert index.plan("2020-01-01T00:00:30Z", "2020-01-01T00:00:30.999999Z").files <= 2


def test_other_libraries_read_the_index_as_a_delta_table(large):
    path = str(large.path / "indexes" / "n")
    found = pl.scan_delta(path).filter(pl.col("value") == 777).collect()
    assert found["value"].to_list() == [777.0]
    table = DeltaTable(path)
    assert table.to_pyarrow_table(filters=[("value", ">=", 19_990.0)]).num_rows == 10
    files = [str(Path(path) / name) for name in table.get_add_actions(flatten=True)["path"].to_pylist()]
    query = "select count(*), max(value), max(collection_id) from read_parquet($1) where value < 10"
    assert duckdb.execute(query, [files]).fetchall() == [(10, 9.0, 0)]


@pytest.mark.parametrize(("name", "kind"), [("s", "string"), ("t", "timestamp")])
def test_other_libraries_skip_files_and_lose_nothing(large, name, kind):
    table = DeltaTable(str(large.path / "indexes" / name))
    everything = SecondaryIndex(large, name, name, kind).scan()
    for place in (0, 1, 999, 1000, 19_999):
        value = everything["value"][place].as_py()
        assert pl.scan_delta(str(large.path / "indexes" / name)).filter(pl.col("value") == value).collect().height == 1
        assert table.to_pyarrow_table(filters=[("value", "=", value)]).num_rows == 1


@pytest.fixture
def index(lake):
    return SecondaryIndex(lake, "city", "address.city")


def city(seqno, name, key=b"a", vbucket=1, **more):
    return row(vbucket, seqno, key, json.dumps({"address": {"city": name}}).encode(), **more)


def test_an_index_follows_through_a_rollback(lake, index):
    follower: Dependent = index
    append(lake, 0, [city(1, "Bonn"), city(2, "Ulm", b"b")])
    assert catch_up(follower, lake) == 0
    append(lake, 1, [city(3, "Köln"), city(4, None, b"b")])
    assert catch_up(follower, lake) == 1
    assert index.scan()["value"].to_pylist() == ["Köln"]
    append(lake, 2, [rollback(1, 2, 1)])
    assert index.scan()["value"].to_pylist() == ["Bonn", "Ulm"]
    assert catch_up(follower, lake) == 2
    assert index.position() == (lake.changelog_table.open().metadata().id, 2)
    assert index.scan()["value"].to_pylist() == ["Bonn", "Ulm"]


def test_pending_changes_are_read_once(lake, index, monkeypatch):
    append(lake, 0, [city(1, "Bonn")])
    catch_up(index, lake)
    for batch in range(1, 6):
        append(lake, batch, [city(1 + batch, f"Place {batch}")])
        assert index.scan()["value"].to_pylist() == [f"Place {batch}"]
        assert index._read_state().pending.rows == batch
    monkeypatch.setattr(PendingEntries, "collect", classmethod(lambda cls, delta, *rest: checked(cls, delta)))

    def checked(cls, delta):
        assert delta.files == ()
        return cls.empty(index.kind)

    assert index.lookup("Place 5").num_rows == 1
    assert index.lookup("Place 4").num_rows == 0


def test_another_changelog_rebuilds_the_index(lake, index):
    append(lake, 0, [city(1, "Bonn")])
    append(lake, 1, [city(2, "Ulm", b"b")])
    catch_up(index, lake)
    lake.changelog_table.path.rename(lake.path / "old")
    append(lake, 0, [city(1, "Köln", b"c")])
    assert index.scan()["value"].to_pylist() == ["Köln"]
    assert catch_up(index, lake) == 0
    assert (index.scan()["value"].to_pylist(), index.count_rows()) == (["Köln"], 1)


def test_a_merge_that_fails_leaves_no_files(lake, index, monkeypatch):
    append(lake, 0, [city(1, "Bonn")])
    catch_up(index, lake)
    append(lake, 1, [city(2, "Ulm")])
    before = sorted(index.table.path.glob("*.parquet"))

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(index.table, "commit", fail)
    with pytest.raises(OSError, match="disk full"):
        catch_up(index, lake)
    assert sorted(index.table.path.glob("*.parquet")) == before
    assert index.lookup("Ulm").num_rows == 1


def test_commit_that_raises_after_landing_keeps_its_files(lake, index, monkeypatch):
    append(lake, 0, [city(1, "Bonn")])
    catch_up(index, lake)
    append(lake, 1, [city(2, "Ulm")])
    commit = index.table.commit

    def late(*given):
        commit(*given)
        raise OSError("after the commit")

    with monkeypatch.context() as patch:
        patch.setattr(index.table, "commit", late)
        with pytest.raises(OSError, match="after the commit"):
            catch_up(index, lake)
    assert catch_up(index, lake) == 1
    assert index.scan()["value"].to_pylist() == ["Ulm"]
    assert index.count_rows() == 1


def test_full_disk_under_sorted_runs_is_reported_and_the_next_run_continues(lake, index, monkeypatch):
    append(lake, 0, [city(n, f"Place {n}", b"%d" % n) for n in range(1, 10)])
    with Path("/dev/full").open("r+b") as full, monkeypatch.context() as patch:
        patch.setattr(sorted_entries, "RUN_BYTES", 1)
        patch.setattr("tempfile.TemporaryFile", lambda **_: full)
        with pytest.raises(DiskFull, match=r"^a disk is full while \S+/indexes is written \(No space left on device\)"):
            catch_up(index, lake)
    assert index.position() is None
    assert catch_up(index, lake) == 0
    assert index.count_rows() == 9


def test_runs_of_an_object_store_lie_in_the_temporary_directory(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    scratch = ScratchFile(parse_place("s3://bucket/lake/indexes"))
    tables = [pa.table({"n": [number, None]}) for number in range(3)]
    places = [scratch.write(each) for each in tables]
    assert [scratch.read(place) for place in reversed(places)] == tables[::-1]
    scratch.close()
    assert [*(tmp_path / "temporary").iterdir()] == []


KILLED = """
import os, signal, sys
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.dependents.secondary import sorted_entries
from penstock.spark.storage.scratch_file import ScratchFile
from penstock.spark import Lake

lake = Lake(sys.argv[1])
index = SecondaryIndex(lake, "city", "address.city")
commit = index.table.commit

def killed(*given):
    if sys.argv[2] == "after":
        commit(*given)
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "within":
    sorted_entries.RUN_BYTES = 1
    ScratchFile.read = killed
else:
    index.table.commit = killed
catch_up(index, lake)
"""


@pytest.mark.process
@pytest.mark.parametrize("when", ["within", "before", "after"])
def test_index_continues_after_a_kill_around_its_commit(lake, index, when):
    append(lake, 0, [city(n, "Bonn", b"%d" % n) for n in range(1, 10)])
    catch_up(index, lake)
    append(lake, 1, [city(9 + n, "Ulm", b"%d" % n) for n in range(1, 5)])
    ran = subprocess.run([sys.executable, "-c", KILLED, lake.path, when], cwd=ROOT, timeout=PATIENCE, check=False)
    assert ran.returncode == -signal.SIGKILL
    assert [path.name for path in index.table.path.parent.iterdir()] == ["city"]
    for _ in range(2):
        assert [index.lookup(name).num_rows for name in ("Bonn", "Ulm")] == [5, 4]
        assert catch_up(index, lake) == 1
        assert index.count_rows() == 9


def test_vacuum_removes_replaced_index_files(lake, index, monkeypatch):
    monkeypatch.setattr(index_table, "VACUUM_EVERY", 5)
    monkeypatch.setitem(index_table.PROPERTIES, "delta.deletedFileRetentionDuration", "interval 0 seconds")
    for batch in range(15):
        append(lake, batch, [city(batch + 1, f"Place {batch}")])
        catch_up(index, lake)
    assert len(list(index.table.path.glob("*.parquet"))) <= 5


def test_invalid_secondary_index_is_refused(lake, index):
    with pytest.raises(UsageError, match="expected the lake of a pipeline that has run"):
        index.lookup("Bonn")
    append(lake, 0, [city(1, "Bonn")])
    catch_up(index, lake)
    with pytest.raises(UsageError, match="the lower bound is 5; expected a string"):
        index.lookup(5)
    with pytest.raises(UsageError, match="limit is -1"):
        index.range(limit=-1)
    with pytest.raises(UsageError, match="choose another name, or remove the directory"):
        SecondaryIndex(lake, "city", "address.town").scan()
    with pytest.raises(UsageError, match=r"the name is '\.\./x'"):
        SecondaryIndex(lake, "../x", "a")


def test_invalid_bounds_are_refused(lake, index):
    append(lake, 0, [city(1, "Bonn")])
    assert index.range("Z", "A").num_rows == 0
    assert index.lookup("Bonn").schema.names == index.schema.names
    assert index.documents("Z").num_rows == 0


@pytest.mark.spark
def test_spark_frame_has_the_range(lake, index, spark):
    append(lake, 0, [city(1, "Bonn"), city(2, "Ulm", b"\xff")])
    rows = index.frame(spark, "A", "Z").select("value", "key", "vbucket", "history").collect()
    assert [tuple(line) for line in rows] == [("Bonn", "a", 1, 0), ("Ulm", None, 1, 0)]
    assert index.frame(spark, "X").count() == 0


DIGITS = st.one_of(
    st.integers(10**37, 10**38 - 1), st.integers(-(10**38) + 1, 10**38 - 1), st.integers(2**53 - 2, 2**53 + 2)
)


@settings(max_examples=scaled(25))
@given(st.lists(DIGITS, min_size=3, max_size=12), st.integers(0, 38))
def test_decimals_have_the_order_of_their_digits(digits, scale):
    """Numbers that are the same float are different decimals. Files and row groups hold two entries each."""
    texts = {f"{Decimal(number).scaleb(-scale, Context(prec=38)):f}": number for number in digits}
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_files, "FILE_ROWS", 2)
        patch.setattr(entry_files, "GROUP_ROWS", 2)
        lake = Lake(directory)
        index = SecondaryIndex(lake, "price", "price", f"decimal(38, {scale})")
        for batch in range(2):
            some = [*enumerate(texts)][batch::2]
            append(lake, batch, [row(1, n + 1, text.encode(), b'{"price": %s}' % text.encode()) for n, text in some])
            catch_up(index, lake)
        ordered = sorted(texts, key=lambda text: texts[text])
        assert index.scan()["key"].to_pylist() == ordered
        assert index.scan()["value"].to_pylist() == [Decimal(text) for text in ordered]
        for at, text in enumerate(ordered):
            assert index.lookup(Decimal(text))["key"].to_pylist() == [text]
            assert index.plan(Decimal(text), Decimal(text)).files == 1
            assert index.range(index.kind.parse_text(text))["key"].to_pylist() == ordered[at:]
            assert index.range(None, Decimal(text), limit=1, descending=True)["key"].to_pylist() == [text]
            assert [line["key"] for line in index.documents(Decimal(text), Decimal(text)).to_pylist()] == [text]


def test_decimals_are_exact_in_bounds_and_for_other_libraries(lake):
    append(lake, 0, [row(1, n + 1, b"%d" % n, b'{"price": 0.%d0}' % n) for n in range(1, 5)])
    append(lake, 1, [row(1, 9, b"m", b'{"price": 0.125}')])
    index = SecondaryIndex(lake, "price", "price", "decimal(12, 2)")
    catch_up(index, lake)
    assert index.misfits()["misfit"].to_pylist() == ["0.125"]
    assert index.range(Decimal("0.2"), Decimal("0.30"))["value"].to_pylist() == [Decimal("0.20"), Decimal("0.30")]
    with pytest.raises(UsageError, match=r"the upper bound is 0\.3; expected a decimal\(12, 2\)"):
        index.range(None, 0.3)
    table = DeltaTable(str(lake.path / "indexes" / "price"))
    assert table.to_pyarrow_table(filters=[("value", "=", Decimal("0.30"))])["key"].to_pylist() == ["3"]


def test_value_types():
    assert pa.types.is_string(SecondaryIndex(Lake("x"), "a", "a").schema.field("value").type)
