"""A bucket that is written from a lake's changelog: it equals the source, also after rollbacks."""

import itertools
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.client.documents.window_writer import WriteCounts
from penstock.errors import Error, UsageError
from penstock.node import Node
from penstock.spark import Lake
from penstock.spark.dependents.kinds import xdcr_target as follow
from penstock.spark.dependents.kinds.xdcr_target import XdcrTarget, XdcrTargetKind, replicate
from penstock.spark.dependents.position_file import PositionFile
from penstock.spark.lake.changelog import changelog_writer as changelog
from penstock.spark.lake.changelog.changelog_delta import find_delta
from penstock.spark.pipeline.definition.definition import define_bucket_pipeline
from penstock.spark.pipeline.run.dependent_tasks import create_tasks
from penstock.spark.sink import dead_letters
from tests.examples import scaled
from tests.spark.buckets import Documents, numbered
from tests.spark.lakes import QUERY, VBUCKETS, append, model, rollback, row


class Source:
    """A bucket's changes, in the form in which a changelog receives them.

    Attributes:
        times: gives the CAS of each change; it increases over all sources.
        lake: the lake that receives the changes.
        name: prefix of all keys.
        rows: all changes and rollbacks, in their order.
        written: number of rows in the changelog.
        batches: number of batches in the changelog.
        branches: vbucket -> its history, and its changes that were not rolled back.
    """

    times = itertools.count(1 << 40)

    def __init__(self, lake, name=""):
        self.lake = lake
        self.name = name
        self.rows = []
        self.written = self.batches = 0
        self.branches = {}

    def find_branch(self, vbucket):
        return self.branches.setdefault(vbucket, [0, []])

    def change(self, vbucket, number, value=b"", event="mutation", **more):
        history, log = self.find_branch(vbucket)
        key = f"{self.name}{vbucket}-{number}".encode()
        before = [each for each in log if each["key"] == key]
        if event != "mutation" and not (before and before[-1]["event"] == "mutation"):
            return
        seqno = log[-1]["seqno"] + 1 if log else 1
        rev_seqno = before[-1]["rev_seqno"] + 1 if before else 1
        columns = {"history": history, "rev_seqno": rev_seqno, "cas": next(self.times), **more}
        log.append(row(vbucket, seqno, key, value, event, **columns))
        self.rows.append(log[-1])

    def roll_back(self, vbucket, changes):
        branch = self.find_branch(vbucket)
        del branch[1][max(0, len(branch[1]) - changes) :]
        branch[0] += 1
        self.rows.append(rollback(vbucket, branch[1][-1]["seqno"] if branch[1] else 0, branch[0]))

    def commit(self):
        fresh, self.written = self.rows[self.written :], len(self.rows)
        append(self.lake, self.batches, fresh)
        self.batches += 1

    def expected(self):
        return {key: document for (_, _, key), document in model(self.rows).items()}

    def keys(self):
        return {each["key"].decode() for each in self.rows if each.get("key")}


def contents(documents, source):
    documents.keys = source.keys()
    return documents.contents()


@pytest.fixture
def source(lake):
    return Source(lake)


@pytest.fixture
def target(documents):
    return {"url": documents.url}


def test_target_equals_the_changelog(source, documents, target):
    for number in range(500):
        source.change(number % VBUCKETS, number, b"%d" % number, flags=5)
    source.commit()
    done = replicate(source.lake, target)
    assert done.counts == WriteCounts(written=500)
    assert contents(documents, source) == source.expected()
    assert replicate(source.lake, target) == (done.version, WriteCounts())
    source.change(3, 3, b"new")
    source.change(4, 4, event="deletion")
    source.change(5, 5, event="expiration")
    source.commit()
    assert replicate(source.lake, target) == (done.version + 1, WriteCounts(written=3))
    assert contents(documents, source) == source.expected()
    everything = replicate(source.lake, target, name="another")
    assert everything.counts == WriteCounts(older=500)  # the bucket has them already
    assert contents(documents, source) == source.expected()


def test_rollback_removes_lost_versions_from_the_target(source, documents, target):
    source.change(1, 0, b"kept")
    source.change(1, 1, b"first")
    source.commit()
    replicate(source.lake, target)
    for _ in range(3):
        source.change(1, 1, b"lost")
        source.change(1, 2, b"lost")
        source.change(1, 3, b"lost, but another's now")
        source.commit()
        replicate(source.lake, target)
    documents.store({"1-3": b"another's"})
    source.roll_back(1, 9)
    source.commit()
    replicate(source.lake, target)
    found = contents(documents, source)
    assert found.pop(b"1-3")[1] == b"another's"
    assert found == source.expected()
    assert {value for _, value in found.values()} == {b"kept", b"first"}
    source.change(1, 2, b"anew")  # again the first version of this key
    source.commit()
    replicate(source.lake, target)
    assert contents(documents, source)[b"1-2"] == source.expected()[b"1-2"]


@pytest.mark.parametrize(("lost", "left"), [("remove", {b"1-0"}), ("keep", {b"1-0", b"1-1"})])
def test_pipeline_option_lost_keeps_or_removes_versions(source, documents, lost, left):
    sink = XdcrTargetKind(name="copy", url=documents.url, operation="change", lost=lost)
    source.change(1, 0, b"kept")
    source.change(1, 1, b"lost")
    source.commit()
    definition = replace(define_bucket_pipeline(str(source.lake.path)), dependents=(sink,))
    for _ in range(2):
        *_, task = create_tasks(definition, definition.sources[0], source.lake)
        task.run()
        (progress,) = task.list_progress()
        assert (progress.name, progress.error) == ("copy", None)
        source.roll_back(1, 1)
        source.commit()
    assert contents(documents, source).keys() == left


def test_rollback_removes_lost_keys_with_operation_change(source, documents, target):
    target["operation"] = "change"
    source.change(1, 0, b"kept")
    source.change(1, 1, b"lost")
    source.change(1, 2, b"lost")
    source.commit()
    replicate(source.lake, target)
    documents.store({"1-2": b"another's"})
    source.roll_back(1, 2)
    source.commit()
    assert replicate(source.lake, target).counts == WriteCounts(written=3)
    assert {key: value for key, (_, value) in contents(documents, source).items()} == {b"1-0": b"kept"}


def test_transformation_for_operation_change_needs_no_metadata(source, documents, target, monkeypatch):
    monkeypatch.setattr(follow, "_run_transform", lambda _, rows, __: rows.select(["key", "value", "event"]))
    target["operation"] = "change"
    source.change(1, 0, b"kept")
    source.change(1, 1, b"lost")
    source.commit()
    replicate(source.lake, target, transform="SELECT key, value, event FROM changes")
    source.change(1, 0, b"lost", event="deletion")
    source.roll_back(1, 2)
    source.commit()
    replicate(source.lake, target, transform="SELECT key, value, event FROM changes")
    assert {key: value for key, (_, value) in contents(documents, source).items()} == {b"1-0": b"kept"}


def test_documents_of_an_ended_collection_are_removed(source, documents, target):
    target |= {"scope": "_default", "collection": "_default"}
    named = {"collection_id": 9, "scope": "shop", "collection": "hats"}
    source.change(1, 0, b"stays")
    source.change(1, 1, b"goes", **named)
    source.change(1, 1, b"goes, too", **named)
    source.commit()
    replicate(source.lake, target)
    assert len(contents(documents, source)) == 2
    source.rows.append(row(1, 9, None, None, "end_collection", collection_id=9))
    source.commit()
    replicate(source.lake, target)
    assert contents(documents, source).keys() == {b"1-0"}


STEPS = st.one_of(
    st.tuples(st.sampled_from(["set", "set", "delete"]), st.integers(0, 2), st.integers(0, 3)),
    st.tuples(st.just("roll back"), st.integers(0, 2), st.integers(0, 6)),
    st.tuples(st.sampled_from(["commit", "replicate", "replicate half"]), st.none(), st.none()),
)
NAMES = itertools.count()


@settings(max_examples=scaled(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=40), st.sampled_from(["with-meta", "change"]))
def test_target_equals_the_source_after_any_steps(tmp_path, documents, target, steps, operation):
    name, target = f"{next(NAMES)}:", {**target, "operation": operation}
    source = Source(Lake(tmp_path / name), name)
    for command, vbucket, number in [*steps, ("commit", None, None), ("replicate", None, None)]:
        if command == "set":
            source.change(vbucket, number, b"%d" % len(source.rows))
        elif command == "delete":
            source.change(vbucket, number, event="deletion")
        elif command == "roll back":
            source.roll_back(vbucket, number)
        elif command == "commit":
            source.commit()
        elif command == "replicate half":
            replicate_half(source, target)
        else:
            replicate(source.lake, target)
    found, expected = contents(documents, source), source.expected()
    if operation == "change":  # the target gives each version its own CAS
        found, expected = ({key: (0, value) for key, (_, value) in each.items()} for each in (found, expected))
    assert found == expected


class ReplicationCrash(Exception):
    """Ends a replication, in place of the end of the process."""


def replicate_half(source, target):
    """Apply the delta, and crash before the position is stored."""

    class CrashingPositionFile(PositionFile):
        def write(self, changelog_id, version):
            raise ReplicationCrash

    replica = XdcrTarget(source.lake, "replica", target)
    replica._position_file = CrashingPositionFile(replica.path, "")
    delta = find_delta(source.lake, replica.position())
    if delta is not None:
        with pytest.raises(ReplicationCrash):
            replica.apply_delta(delta)


class BucketWithLake:
    """A bucket and its lake, from which changes are replicated to another bucket.

    Attributes:
        documents: the bucket.
        lake: the lake with the changes of the bucket.
        changes: reads the changes of the bucket.
        batches: number of batches in the changelog.
    """

    def __init__(self, documents, lake, follow):
        self.documents, self.lake = documents, lake
        self.changes = follow(documents.url, xattrs="true")
        self.batches = 0

    def write_changelog(self):
        for table in self.changes.all():
            files = changelog.write_files(table.to_batches(), self.lake.changelog_table.path, 16)
            changelog.commit_batch(self.lake, QUERY, self.batches, files, vbuckets=16)
            self.batches += 1

    def replicate(self, other, **how):
        self.write_changelog()
        return replicate(self.lake, {"url": other.documents.url}, **how).counts

    def newest(self):
        return {key: (cas, value) for key, (cas, value) in self.documents.contents().items()}


@pytest.mark.long
def test_two_buckets_converge_by_replication_to_each_other(documents, tmp_path, follow):
    with Node.running(["default"], vbuckets=16) as other, Documents.of(other.url("default")) as others:
        one, two = (
            BucketWithLake(documents, Lake(tmp_path / "one"), follow),
            BucketWithLake(others, Lake(tmp_path / "two"), follow),
        )
        documents.store(numbered(0, 100, "one"))
        others.store(numbered(50, 150, "two"))
        others.remove(["key-60"])
        documents.keys = others.keys = set(numbered(0, 150))

        def replicate_until_equal():
            for _ in range(2):
                one.replicate(two, lost="keep")
                two.replicate(one, lost="keep")
            assert one.replicate(two, lost="keep").written == two.replicate(one, lost="keep").written == 0
            assert one.newest() == two.newest()
            return one.newest()

        before = replicate_until_equal()
        assert len(before) == 149
        documents.flush()  # like a rollback to 0
        documents.store({"key-0": b"after"})
        one.replicate(two, lost="keep")
        assert len(others.contents()) == 149
        two.replicate(one, lost="keep", name="everything")  # again from the first change
        assert replicate_until_equal().keys() == before.keys()


def test_refused_rows_raise_or_become_dead_letters(source, documents, target, tmp_path):
    source.change(1, 0, b"good")
    source.change(1, 1, b"bad", cas=0)
    source.commit()
    with pytest.raises(
        Error, match=r"1 of 2 rows .* were refused; the first is key b'1-1': EINVAL.* \(vbucket 1, seqno \d+\)"
    ):
        replicate(source.lake, target)
    assert XdcrTarget(source.lake, "replica", target).position() is None
    letters = tmp_path / "letters"
    target |= {"errors": "deadletter", "deadLetterPath": str(letters)}
    for _ in range(2):
        assert replicate(source.lake, target, state=tmp_path).counts.failed == 1
        (tmp_path / "replica.json").unlink()
    opened = source.lake.changelog_table.open()
    assert opened is not None
    batch = f"replica-{opened.metadata().id[:8]}"
    assert pq.read_table(letters)["error_batch"].to_pylist() == [f"{batch}-000000000"]


def test_later_attempt_writes_each_dead_letter_once(source, documents, target, tmp_path, monkeypatch):
    letters = tmp_path / "letters"
    target |= {"errors": "deadletter", "deadLetterPath": str(letters)}
    source.change(1, 0, b"good")
    source.commit()
    replicate(source.lake, target)

    def crash(*_):
        raise KeyboardInterrupt

    for number in (1, 2):
        source.change(1, number, b"bad", cas=0)
        source.commit()
        with monkeypatch.context() as here:
            here.setattr(PositionFile, "write", crash)
            with pytest.raises(KeyboardInterrupt):
                replicate(source.lake, target)
    with monkeypatch.context() as here:
        here.setattr(dead_letters, "commit_letters", crash)
        here.setattr(dead_letters, "discard_letters", lambda *_: None)  # as if killed
        with pytest.raises(KeyboardInterrupt):
            replicate(source.lake, target)
    assert (letters / "_staging").exists()
    replicate(source.lake, target)
    refused = pq.read_table(letters)
    assert sorted(refused["key"].to_pylist()) == [b"1-1", b"1-2"]
    assert not (letters / "_staging").exists()
    assert {batch[-10:] for batch in refused["error_batch"].to_pylist()} == {"-000000001"}


def test_invalid_target_is_refused(lake, tmp_path):
    for name in ("", "a/b", ".."):
        with pytest.raises(UsageError, match="expected"):
            XdcrTarget(lake, name, {})
    with pytest.raises(UsageError, match="operation insert of an XDCR target, expected with-meta or change"):
        XdcrTarget(lake, "r", {"operation": "insert"})
    with pytest.raises(UsageError, match="lost is 'kept', expected 'remove' or 'keep'"):
        XdcrTarget(lake, "r", {}, lost="kept")  # type: ignore[arg-type]
    assert replicate(lake, {}) == (-1, WriteCounts())
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(Error, match="is not a position file; remove it"):
        XdcrTarget(lake, "r", {}, state=tmp_path).position()
