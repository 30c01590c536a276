"""Typed tables of a pipeline: equal to the bucket after each run, in programs that do not know Penstock."""

import json
from decimal import Decimal

import polars as pl
import pytest

from penstock.errors import UsageError
from penstock.node import Node
from penstock.spark import Lake, compact, vacuum
from penstock.spark.pipeline.definition.definition import read_definition
from penstock.spark.pipeline.maintenance.document_selection import DocumentSelection
from penstock.spark.pipeline.maintenance.erasure import erase_documents
from penstock.spark.pipeline.run.pipeline_run import run_pipeline
from penstock.spark.pipeline.run.run_plan import plan_run
from penstock.spark.pipeline.state.lake_status import read_status
from penstock.spark.pipeline.state.resnapshot import request_resnapshot
from penstock.spark.pipeline.state.stopping import plan_removal, remove_tables
from tests.node.watch import run as in_node
from tests.spark.buckets import Documents
from tests.spark.test_protocols import fail_over
from tests.spark.typed_readers import query_table, scan_table
from tests.spark.version_model import model_versions, read_versions

pytestmark = pytest.mark.spark

PIPELINE = """
lake = "lake"
[source.shop]
url = "{url}"
[tables]
format = "{format}"
[[table]]
collection = "sales.orders"
name = "orders"
schema = "customer BIGINT, total DECIMAL(12,2), lines ARRAY<STRUCT<sku STRING, n INT>>"
key = "order::{{number BIGINT}}"
[[table]]
collection = "_default"
schema = "name STRING"
key = "id STRING"
deletes = "mark"
metadata = ["changed_at"]
"""


class Shop:
    """A bucket with orders and customers, and the pipeline of its typed tables.

    Attributes:
        orders, customers: key -> value of the documents that exist.
    """

    def __init__(self, node, documents, path, spark):
        self.node, self.documents, self.path, self.spark = node, documents, path, spark
        self.lake = Lake(path.parent / "lake")
        self.orders, self.customers = {}, {}

    def change_collections(self, edit):
        bucket = self.node.buckets["default"]
        in_node(self.node, lambda: bucket.change_manifest(edit(bucket.store.manifests.current)))

    def store(self, orders=(), customers=()):
        self.orders |= {f"order::{n}": value for n, value in dict(orders).items()}
        self.customers |= {f"c{n}": value for n, value in dict(customers).items()}
        run, bucket = self.documents.loop.run, self.documents.bucket
        for collection, values in (("sales.orders", self.orders), ("_default", self.customers)):
            if values:
                texts = [(key, json.dumps(value).encode()) for key, value in values.items()]
                run(bucket.upsert_many(texts, collection=collection))

    def remove(self, collection, *keys):
        values = self.orders if collection == "sales.orders" else self.customers
        for key in keys:
            del values[key]
        self.documents.loop.run(self.documents.bucket.remove_many(keys, collection=collection))

    def run(self):
        (ended,) = run_pipeline(read_definition(str(self.path)), available_now=True, spark=self.spark)
        return ended

    def read(self, name):
        return scan_table(self.lake, name).collect()

    def check(self):
        """Assert that both tables equal the bucket."""
        rows = self.read("orders").select("number", "customer", "total", "lines", "_rest").sort("number").rows()
        assert rows == [
            (
                int(key.removeprefix("order::")),
                value["customer"],
                Decimal(str(value["total"])).quantize(Decimal("0.01")),
                value["lines"],
                json.dumps({"note": value["note"]}, separators=(",", ":")) if "note" in value else None,
            )
            for key, value in sorted(self.orders.items(), key=lambda each: int(each[0].removeprefix("order::")))
        ]
        found = self.read("default").filter(~pl.col("_deleted")).select("id", "name").sort("id").rows()
        assert found == sorted((key, value["name"]) for key, value in self.customers.items())


def order(n, **more):
    return {"customer": n % 7, "total": n / 4, "lines": [{"sku": f"s{n}", "n": n % 3}], **more}


@pytest.fixture(params=["delta", "iceberg"])
def shop(request, spark, tmp_path):
    with Node.running(["default"], vbuckets=16) as node, Documents.of(node.url("default")) as documents:
        path = tmp_path / "pipeline.toml"
        path.write_text(PIPELINE.format(url=node.url("default"), format=request.param))
        shop = Shop(node, documents, path, spark)
        shop.change_collections(lambda manifest: manifest.with_scope("sales"))
        shop.change_collections(lambda manifest: manifest.with_collection("sales", "orders"))
        yield shop


def test_tables_equal_the_bucket_after_each_run(shop):
    shop.store({n: order(n) for n in range(100)}, {n: {"name": f"No {n}"} for n in range(20)})
    (planned,) = plan_run(read_definition(str(shop.path))).sources
    assert [(part.name, part.kind, part.is_new) for part in planned.parts[1:3]] == [
        ("orders", "table", True),
        ("default", "table", True),
    ]
    assert planned.parts[1].description == "sales.orders in 14 columns"
    ended = shop.run()
    shop.check()
    assert [(each.name, each.kind, each.rows, each.pending) for each in ended.dependents] == [
        ("orders", "table", 100, 0),
        ("default", "table", 20, 0),
        ("current", "current", 120, 0),
    ]
    shop.store({n: order(n, note="late") for n in range(50, 120)})
    shop.remove("sales.orders", "order::1", "order::99")
    shop.remove("_default", "c3")
    shop.run()
    shop.check()
    gone = shop.read("default").filter(pl.col("_deleted")).select("id", "name", "_rest").rows()
    assert gone == [("c3", None, None)]
    assert shop.read("default").columns[:5] == ["id", "name", "_deleted", "_deleted_at", "_rest"]

    status = read_status(shop.lake, "shop", ["orders"])
    found = {each.name: (each.kind, each.size and each.size.rows, each.pending) for each in status.dependents}
    assert found == {"current": ("current", 137, 0), "default": ("table", 20, 0), "orders": ("table", 118, 0)}
    assert [each.name for each in status.removed] == ["default"]
    assert not any(part.is_new for part in plan_run(read_definition(str(shop.path))).sources[0].parts)

    sums = query_table(shop.lake, "orders", "SELECT typeof(total), sum(total) FROM orders GROUP BY 1")
    assert sums == [("DECIMAL(12,2)", sum(Decimal(str(value["total"])) for value in shop.orders.values()))]


def test_tables_follow_failovers_flush_and_dropped_collections(shop):
    shop.store({n: order(n) for n in range(60)}, {n: {"name": f"No {n}"} for n in range(20)})
    shop.run()
    before = shop.orders, shop.customers
    marks = {n: vbucket.changes.high_seqno for n, vbucket in enumerate(shop.node.buckets["default"].store.vbuckets)}
    shop.store({n: order(n, note="lost") for n in range(40, 80)})
    shop.run()
    for number, seqno in marks.items():
        fail_over(shop.node, number, seqno)
    shop.orders, shop.customers = before
    shop.orders = {key: value for key, value in shop.orders.items() if int(key[7:]) < 60 and "note" not in value}
    shop.orders |= {f"order::{n}": order(n) for n in range(40, 60)}
    shop.run()
    shop.check()

    request_resnapshot(shop.lake, range)
    shop.run()
    shop.check()

    shop.change_collections(lambda manifest: manifest.without_collection("sales", "orders"))
    shop.orders = {}
    shop.run()
    shop.check()
    shop.change_collections(lambda manifest: manifest.with_collection("sales", "orders"))
    shop.store({1: order(1)})
    shop.run()
    shop.check()
    shop.documents.flush()
    shop.orders, shop.customers = {}, {}
    shop.run()
    shop.check()


def test_inferred_columns_come_while_the_bucket_changes(shop):
    text = shop.path.read_text().replace('schema = "customer BIGINT, total DECIMAL(12,2)', 'schema = "infer" #')
    shop.path.write_text(text)
    (planned,) = plan_run(read_definition(str(shop.path))).sources
    assert planned.parts[1].description == "sales.orders in inferred columns"
    shop.run()
    assert shop.read("orders").columns[:2] == ["number", "_rest"]
    shop.store({n: {"customer": n, "odd": n if n % 5 else "none"} for n in range(40)})
    shop.run()
    found = shop.read("orders").sort("number")
    assert found.schema["odd"] == pl.Int64
    assert found["customer"].to_list() == list(range(40))
    status = next(each for each in read_status(shop.lake).dependents if each.name == "orders")
    assert status.rest is not None
    assert [(each.field, each.found, each.values) for each in status.rest.misfits] == [("odd", "text", 8)]
    shop.store({n: {"customer": n, "at": {"city": f"c{n}"}} for n in range(30, 50)})
    shop.run()
    found = shop.read("orders").sort("number")
    assert found["customer"].to_list() == list(range(50))
    assert found["at"].to_list()[29:] == [None, *({"city": f"c{n}"} for n in range(30, 50))]
    shop.path.write_text(text.replace("#", '\nevolve = "fail" #'))
    shop.store({50: {"late": 1}})
    with pytest.raises(UsageError, match="table orders: late BIGINT is new, and evolve is 'fail'"):
        shop.run()
    shop.path.write_text(text.replace("#", '\nevolve = "keep" #'))
    shop.run()
    assert shop.read("orders").filter(pl.col("number") == 50)["_rest"].to_list() == ['{"late":1}']


def test_columns_of_single_fields_stay_while_others_are_inferred(shop):
    columns = """{ at = "ordered_at TIMESTAMP FROM 'unix_ms'", total = "DECIMAL(12,2)", "to.city" = "STRING" }"""
    text = shop.path.read_text().replace(
        'schema = "customer BIGINT, total DECIMAL(12,2)', f'schema = "infer"\ncolumns = {columns} #'
    )
    shop.path.write_text(text)
    shop.store({n: {"at": n * 86_400_000, "total": n, "to": {"city": f"c{n}", "zip": n}} for n in range(40)})
    shop.run()
    shop.store({n: {"at": n * 86_400_000, "total": n / 4, "to": {"city": n}, "new": n} for n in range(30, 50)})
    shop.run()
    found = shop.read("orders").sort("number")
    assert found.columns[:6] == ["number", "ordered_at", "total", "city", "to", "new"]
    assert found["ordered_at"].dt.epoch("ms").to_list() == [n * 86_400_000 for n in range(50)]
    assert found["total"].to_list() == [*map(Decimal, range(30)), *(Decimal(n) / 4 for n in range(30, 50))]
    assert found["city"].to_list() == [*(f"c{n}" for n in range(30)), *[None] * 20]
    assert found["to"].to_list() == [*({"zip": n} for n in range(30)), *[None] * 20]
    assert found["_rest"].to_list() == [*[None] * 30, *(f'{{"to":{{"city":{n}}}}}' for n in range(30, 50))]
    shop.path.write_text(text.replace("unix_ms", "unix_s"))
    with pytest.raises(UsageError, match=r"orders is a table of another .*retype FILE --table orders"):
        shop.run()


def check_lines(shop):
    """Assert that the parent has no lines, and that its child has those of the bucket."""
    assert "lines" not in shop.read("orders").columns
    numbers = sorted(int(key.removeprefix("order::")) for key in shop.orders)
    assert shop.read("orders")["number"].sort().to_list() == numbers
    found = shop.read("orders_lines").select("number", "_position", "sku", "n", "_rest").sort("number", "_position")
    assert found.rows() == [
        (number, at, line.get("sku"), line.get("n"), '{"gift":true}' if "gift" in line else None)
        for number in numbers
        for at, line in enumerate(shop.orders[f"order::{number}"]["lines"])
    ]


def order_lines(n, count):
    return {"customer": n, "total": n, "lines": [{"sku": f"s{at}", "n": n} for at in range(count)]}


def test_children_equal_the_arrays_of_the_bucket(shop):
    shop.path.write_text(shop.path.read_text().replace('name = "orders"', 'name = "orders"\nchildren = ["lines"]'))
    (planned,) = plan_run(read_definition(str(shop.path))).sources
    assert [(part.name, part.description) for part in planned.parts[1:3]] == [
        ("orders", "sales.orders in 13 columns"),
        ("orders_lines", "lines of orders in 14 columns"),
    ]
    shop.store({n: order_lines(n, n % 4) for n in range(40)}, {1: {"name": "Eve"}})
    shop.run()
    check_lines(shop)
    marks = {n: vbucket.changes.high_seqno for n, vbucket in enumerate(shop.node.buckets["default"].store.vbuckets)}
    before = shop.orders.copy()
    shop.store({n: order_lines(n, 1) for n in range(30, 50)})
    shop.remove("sales.orders", "order::3", "order::7")
    shop.run()
    check_lines(shop)
    for number, seqno in marks.items():
        fail_over(shop.node, number, seqno)
    shop.orders = before
    shop.run()
    check_lines(shop)
    shop.store({3: {"customer": 3, "total": 3, "lines": [{"sku": "s", "n": 1, "gift": True}, {"n": 2}]}})
    request_resnapshot(shop.lake, range)
    shop.run()
    check_lines(shop)
    status = {each.name: each for each in read_status(shop.lake, "shop", ["orders", "orders_lines"]).dependents}
    assert (status["orders_lines"].kind, status["orders_lines"].pending) == ("table", 0)
    assert status["orders_lines"].rest is not None
    assert [(each.field, each.values) for each in status["orders_lines"].rest.misfits] == [("gift", 1)]

    report = erase_documents(shop.lake, DocumentSelection((b"order::3",)), dry_run=True)
    assert {part.table: part.rows for part in report.parts}["orders_lines"] == 2
    report = erase_documents(shop.lake, DocumentSelection((b"order::3",)))
    assert {part.table: part.rows for part in report.parts}["orders_lines"] == 2
    del shop.orders["order::3"]
    check_lines(shop)
    assert {*compact(shop.lake).tables} == {*vacuum(shop.lake, 0).tables} == {"default", "orders", "orders_lines"}
    check_lines(shop)
    remove_tables(plan_removal(shop.lake, ["orders_lines"]))
    shop.run()
    check_lines(shop)
    shop.change_collections(lambda manifest: manifest.without_collection("sales", "orders"))
    shop.orders = {}
    shop.run()
    check_lines(shop)


def test_maintenance_knows_the_tables(shop):
    shop.store({n: order(n) for n in range(60)}, {7: {"name": "zqsecret"}, 8: {"name": "Eve"}})
    shop.run()
    shop.store({3: order(3, note="new")}, {7: {"name": "zqsecret again"}})
    shop.run()
    report = erase_documents(shop.lake, DocumentSelection((b"c7",)), dry_run=True)
    assert {part.table: part.rows for part in report.parts}["default"] == 1
    report = erase_documents(shop.lake, DocumentSelection((b"c7",)))
    assert {part.table: part.rows for part in report.parts if part.kind != "changelog"} == {
        "current": 1,
        "default": 1,
        "orders": 0,
    }
    del shop.customers["c7"]
    shop.check()
    compact(shop.lake)
    assert {*vacuum(shop.lake, 0).tables} == {"default", "orders"}
    shop.check()
    for path in shop.lake.path.joinpath("tables").rglob("*"):
        assert path.is_dir() or b"zqsecret" not in path.read_bytes()
    shop.store({n: order(n) for n in range(50, 70)})
    shop.run()
    shop.check()

    shop.path.write_text(shop.path.read_text().replace("customer BIGINT", "customer STRING"))
    with pytest.raises(UsageError, match=r"orders is a table of another .*retype FILE --table orders"):
        shop.run()
    remove_tables(plan_removal(shop.lake, ["orders"]))
    shop.run()
    assert shop.read("orders")["customer"].to_list() == [None] * 70
    assert json.loads(shop.read("orders").filter(pl.col("number") == 60)["_rest"][0]) == {"customer": 4}


VERSIONS = """
[[table]]
collection = "sales.orders"
name = "{mode}"
schema = "customer BIGINT"
key = "order::{{number BIGINT}}"
mode = "{mode}"
"""


def check_versions(shop):
    """Assert that the newest versions are the bucket's orders, and that both tables follow from the changelog."""
    shop.check()
    history, changes = (shop.read(mode) for mode in ("history", "changes"))
    found = history.filter(pl.col("_is_current")).select("number", "customer", "_valid_to").sort("number").rows()
    keys = sorted(int(key.removeprefix("order::")) for key in shop.orders)
    assert found == [(number, shop.orders[f"order::{number}"]["customer"], None) for number in keys]
    rows = shop.lake.changelog().to_pylist()
    ids = {each["collection_id"] for each in rows if each["collection"] == "orders"}
    own = [each for each in rows if each["event"] == "rollback" or each["collection_id"] in ids]
    places = changes.select("_vbucket", "_history", "_seqno", "_event").rows()
    assert sorted(places) == sorted((each["vbucket"], each["history"], each["seqno"], each["event"]) for each in own)
    rows = [each for each in own if each["event"] != "modify_collection"]
    rows.sort(key=lambda each: (each["vbucket"], each["history"], each["event"] != "rollback", each["seqno"]))
    assert read_versions(history.rename({"number": "_number"}).to_dicts()) == model_versions(rows)


def test_versions_and_changes_follow_the_bucket(shop):
    shop.path.write_text(shop.path.read_text() + "".join(VERSIONS.format(mode=mode) for mode in ("history", "changes")))
    shop.store({n: order(n) for n in range(60)})
    shop.run()
    check_versions(shop)
    before = dict(shop.orders)
    marks = {n: vbucket.changes.high_seqno for n, vbucket in enumerate(shop.node.buckets["default"].store.vbuckets)}
    shop.store({n: order(n, note="lost") for n in range(40, 80)})
    shop.run()
    check_versions(shop)
    assert shop.read("history").height == 140  # 60 orders were stored once more
    for number, seqno in marks.items():
        fail_over(shop.node, number, seqno)
    shop.orders = before
    shop.run()
    check_versions(shop)
    shop.remove("sales.orders", "order::1", "order::2")
    shop.run()
    check_versions(shop)
    sizes = {each.name: each.size and each.size.rows for each in read_status(shop.lake).dependents}
    assert sizes["history"] == shop.read("history").height
    request_resnapshot(shop.lake, range)
    shop.run()
    check_versions(shop)
    shop.change_collections(lambda manifest: manifest.without_collection("sales", "orders"))
    shop.orders = {}
    shop.run()
    check_versions(shop)
    ended = shop.read("history")
    assert ended.height == 58
    assert ended.select("_valid_to", "_is_current").unique().rows() == [(None, False)]
    compact(shop.lake)
    vacuum(shop.lake, 0)
    check_versions(shop)
