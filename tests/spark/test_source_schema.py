"""The schema and the rows of `format("dcp")`: the whole bucket, chosen columns, values as JSON."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import UsageError
from penstock.node import Node
from penstock.spark.runtime.data_source import DcpDataSource
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.client.test_collections import change
from tests.spark.buckets import Documents, Proxy, compact, numbered, read_batch
from tests.spark.test_protocols import contents

BEERS = {f"beer-{number}": compact({"name": f"No. {number}", "abv": number / 10}) for number in range(20)}


@pytest.fixture
def collections():
    """Return a bucket with documents in its default collection and in another collection."""
    with Node.running(["beer"], vbuckets=4) as node, Documents.of(node.url("beer")) as documents:
        change(node, lambda manifest: manifest.with_scope("inventory"))
        change(node, lambda manifest: manifest.with_collection("inventory", "hotel"))
        documents.store(numbered(0, 30))
        hotels = [(f"hotel-{number}", b"{}") for number in range(20)]
        documents.loop.run(documents.bucket.upsert_many(hotels, collection="inventory.hotel"))
        yield documents


def count_by_collection(rows):
    mutations = rows.filter(pa.compute.equal(rows["event"], "mutation"))
    groups = mutations.group_by(["collection_id", "scope", "collection"]).aggregate([([], "count_all")])
    return {(row["collection_id"], row["scope"], row["collection"]): row["count_all"] for row in groups.to_pylist()}


class TestBucketRows:
    def test_are_from_all_collections(self, collections, follow):
        for rows in (read_batch(collections.url), *follow(collections.url).all()):
            found = count_by_collection(rows)
            assert found.pop((0, "_default", "_default")) == 30
            assert [(names[1:], count) for names, count in found.items()] == [(("inventory", "hotel"), 20)]
            events = set(rows["event"].to_pylist())
            assert events == {"mutation", "create_scope", "begin_collection"}

    @pytest.mark.parametrize("protocol", ["tap", "upr-draft", "upr"])
    def test_are_from_the_default_collection_in_dialects_without_collections(self, collections, protocol):
        assert count_by_collection(read_batch(collections.url, protocol=protocol)) == {(None, None, None): 30}

    def test_may_be_from_chosen_collections(self, collections, follow):
        for chosen in (
            {"scope": "inventory"},
            {"collections": "inventory.hotel"},
            {"scope": "inventory", "collections": "hotel"},
        ):
            for rows in (read_batch(collections.url, **chosen), *follow(collections.url, **chosen).all()):
                assert [(names[1:], count) for names, count in count_by_collection(rows).items()] == [
                    (("inventory", "hotel"), 20)
                ]
        only = read_batch(collections.url, collections="_default")
        assert count_by_collection(only) == {(0, "_default", "_default"): 30}

    def test_of_an_unknown_scope_are_refused(self, collections):
        with pytest.raises(UsageError, match="the bucket has no scope 'nowhere'"):
            read_batch(collections.url, scope="nowhere")


class TestChosenColumns:
    @pytest.mark.parametrize("protocol", ["tap", "upr-draft", "upr", "dcp"])
    def test_are_the_only_columns_of_rows(self, documents, protocol):
        documents.store(numbered(0, 50))
        rows = read_batch(documents.url, columns="key,event,seqno", protocol=protocol)
        assert rows.schema.names == ["key", "event", "seqno"]
        assert {*rows["key"].to_pylist()} == {key.encode() for key in documents.keys}
        keys_only = read_batch(documents.url, keysOnly="true", protocol=protocol)
        assert keys_only.schema.names == [name for name in CHANGE_SCHEMA.names if name not in ("value", "xattrs")]

    def test_without_the_value_need_no_values_from_the_node(self, node, documents, follow):
        documents.store(numbered(0, 200, size=1_000))
        with Proxy.before(node.kv_port) as proxy:
            (rows,) = follow(proxy.url, columns="key,seqno").all()
            assert rows.num_rows == 200
            assert proxy.passed < 200 * 400  # most of these bytes are for planning

    def test_that_differ_from_the_schema_of_spark_are_refused(self, documents):
        source = DcpDataSource({"url": documents.url})
        with pytest.raises(
            UsageError, match=r"schema struct<key:binary>, expected that of the options, struct<vbucket:"
        ):
            source.reader(StructType().add("key", "binary"))

    def test_may_be_limited_to_rows_with_matching_keys(self, documents, follow):
        documents.store(numbered(0, 50))
        for rows in (read_batch(documents.url, keyPattern="^key-1"), *follow(documents.url, keyPattern="^key-1").all()):
            assert len(contents(rows)) == 11

    def test_may_leave_out_all_changes_of_matching_keys(self, documents, follow):
        documents.store(numbered(0, 50) | {"_txn:atr-84-#1349": b"{}", "_txn:client-record": b"\0"})
        documents.remove(["_txn:atr-84-#1349", "key-1"])
        options = {"keyPatternExclude": "^_txn:"}
        whole = read_batch(documents.url)
        expected = contents(whole.filter(pa.compute.invert(pa.compute.starts_with(whole["key"], "_txn:"))))
        followed = follow(documents.url, **options)
        for rows in (read_batch(documents.url, **options), *followed.all()):
            assert contents(rows) == expected
            assert "deletion" in rows["event"].to_pylist()
        documents.store({"_txn:client-record": b"\1"})
        assert [rows.num_rows for rows in followed.all()] == [0]  # the position moves over it


class TestValueFormats:
    def test_as_text(self, documents):
        documents.store({"a": "ä".encode(), "b": b"\xff"})
        rows = read_batch(documents.url, valueFormat="string", columns="key,value")
        assert {row["key"]: row["value"] for row in rows.to_pylist()} == {b"a": "ä", b"b": None}

    def test_as_fields(self, documents, follow):
        documents.store(BEERS)
        options = {"valueFormat": "json", "valueSchema": "name STRING, abv DOUBLE", "columns": "key,value"}
        for rows in (read_batch(documents.url, **options), *follow(documents.url, **options).all()):
            assert {compact(row["value"]): row["value_rest"] for row in rows.to_pylist()} == dict.fromkeys(
                BEERS.values()
            )

    def test_as_inferred_fields(self, documents, follow):
        documents.store(BEERS)
        documents.store({"other": b"no JSON"})
        options = {"valueFormat": "json", "valueSchema": "infer"}
        source = DcpDataSource({"url": documents.url, **options})
        fields = source.schema()["value"].dataType
        assert isinstance(fields, StructType)
        assert {field.name: field.dataType.simpleString() for field in fields} == {"name": "string", "abv": "double"}
        for rows in (read_batch(documents.url, **options), *follow(documents.url, **options).all()):
            found = {row["key"]: row["value"] for row in rows.to_pylist()}
            assert {key.encode(): value for key, value in BEERS.items()} == {
                key: compact(value) for key, value in found.items() if key != b"other"
            }

    def test_as_fields_inferred_from_matching_keys_only(self, documents):
        documents.store({**BEERS, "brewery": b'{"city": "x"}'})
        options = {"url": documents.url, "valueFormat": "json", "valueSchema": "infer", "keyPattern": "^brew"}
        assert to_arrow_schema(DcpDataSource(options).schema()).field("value").type == pa.struct(
            [("city", pa.string())]
        )

    def test_that_are_not_json_have_no_fields(self, documents):
        documents.store({"other": b"no JSON"})
        source = DcpDataSource({"url": documents.url, "valueFormat": "json", "valueSchema": "infer"})
        with pytest.raises(UsageError, match="no JSON objects to infer option valueSchema from; expected it as DDL"):
            source.schema()
