"""New snapshots of collections: compared with the bucket, while changes of all collections go on."""

from contextlib import contextmanager

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Error, LakeRefused, UsageError
from penstock.node import Node
from penstock.spark import Lake
from penstock.spark.lake.current.current_table import merge_current
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition, TableSettings
from penstock.spark.pipeline.maintenance.collection_snapshot import resnapshot_collections
from penstock.spark.source.offsets import Offset
from penstock.spark.values.json_types import from_ddl
from tests.examples import scaled
from tests.node.watch import run as in_node
from tests.spark.buckets import Documents, MicroBatches, check_changelog
from tests.spark.lakes import VBUCKETS, Row
from tests.spark.test_protocols import fail_over
from tests.spark.test_retention import commit

A, B, C = "shop.a", "shop.b", "_default._default"


class Shop:
    """A bucket with three collections, a lake, and a query between them that loses rows on request."""

    def __init__(self, node, documents, place, table_format="delta"):
        self.format = table_format
        self.node = node
        self.documents = documents
        self.lake = Lake(place, table_format)
        self.query = MicroBatches(documents.url)
        self.batches = 0
        self.contents: dict[str, dict[str, bytes]] = {A: {}, B: {}, C: {}}

    def store(self, collection, values):
        texts = {key: b'{"n": %d}' % value for key, value in values.items()}
        self.documents.loop.run(self.documents.bucket.upsert_many(texts.items(), collection=collection))
        self.contents[collection] |= texts

    def remove(self, collection, keys):
        keys = [key for key in keys if key in self.contents[collection]]
        self.documents.loop.run(self.documents.bucket.remove_many(keys, collection=collection))
        for key in keys:
            del self.contents[collection][key]

    def run(self, is_lost=lambda row: False, more=()):
        """Write the changes since the last call, without those that get lost."""
        for table in self.query.all():
            rows = [each for each in table.to_pylist() if not is_lost(each)]
            commit(self.lake, self.batches, [*rows, *more], Offset.from_json(self.query.start))
            self.batches += 1

    def declare(self, **keys):
        source = SourceDefinition(
            name="s", reader_options={"url": self.documents.url, **keys.pop("options", {})}, **keys
        )
        return PipelineDefinition(lake=str(self.lake.path), sources=(source,), tables=TableSettings(format=self.format))

    def read_contents(self):
        """Read the documents of an earlier test."""
        keys = [f"k{n}" for n in range(200)] + ["new"]
        for collection in self.contents:
            found = self.documents.loop.run(self.documents.bucket.get_many(keys, collection=collection))
            self.contents[collection] = {k: each.value for k, each in zip(keys, found, strict=True) if each is not None}

    def resnapshot(self, *collections, **keys):
        return resnapshot_collections(self.declare(**keys), collections)

    def read(self, collection):
        """Return the documents of a collection in the tables, and fail if one is there twice."""
        rows = [
            each for each in self.lake.current().to_pylist() if f"{each['scope']}.{each['collection']}" == collection
        ]
        found = {each["key"]: each["value"] for each in rows}
        assert len(found) == len(rows)
        return found


@contextmanager
def open_shop(place):
    with Node.running(["default"], vbuckets=VBUCKETS) as node, Documents.of(node.url("default")) as documents:
        bucket = node.buckets["default"]

        def create_collections():
            bucket.change_manifest(bucket.store.manifests.current.with_scope("shop"))
            for name in ("a", "b"):
                bucket.change_manifest(bucket.store.manifests.current.with_collection("shop", name))

        in_node(node, create_collections)
        yield Shop(node, documents, place)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    with open_shop(tmp_path_factory.mktemp("shop")) as shop:
        yield shop


@pytest.fixture
def shop(request, bucket, tmp_path):
    """A shop whose bucket has documents, in a lake of its own."""
    shop = Shop(bucket.node, bucket.documents, tmp_path / "lake", getattr(request, "param", "delta"))
    shop.read_contents()
    for collection in (A, B, C):
        for turn in range(3):  # later versions leave seqnos that no change has
            shop.store(collection, {f"k{n}": 100 * turn + n for n in range(40)})
    return shop


def is_of(*collections):
    return lambda row: f"{row['scope']}.{row['collection']}" in collections and row["event"] == "mutation"


@pytest.mark.parametrize("shop", ["delta", "iceberg"], indirect=True)
def test_only_the_collection_is_read_again(shop):
    shop.run(is_of(A, B))
    merge_current(shop.lake)
    assert shop.read(A) == shop.read(B) == {}
    others = shop.lake.current().filter(pa.compute.equal(shop.lake.current()["collection_id"], 0)).sort_by("key")
    found = shop.resnapshot("shop.a")
    count = len(shop.contents[A])
    assert (found.collections, found.documents, found.added, found.removed) == (("shop.a",), count, count, 0)
    assert shop.read(A) == shop.contents[A]
    assert shop.read(B) == {}
    assert shop.read(C) == shop.contents[C]
    again = shop.lake.current()
    assert again.filter(pa.compute.equal(again["collection_id"], 0)).sort_by("key").equals(others)
    assert shop.resnapshot("shop.a").added == 0
    version = shop.lake.changelog_table.open().version()
    assert shop.resnapshot("shop.a", "_default").added == 0
    assert shop.lake.changelog_table.open().version() == version
    assert shop.resnapshot("shop.a", "shop.b", "_default._default").added == len(shop.contents[B])
    assert shop.read(B) == shop.contents[B]
    shop.store(A, {"k1": 7, "new": 8})
    shop.remove(B, ["k2"])
    shop.run()
    check_changelog(shop.lake)
    assert all(shop.read(each) == shop.contents[each] for each in (A, B, C))


def test_documents_that_no_longer_exist_vanish(shop):
    shop.run()
    marked = TypedTable(shop.lake, TableShape(
        name="a", fields=from_ddl("n BIGINT"), scope="shop", collection="a", deletes="mark"
    ))  # fmt: skip
    # The tables have documents that the bucket does not have, also with the oldest seqnos.
    rows = check_changelog(shop.lake).to_pylist()
    sample = [each for each in rows if is_of(A, B)(each)]
    used = {(each["vbucket"], each["seqno"]) for each in rows}
    ghosts: list[Row] = []
    for each in sample[::7]:
        free = next(n for n in range(1, 500) if (each["vbucket"], n) not in used)
        used.add((each["vbucket"], free))
        ghosts.append(each | {"key": b"ghost-%d" % len(ghosts), "seqno": free})
    shop.store(C, {"k1": 5})
    shop.run(more=ghosts)
    marked.merge()
    assert shop.read(A) != shop.contents[A]
    lost = sum(is_of(A)(each) for each in ghosts)
    found = shop.resnapshot("shop.a")
    assert (found.added, found.removed) == (0, lost)
    assert shop.read(A) == shop.contents[A]
    assert len(shop.read(B)) == len(shop.contents[B]) + len(ghosts) - lost
    check_changelog(shop.lake)
    opened = marked.table.open()
    assert opened is not None
    lines = opened.to_pyarrow_table().to_pylist()
    assert {each["_key"] for each in lines if not each["_deleted"]} == shop.contents[A].keys()
    assert sum(each["_deleted"] for each in lines) == lost


def test_requests_that_cannot_be_met(shop):
    with pytest.raises(UsageError, match="has no position yet; expected the lake of a pipeline that has run"):
        shop.resnapshot("shop.a")
    shop.run()
    with pytest.raises(UsageError, match=r"the bucket has no collection 'shop.c'"):
        shop.resnapshot("shop.a", "shop.c")
    with pytest.raises(UsageError, match=r"the bucket has no collection '_default.a'"):
        shop.resnapshot("a")
    with pytest.raises(UsageError, match=r"does not read the collection 'shop.b'; expected some of shop.a, _default._"):
        shop.resnapshot("shop.b", options={"collections": "shop.a,_default"})
    with pytest.raises(UsageError, match="the source has where, which only a run applies; expected --vbuckets"):
        shop.resnapshot("shop.b", where="n > 1")
    with pytest.raises(UsageError, match="source is 'other', expected s"):
        resnapshot_collections(shop.declare(), ["shop.a"], source="other")
    with hold_lock(shop.lake.path, 0), pytest.raises(LakeRefused, match="another run writes"):
        shop.resnapshot("shop.a")
    assert shop.resnapshot("a", options={"scope": "shop"}).added == 0


def test_a_rollback_is_left_to_the_run(tmp_path):
    with open_shop(tmp_path / "lake") as shop:
        shop.store(A, {f"k{n}": n for n in range(200)})
        shop.run(is_of(A))
        vbucket = shop.lake.changelog(["vbucket"])["vbucket"][0].as_py()
        fail_over(shop.node, vbucket, 1)
        files = {*shop.lake.changelog_table.path.rglob("*.parquet")}
        with pytest.raises(Error, match=f"vbucket {vbucket} of the bucket has another history than the tables; run"):
            shop.resnapshot("shop.a")
        assert {*shop.lake.changelog_table.path.rglob("*.parquet")} == files
        shop.run()
        shop.resnapshot("shop.a")
        shop.read_contents()
        assert shop.read(A) == shop.contents[A]
        assert len(shop.contents[A]) < 200


KEYS = st.sampled_from([f"k{n}" for n in range(6)])
STEPS = st.lists(
    st.tuples(st.sampled_from(["store", "remove", "run", "lose", "resnapshot"]), st.sampled_from([A, B]), KEYS),
    min_size=3,
    max_size=25,
)


@settings(max_examples=scaled(15))
@given(STEPS)
def test_tables_equal_the_bucket_after_any_changes(bucket, tmp_path_factory, steps):
    shop = Shop(bucket.node, bucket.documents, tmp_path_factory.mktemp("lake"))
    shop.read_contents()
    shop.run()
    is_exact = {A: True, B: True}
    for number, (step, collection, key) in enumerate([*steps, ("run", A, ""), ("resnapshot", A, "")]):
        if step == "store":
            shop.store(collection, {key: number})
        elif step == "remove":
            shop.remove(collection, [key])
        elif step == "run":
            shop.run()
        elif step == "lose":  # mutations and deletions
            shop.run(lambda row, of=collection: f"{row['scope']}.{row['collection']}" == of)
            is_exact[collection] = False
        else:
            other = B if collection == A else A
            before = shop.read(other)
            shop.resnapshot(collection)
            assert shop.read(other) == before
            is_exact[collection] = True
    shop.run()
    check_changelog(shop.lake)
    for collection in (A, B):
        if is_exact[collection]:
            assert shop.read(collection) == shop.contents[collection]
