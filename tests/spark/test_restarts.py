"""A node restarts during a query: the planner and the tasks wait until the node serves its bucket again."""

from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pytest

from penstock import BucketRecreated, Node
from penstock.errors import NoSuchCollection
from penstock.spark.lake.changelog.merge_rules import merge_changes
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.spark.source import readers
from penstock.spark.source.readers import latest_offsets
from tests.client.restarting import STAGES, InterruptingServer, RestartingServer
from tests.client.test_collections import change
from tests.spark.buckets import Documents, MicroBatches, numbered, planned, read_batch, read_partitions
from tests.spark.test_protocols import fail_over


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=4) as node:
        yield node


def test_query_continues_after_a_restart(node, follow):
    with RestartingServer(node) as server, Documents.of(node.url("beer")) as documents:
        documents.store({"before": b"v"})
        query: MicroBatches = follow(server.url())
        assert keys_of(query.all()) == [b"before"]
        server.restart()
        documents.store({"after": b"v"})
        assert keys_of(query.all()) == [b"after"]
        assert server.has_restarted


@pytest.mark.parametrize("stage", STAGES)
def test_task_waits_at_every_stage_of_a_restart(node, follow, stage, monkeypatch):
    """The node restarts between the plan of a batch and its read."""
    with RestartingServer(node) as server, Documents.of(node.url("beer")) as documents:
        query: MicroBatches = follow(server.url())
        query.all()
        documents.store({"k": b"v"})
        partitions = query.reader.partitions

        def restart_first(start, end):
            planned = partitions(start, end)
            server.restart(stage)
            return planned

        monkeypatch.setattr(query.reader, "partitions", restart_first)
        table = query.step()
        assert table is not None
        assert keys_of([table]) == [b"k"]
        assert server.met[stage]


class TestNewBranchesWithoutLoss:
    """A server that was killed after it persisted everything: each vbucket has a new branch at its high seqno."""

    @staticmethod
    def crash(node: Node) -> None:
        for vbucket in range(4):
            fail_over(node, vbucket, node.buckets["default"].store.vbuckets[vbucket].changes.high_seqno)

    @pytest.fixture
    def default_node(self):
        with Node.running(["default"], vbuckets=4) as node, Documents.of(node.url("default")) as documents:
            yield node, documents

    def test_next_run_reads_only_new_changes(self, default_node, follow):
        """The last offset of a run lacked the proof of its last batch, so the next run read the whole bucket again."""
        node, documents = default_node
        documents.store(numbered(0, 100))
        query: MicroBatches = follow(documents.url)
        assert [table.num_rows for table in query.run_available()] == [100, 0]
        assert query.run_available() == []
        self.crash(node)
        assert query.run_available() == []
        documents.store(numbered(100, 103))
        self.crash(node)
        assert [table.num_rows for table in query.run_available()] == [3, 0]

    def test_idle_query_stores_its_proofs_once(self, default_node, follow, monkeypatch):
        node, documents = default_node
        documents.store(numbered(0, 100))
        query: MicroBatches = follow(documents.url)
        assert [table.num_rows for table in query.all()] == [100]
        assert query.step() is None
        monkeypatch.setattr(readers, "_PROOF_SECONDS", 0)
        assert [table.num_rows for table in query.all()] == [0]
        assert query.step() is None
        self.crash(node)
        query.restart()
        assert query.all() == []

    def test_query_without_a_stored_proof_reads_its_last_batch_again(self, default_node, follow):
        node, documents = default_node
        documents.store(numbered(0, 100))
        query: MicroBatches = follow(documents.url)
        assert [table.num_rows for table in query.all()] == [100]
        self.crash(node)
        query.restart()
        assert [table.num_rows for table in query.all()] == [104]  # and a rollback row for each vbucket


def test_query_finds_a_bucket_that_was_created_again(follow):
    """The node loses its bucket, also while the query is not running; without a uuid a position is of any bucket."""
    with Node.running(["beer"], vbuckets=4) as node, Documents.of(node.url("beer")) as documents:
        documents.store({"before": b"v"})
        port = node.kv_port
        queries: dict[str, MicroBatches] = {
            "fail": follow(documents.url),
            "rollback": follow(documents.url, recreatedBucket="rollback"),
        }
        for query in queries.values():
            assert keys_of(query.all()) == [b"before"]
        (first,) = {query.start["bucket_uuid"] for query in queries.values()}
    with Node.running(["beer"], vbuckets=4, port=port) as node, Documents.of(node.url("beer")) as documents:
        documents.store({"after": b"v"})
        for _ in range(2):
            with pytest.raises(BucketRecreated, match=f"expected {first}, and option recreatedBucket is 'fail'"):
                queries["fail"].step()
            queries["fail"].restart()
        (rows,) = queries["rollback"].all()
        assert {*rows["event"].to_pylist()} == {"rollback", "mutation"}
        second = queries["rollback"].start["bucket_uuid"]
        del queries["fail"].start["bucket_uuid"]
        assert queries["fail"].all()
        assert queries["fail"].start["bucket_uuid"] == second != first


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_of_another_bucket_are_refused(follow, option):
    """The offsets of latest_offsets have the uuid of their bucket, in batch reads and in streams."""
    with Node.running(["beer", "other"], vbuckets=4) as node, Documents.of(node.url("beer")) as documents:
        documents.store({"k": b"v"})
        found = latest_offsets({"url": documents.url})
        other = {"url": node.url("other"), option: found}
        assert read_batch(documents.url, endingOffsets=found)["key"].to_pylist() == [b"k"]
        with pytest.raises(BucketRecreated, match="is another bucket than before"):
            read_batch(**other)
        if option == "startingOffsets":
            with pytest.raises(BucketRecreated, match="is another bucket than before"):
                follow(**other).step()
            read_batch(**other, recreatedBucket="rollback")


def test_query_survives_the_end_of_a_selected_collection(follow):
    """Between two batches the collection is dropped, and created again with other documents."""
    with Node.running(["beer"], vbuckets=2) as node, Documents.of(node.url("beer")) as documents:

        def store(collection: str, *keys: str) -> None:
            documents.loop.run(documents.bucket.upsert_many([(key, b"v") for key in keys], collection=collection))

        for name in ("ales", "stouts", "rest"):
            change(node, lambda manifest, name=name: manifest.with_collection("_default", name))
        store("ales", *(f"old-{n}" for n in range(9)))
        store("stouts", "stout")
        query: MicroBatches = follow(documents.url, collections="ales,stouts")
        tables = query.all()
        first = {*tables[0]["collection_id"].to_pylist()}
        change(node, lambda manifest: manifest.without_collection("_default", "ales"))
        store("stouts", "second")
        tables += query.all()
        assert current_keys(tables) == ["second", "stout"]
        change(node, lambda manifest: manifest.with_collection("_default", "ales"))
        change(node, lambda manifest: manifest.without_collection("_default", "ales"))
        change(node, lambda manifest: manifest.with_collection("_default", "ales"))
        store("ales", "new", "old-3")
        store("rest", "other")
        query.restart()
        tables += query.all()
        assert current_keys(tables) == ["new", "old-3", "second", "stout"]
        assert {*tables[-1]["collection_id"].to_pylist()} - first
        change(node, lambda manifest: manifest.without_collection("_default", "ales"))
        change(node, lambda manifest: manifest.without_collection("_default", "stouts"))
        tables += query.all()
        assert current_keys(tables) == []
        assert query.all() == []
        with pytest.raises(NoSuchCollection, match=r"the bucket has no collection '_default\.ales'"):
            follow(documents.url, collections="ales").step()


DROPPED = [
    ({"collections": "s.ales,s.stouts"}, ["ales"], ["second", "stout"]),
    ({"collections": "s.ales,s.stouts"}, ["ales", "stouts"], []),
    ({"scope": "s"}, [], []),
]


@pytest.fixture
def collections(node):
    """The collections s.ales and s.stouts of the node, with documents."""
    with InterruptingServer(node) as server, Documents.of(node.url("beer")) as documents:
        collections = DroppedCollections(node, server, documents)
        change(node, lambda manifest: manifest.with_scope("s"))
        collections.create("ales", "stouts")
        collections.store("ales", *(f"old-{n}" for n in range(9)))
        collections.store("stouts", "stout")
        yield collections


class DroppedCollections(NamedTuple):
    """Collections of the scope s that are dropped during a read, and a server that interrupts a read."""

    node: Node
    server: InterruptingServer
    documents: Documents

    def store(self, collection, *keys):
        values = [(key, b"v") for key in keys]
        self.documents.loop.run(self.documents.bucket.upsert_many(values, collection=f"s.{collection}"))

    def create(self, *names):
        for name in names:
            change(self.node, lambda manifest, name=name: manifest.with_collection("s", name))

    def drop(self, *names):
        """Drop collections; without names the whole scope."""
        for name in names:
            change(self.node, lambda manifest, name=name: manifest.without_collection("s", name))
        if not names:
            change(self.node, lambda manifest: manifest.without_scope("s"))

    def recreate(self, *names):
        """Drop collections and create them again; without names the whole scope."""
        self.drop(*names)
        if not names:
            change(self.node, lambda manifest: manifest.with_scope("s"))
        self.create(*(names or ("ales", "stouts")))


@pytest.mark.parametrize(("selected", "dropped", "left"), DROPPED, ids=str)
def test_collection_is_dropped_before_the_stream_request(collections, follow, selected, dropped, left):
    """A task has read the names, and then their ids no longer exist. Without names the whole scope is dropped."""
    server = collections.server
    query: MicroBatches = follow(server.url(), **selected)
    tables = query.all()
    collections.store("ales", "later", "old-1")
    collections.store("stouts", "second")
    server.interrupt = partial(collections.recreate, *dropped)
    tables += query.all()
    assert server.interrupt is None
    assert current_keys(tables) == left
    collections.store("ales", "new")
    tables += query.all()
    assert current_keys(tables) == sorted([*left, "new"])


@pytest.mark.parametrize("moment", ["before the task", "before its stream request"])
@pytest.mark.parametrize(("selected", "dropped", "left"), DROPPED, ids=str)
def test_batch_read_leaves_out_a_collection_that_is_dropped_meanwhile(collections, selected, dropped, left, moment):
    url = collections.server.url()
    collections.store("stouts", "second")
    partitions = planned(url, **selected)
    if moment == "before the task":
        collections.drop(*dropped)
    else:
        collections.server.interrupt = partial(collections.recreate, *dropped)
    assert current_keys([read_partitions(partitions, url, **selected)]) == left
    assert collections.server.interrupt is None


@pytest.mark.parametrize("selected", [{"collections": "s.ales,s.porters"}, {"scope": "t"}], ids=str)
def test_batch_read_of_names_that_the_bucket_does_not_have(collections, selected):
    with pytest.raises(NoSuchCollection, match=r"the bucket has no (collection 's\.porters'|scope 't')"):
        planned(collections.server.url(), **selected)


def current_keys(tables):
    rows = pa.concat_tables(tables).select(MERGE_SCHEMA.names).cast(MERGE_SCHEMA)
    return sorted(merge_changes(rows)["key"].to_pylist())


def keys_of(tables):
    return [key for table in tables for key in table["key"].to_pylist()]
