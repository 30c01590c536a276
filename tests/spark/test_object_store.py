"""Lakes in an object store, without Spark: a real S3 endpoint on loopback, and a proxy that spoils requests."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.client.documents.window_writer import RefusedRows
from penstock.client.documents.write_requests import Fault as Refusal
from penstock.errors import LakeRefused, Unreachable, UsageError
from penstock.spark import Lake
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.kinds.fulltext import FullText
from penstock.spark.dependents.kinds.kafka_sink import KafkaKind
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.dependents.kinds.table_definition import TableDefinition
from penstock.spark.dependents.position_file import PositionFile
from penstock.spark.lake.changelog.changelog_delta import find_delta
from penstock.spark.lake.current.current_table import merge_tables
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.maintenance.lake_compaction import compact
from penstock.spark.lake.reading.lake_readers import read_changelog
from penstock.spark.lake.tables.delta_store import open_delta_log
from penstock.spark.lake.tables.lake_checkpoint import publish_commit, publish_end, restore_checkpoint
from penstock.spark.lake.tables.lake_lock import LOCK_NAME, check_lock, hold_lock, is_held
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.maintenance.document_selection import DocumentSelection
from penstock.spark.pipeline.maintenance.erasure import erase_documents
from penstock.spark.pipeline.maintenance.retyping import retype_tables
from penstock.spark.pipeline.maintenance.vacuuming import vacuum
from penstock.spark.pipeline.state import run_state
from penstock.spark.pipeline.state.lake_status import read_status
from penstock.spark.pipeline.state.resnapshot import locate_requests, request_resnapshot
from penstock.spark.pipeline.state.stopping import plan_removal, remove_tables
from penstock.spark.runtime.changelog_sink import ChangelogWriter, FilesWritten
from penstock.spark.sink import dead_letters
from penstock.spark.source.offsets import VbucketOffset
from penstock.spark.source.read_positions import ResnapshotRequests, add_requests, remove_requests
from penstock.spark.storage.lake_lease import LEASE_VARIABLE
from penstock.spark.storage.object_client import find_store_options
from penstock.spark.storage.object_files import close_sink, open_parquet, open_sink
from penstock.spark.storage.object_path import LakePath, ObjectPath, parse_place
from penstock.spark.storage.stored_documents import StoredDocument, create_document, replace_file
from tests.patience import PATIENCE
from tests.spark.lakes import (
    CHANGES,
    INFERRED_ORDERS,
    QUERY,
    TYPED,
    VBUCKETS,
    VERSIONS,
    append,
    as_documents,
    batch_rows,
    identities,
    list_targets,
    model,
    orphans,
    read_table_documents,
    read_typed_documents,
    row,
    table,
    write,
)
from tests.spark.object_store import BUCKET, SECRET, Fault, FaultyProxy, make_environment, serve_objects
from tests.spark.test_collection_snapshot import is_of, open_shop
from tests.spark.test_erasure import (
    fill,
    find_secrets,
    open_indexes,
    test_past_states_keep_their_boundaries,
    without,
)
from tests.spark.test_kafka_sink import declare
from tests.spark.test_retention import (
    commit,
    make_offset,
    test_old_versions_are_dropped_and_their_states_refused,
)
from tests.spark.typed_readers import read_rows

__all__ = [
    "test_old_versions_are_dropped_and_their_states_refused",
    "test_past_states_keep_their_boundaries",
]
"""Tests of directories that hold for the lakes of this module too."""

pytestmark = [pytest.mark.process, pytest.mark.long]

FAULTS: list[Fault] = ["refuse", "fail", "throttle", "tear", "forget", "delay", "cut", "reset", "drip"]
OFFSET = json.dumps([[7, number, number, number] for number in range(3)])


@pytest.fixture(scope="module")
def endpoint():
    with serve_objects() as port:
        yield port


@pytest.fixture
def network(endpoint, monkeypatch):
    """Return the proxy between this process and the store."""
    with FaultyProxy.before(endpoint) as proxy:
        for name, value in make_environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv(LEASE_VARIABLE, "1")
        yield proxy


@pytest.fixture
def place(network, request):
    place = parse_place(f"s3://{BUCKET}/{request.node.name.replace('[', '-').replace(']', '')}")
    assert isinstance(place, ObjectPath)
    return place


@pytest.fixture
def lake(place):
    return Lake(place)


def spoil_next(network: FaultyProxy, fault: Fault, count: int, method: str = "PUT") -> None:
    """Spoil the next requests of a method."""
    remaining = iter(range(count))
    network.choose = lambda found, path, body: fault if found == method and next(remaining, None) is not None else None


@pytest.mark.parametrize("fault", FAULTS)
def test_conditional_puts_have_one_effect(network, place, fault):
    spoil_next(network, fault, 2)
    assert create_document(place / "once", "mine")
    assert create_document(place / "once", "mine")
    assert not create_document(place / "once", "yours")
    document, other = StoredDocument(place / "document"), StoredDocument(place / "document")
    for text in ("1", "2", "3"):
        spoil_next(network, fault, 1)
        document.replace(text)
    assert other.read() == "3"
    spoil_next(network, fault, 1)
    other.replace("4")
    with pytest.raises(LakeRefused, match="another run has replaced"):
        document.replace("5")
    assert document.read() == "4"
    assert network.faults


def test_one_of_many_creators_wins(place):
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda number: create_document(place / "name", str(number)), range(8)))
    assert won.count(True) == 1
    assert (place / "name").read_text() == str(won.index(True))


def test_lake_equals_a_local_lake_in_spite_of_faults(network, lake, tmp_path):
    chance = random.Random(7)
    network.choose = lambda method, path, body: chance.choice(FAULTS) if chance.random() < 0.05 else None
    local = Lake(tmp_path / "lake")
    batches = [[change for change in batch_rows(batch) if change["vbucket"] < 8] for batch in range(5)]
    rows = [change for batch in batches for change in batch]
    for one in (lake, local):
        index, words = SecondaryIndex(one, "numbers", "n", "long"), FullText(one, "words")
        for number, batch in enumerate(batches):
            assert append(one, number, batch)
            if number % 2:
                merge_tables(list_targets(one))
                catch_up(index, one)
                catch_up(words, one)
    assert identities(lake) == identities(local)
    assert as_documents(lake.current()) == model(rows)
    merge_tables(list_targets(lake))
    assert as_documents(read_table_documents(lake)) == model(rows)
    compact(lake)
    found = vacuum(lake, 0)
    assert found.changelog.files_after <= 16
    assert not orphans(lake)
    assert identities(lake) == identities(local)
    assert as_documents(lake.current()) == model(rows)
    assert read_changelog(lake, 5).num_rows == 5
    network.choose = lambda method, path, body: None  # readers of others need not survive every fault
    for collection_id, shape in ((0, TYPED), (8, INFERRED_ORDERS)):
        wanted = {identity: value for identity, (_, value) in model(rows).items() if identity[1] == collection_id}
        assert read_typed_documents(lake, shape) == wanted
    merge_tables(list_targets(local))
    for shape in (VERSIONS, CHANGES):
        both = [
            sorted((line["_vbucket"], line["_history"], line["_seqno"], line["_rest"]) for line in read_rows(table))
            for table in (TypedTable(lake, shape), TypedTable(local, shape))
        ]
        assert both[0] == both[1] != []
    assert {fault for fault, _, _ in network.faults} == set(FAULTS)


def test_indexes_and_reset(lake):
    changes = [
        row(1, number, b"k%d" % number, b'{"n": %d, "t": "word%d"}' % (number, number)) for number in range(1, 9)
    ]
    append(lake, 0, changes[:4])
    index, words = SecondaryIndex(lake, "by_n", "n", "long"), FullText(lake, "words")
    catch_up(index, lake)
    catch_up(words, lake)
    append(lake, 1, changes[4:])
    assert index.range(3, 6)["value"].to_pylist() == [3, 4, 5, 6]  # pending changes count
    catch_up(words, lake)
    stored = FullText.stored(lake, "words")  # another process, which has no copy yet
    assert stored.search("word7")["key"].to_pylist() == ["k7"]
    assert SecondaryIndex.stored(lake, "by_n").lookup(5)["key"].to_pylist() == ["k5"]
    late = FullText(lake, "words")
    assert late.search("word1")["key"].to_pylist() == ["k1"]
    append(lake, 2, [row(1, 9, b"k9", b'{"t": "word9"}')])
    catch_up(words, lake)
    assert late.search("word9")["key"].to_pylist() == ["k9"]  # the copy follows
    assert {path.name for path in plan_removal(lake, ["words"]).paths} == {"words.sqlite"}
    remove_tables(plan_removal(lake, ["by_n", "words"]))
    assert not list((lake.path / "indexes").iterdir())
    remove_tables(plan_removal(lake, []))
    assert [path.name for path in lake.path.iterdir()] == [LOCK_NAME]


def test_vacuum_and_reset_wait_for_no_run(lake):
    append(lake, 0, [row(1, 1, b"a")])
    with hold_lock(lake.path, 0):
        assert read_status(lake).state == "running"
        with pytest.raises(LakeRefused, match="another run writes"):
            vacuum(lake, 0)
        with pytest.raises(LakeRefused, match="another run writes"):
            remove_tables(plan_removal(lake, []))
    assert read_status(lake).state == "new"
    remove_tables(plan_removal(lake, []))


def make_scratch(directory: Any, lake: Lake, **ends: str) -> Any:
    """Return a checkpoint of Spark for a lake, with the ends of some planned batches."""
    directory.mkdir()
    restore_checkpoint(lake, directory, lake.find_newest_batch())
    for batch, end in ends.items():
        (directory / "offsets" / batch[1:]).write_text(f'v1\n{{"batchTimestampMs":{len(end)}}}\n{end}')
    return directory


def test_second_run_takes_over_and_the_first_is_fenced(network, lake, tmp_path):
    (lake.checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    with hold_lock(lake.path, 0) as first:
        state = run_state.RunStateFile(lake, first)
        state.write(run_state.create_run_state())
        writer = ChangelogWriter(
            lake, make_scratch(tmp_path / "one", lake, b0="one", b1="one"), None, VBUCKETS, first.token
        )
        writer.commit([FilesWritten(write(lake, [row(1, 1, b"a")]))], 0)
        with pytest.raises(LakeRefused, match="another run writes"):
            hold_lock(lake.path, 0).__enter__()
        first.raise_if_lost()
        token = first.token.encode()
        network.choose = lambda method, path, body: "refuse" if method == "PUT" and token in body else None
        with network.arrived:  # from then on no renewal is on its way
            assert network.arrived.wait_for(lambda: bool(network.faults), PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(lambda: hold_lock(lake.path, 0).__enter__())  # watches, until the lease has ended
            second = taken.result(PATIENCE)
        network.choose = lambda method, path, body: None
        assert first.lease is not None
        assert first.lease.is_lost.wait(PATIENCE)  # its next renewal names a version that is no longer there
        with pytest.raises(LakeRefused, match="has taken over"):
            first.raise_if_lost()
        with pytest.raises(LakeRefused, match="has taken over"):
            writer.commit([FilesWritten(write(lake, [row(1, 2, b"b")]))], 1)
        newer = run_state.create_run_state()
        run_state.RunStateFile(lake, second).write(newer)
        with pytest.raises(LakeRefused, match="has taken over"):
            state.write(run_state.create_run_state())
        found = run_state.read_run_state(lake)
        assert found is not None
        assert found.run == newer.run
        check_lock(lake.path, second.token)
    check_lock(lake.path, second.token)  # the end of the first run does not release the lease of the second
    assert second.lease is not None
    second.lease.release()
    assert not is_held(lake.path)
    assert identities(lake) == [(1, 0, 1)]


def test_batch_has_one_end_even_without_a_lease(lake, tmp_path):
    (lake.checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    one, two = (make_scratch(tmp_path / name, lake, b0=name) for name in ("one", "two"))
    publish_end(lake, one, 0)
    with pytest.raises(LakeRefused, match="has planned another batch 0"):
        publish_end(lake, two, 0)
    publish_end(lake, one, 0)  # the same run repeats the batch
    again = make_scratch(tmp_path / "three", lake)
    assert (again / "offsets" / "0").read_text().endswith("one")  # and so does the next run
    assert not [*(again / "commits").iterdir()]


def test_run_continues_after_a_crash_between_changelog_and_commit_log(lake, tmp_path):
    (lake.checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    scratch = make_scratch(tmp_path / "one", lake, b0="zero", b1="one", b2="two")
    for batch in (0, 1):
        publish_end(lake, scratch, batch)
        append(lake, batch, [row(1, batch + 1, b"a")])
        if not batch:
            publish_commit(lake, batch)
    lake.check_owner()
    again = make_scratch(tmp_path / "two", lake)
    assert sorted(entry.name for entry in (again / "offsets").iterdir()) == ["0", "1"]
    assert [entry.name for entry in (again / "commits").iterdir()] == ["1"]
    assert (lake.checkpoint / "commits" / "1").is_file()
    assert json.loads((again / "metadata").read_text()) == {"id": QUERY}
    lake.check_owner()


def test_stale_dependent_does_not_move_a_position_back(lake):
    append(lake, 0, [row(1, 1, b"a")])
    older = find_delta(lake, None)
    assert older is not None
    stale, owner = (PositionFile(lake.path / "invalidations" / "x.json", "all is sent") for _ in range(2))
    assert stale.read() is None
    stale.write(older.changelog_id, 0)
    assert owner.read() == (older.changelog_id, 0)
    append(lake, 1, [row(1, 2, b"b")])
    newer = find_delta(lake, owner.read())
    assert newer is not None
    owner.write(newer.changelog_id, 1)
    with pytest.raises(LakeRefused, match="another run has replaced"):
        stale.write(older.changelog_id, 0)
    assert owner.read() == (older.changelog_id, 1)


def test_plain_changelog(network, place):
    lake = Lake(place, "parquet")
    spoil_next(network, "forget", 2)
    assert append(lake, 0, [row(1, 1, b"a")])
    assert not append(lake, 0, [row(1, 1, b"a")])
    assert append(lake, 1, [row(1, 2, b"b")])
    paths = list(place.glob("changelog/vbucket_range=*/*.parquet"))
    assert len(paths) == 2
    assert {key for path in paths for key in read_column(path, "key")} == {b"a", b"b"}
    assert not [*(lake.path / "_pending").rglob("*.parquet")]
    assert read_status(Lake(place)).changelog is not None
    report = erase_documents(lake, DocumentSelection((b"a",)))
    assert [(part.rows, part.files) for part in report.parts if part.table == "changelog"] == [(1, 1)]
    assert {key for path in paths for key in read_column(path, "key")} == {None, b"b"}


def test_erasure_and_vacuum_reach_all_objects(lake):
    written = fill(lake, [10, 11])
    letters = lake.path.parent / f"{lake.path.name}-letters"
    sink = open_sink(letters / "batch-1.parquet")
    pq.write_table(pa.table({"key": [b"zqkey", b"other 0"], "value": [b"zqvalue", b"v"]}), sink)
    close_sink(sink)
    with hold_lock(lake.path, 0), pytest.raises(LakeRefused, match="another run writes"):
        erase_documents(lake, DocumentSelection((b"zqkey",)))
    report = erase_documents(lake, DocumentSelection((b"zqkey",)), [letters])
    planned = vacuum(lake, 0, dry_run=True)
    assert planned.changelog.files_after < planned.changelog.files_before
    assert planned == vacuum(lake, 0)
    assert find_secrets(lake.path) == find_secrets(letters) == []
    assert {part.table: part.rows for part in report.parts} == {
        "changelog": 3, "current": 1, "by_name": 1, "words": 1, str(letters): 1
    }  # fmt: skip
    assert as_documents(read_table_documents(lake)) == model(without(written, b"zqkey"))
    by_name, words = open_indexes(lake)
    assert by_name.lookup("later")["key"].to_pylist() == ["later"]
    assert words.search("later").num_rows == 1


@pytest.mark.parametrize("fault", [None, "forget", "fail"])
def test_a_table_gets_another_schema(network, lake, fault):
    append(lake, 0, [row(n, n + 1, b"k%d" % n, b'{"n": %d}' % n) for n in range(32)])
    source = SourceDefinition(name="s", reader_options={"url": "couchbase://h/b"})
    old, new = (TableDefinition(name="t", collection="_default", schema=f"n {name}") for name in ("STRING", "BIGINT"))
    catch_up(old.open(lake), lake)
    spoil_next(network, fault, 1)
    (found,) = retype_tables(PipelineDefinition(lake=str(lake.path), sources=(source,), dependents=(new,)))
    assert (found.before.rest.rows, found.after.rest.rows, found.after.rows) == (32, 0, 32)
    table = TypedTable.find(lake, "t")
    assert table is not None
    opened = open_delta_log(table.table.path)
    assert opened is not None
    assert sorted(pa.table(opened.to_pyarrow_table())["n"].to_pylist()) == [*range(32)]
    assert not is_held(lake.path)


def test_a_collection_is_read_again(place):
    with open_shop(place) as shop:
        shop.store("shop.a", {f"k{n}": n for n in range(20)})
        shop.store("shop.b", {f"k{n}": n for n in range(20)})
        shop.run(is_of("shop.a", "shop.b"))
        assert shop.resnapshot("shop.a").added == 20
        assert (shop.read("shop.a"), shop.read("shop.b")) == (shop.contents["shop.a"], {})
        shop.remove("shop.a", ["k1"])
        shop.run()
        assert shop.read("shop.a") == shop.contents["shop.a"]
    assert not is_held(place)


def test_kafka_sink_keeps_its_id(lake):
    append(lake, 0, [row(1, 1, b"a", b"1")])
    ids = set()
    for _ in range(2):
        with pytest.raises(Unreachable, match="Kafka at"):
            catch_up(declare(timeout=0.2).open(lake), lake)
        (identity,) = KafkaKind.list_files(lake, "events")
        ids.add(identity.read_text())
    assert len(ids) == 1


def test_requests_to_read_again_are_seen_by_the_planner(lake):
    commit(lake, 0, [row(1, 1, b"a")], make_offset({1: VbucketOffset(0, 1, 1)}))
    requests = ResnapshotRequests(str(locate_requests(lake)))
    assert requests.read() == {}
    assert request_resnapshot(lake, lambda count: [0, 1]) == {1: 0}
    assert requests.read() == {1: 0}
    add_requests(locate_requests(lake), {3: 2})
    assert requests.read() == {1: 0, 3: 2}
    remove_requests(locate_requests(lake), [1, 3])
    assert requests.read() == {}


def read_column(path: LakePath, name: str) -> list[object]:
    with open_parquet(path) as file:
        found: list[object] = file.read([name])[name].to_pylist()
        return found


def test_dead_letters(place):
    refused = RefusedRows(table([row(1, 1, b"a")]), [Refusal(1, "no such key")])
    for _ in range(2):  # the second attempt of the batch replaces the files of the first
        with dead_letters.DeadLetterFile(place, "run") as letters:
            letters.write(refused)
            written = letters.close()
        assert written is not None
        dead_letters.commit_letters(place, "run", "7", [written])
    (path,) = place.rglob("*")
    assert path.name == "batch-7-part-00000.parquet"
    assert read_column(path, "error_batch") == ["7"]


def test_store_that_stays_away_is_one_sentence_without_secrets(network, lake, monkeypatch):
    with pytest.raises(Unreachable, match=r"^s3://no-such-bucket/lake/[a-z_/]*: NoSuchBucket"):
        Lake("s3://no-such-bucket/lake").current()
    with pytest.raises(UsageError, match="credentials in the environment") as refused:
        Lake(f"s3://user:{SECRET}@{BUCKET}/x")
    assert SECRET not in str(refused.value)


def test_credentials_of_files(tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"\ufeff[default]\naws_access_key_id = a\naws_secret_access_key = {SECRET}\n[other]\naws_access_key_id = b\n"
    )
    (tmp_path / ".aws" / "config").write_text("[default]\nregion = eu-west-1\n[profile other]\nregion = eu-west-2\n")
    home = {"HOME": str(tmp_path)}
    assert find_store_options("s3://b", home) == {
        "aws_access_key_id": "a", "aws_secret_access_key": SECRET, "aws_region": "eu-west-1"
    }  # fmt: skip
    assert find_store_options("s3://b", home | {"AWS_PROFILE": "other", "AWS_REGION": "x"}) == {
        "aws_access_key_id": "b"
    }
    assert find_store_options("s3://b", home | {"AWS_ACCESS_KEY_ID": "c"}) == {}
    assert find_store_options("gs://b", home) == {}
    (tmp_path / ".aws" / "credentials").write_text(f"aws_secret_access_key = {SECRET}\n")
    with pytest.raises(UsageError, match="cannot be read; expected sections") as refused:
        find_store_options("s3://b", home)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "HEAD", "DELETE"])
def test_each_request_survives_each_fault(network, place, method, fault):
    """Each operation has the effect of one, although its first requests of a method are spoilt."""

    def check(operation):
        spoil_next(network, fault, 2, method)
        found = operation()
        network.choose = lambda method, path, body: None
        return found

    data = random.Random(1).randbytes(3_000_000)  # more than is read at once
    large = pa.table({"key": [data[at : at + 100] for at in range(0, len(data), 100)]})

    def write_large():
        sink = open_sink(place / "large.parquet")
        pq.write_table(large, sink, compression="none")
        close_sink(sink)

    def read_large():
        with open_parquet(place / "large.parquet") as file:
            return file.read()

    check(lambda: (place / "small").write_text("text" * 1000))
    assert check((place / "small").read_text) == "text" * 1000
    assert check(lambda: (place / "small").stat().st_size) == 4000
    check(write_large)
    assert check(read_large) == large
    for number in range(20):
        (place / "many" / f"{number:02}").write_text("x")
    assert [each.name for each in check(lambda: list((place / "many").rglob("*")))] == [f"{n:02}" for n in range(20)]
    assert len(check(lambda: list((place / "many").iterdir()))) == 20
    check(lambda: replace_file(place / "many" / "00", place / "moved"))
    assert (place / "moved").read_text() == "x"
    check((place / "many" / "01").unlink)
    check((place / "many").remove_tree)
    assert not (place / "many").exists()
