"""`penstock pipeline init`: the file that it writes for a bucket is a pipeline as it stands."""

import asyncio
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import penstock
from penstock import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.spark.pipeline.definition.definition import read_definition
from tests.node.test_login import ITERATIONS
from tests.node.watch import run as run_on_node

ORDERS: list[dict[str, Any]] = [
    {"id": 2**70 if number == 7 else number, "paid": "2026-11-28T09:30:00Z", "total": "free" if number < 5 else 1.5}
    for number in range(150)
]
ORDERS[3]["note"] = "fragile"
ORDERS[4]["tags"] = []


def make_collections(node: Node) -> None:
    """Add the collections `orders`, `empty`, `shop.orders` and `shop.Orders` to the bucket beer."""
    bucket = node.buckets["beer"]

    def change() -> None:
        manifest = bucket.store.manifests.current.with_scope("shop")
        for scope, name in (("_default", "orders"), ("_default", "empty"), ("shop", "orders"), ("shop", "Orders")):
            manifest = manifest.with_collection(scope, name)
        bucket.change_manifest(manifest)

    run_on_node(node, change)


def fill(url: str, documents: Mapping[str, Sequence[object]], **login: str) -> None:
    """Write documents into collections."""

    async def write() -> None:
        async with penstock.connect(url, **login) as bucket:
            for collection, values in documents.items():
                for number, value in enumerate(values):
                    body = value if isinstance(value, bytes) else json.dumps(value).encode()
                    await bucket.upsert(f"k{number}", body, collection=collection)

    asyncio.run(write())


def test_the_file_is_a_pipeline_as_it_stands(run, node, tmp_path):
    make_collections(node)
    url, path = node.url("beer"), tmp_path / "pipeline.toml"
    fill(url, {"orders": ORDERS, "shop.orders": [{"a": 1}], "shop.Orders": [{'b`\n"': [{"c": True}]}, b"text"]})
    found = run("pipeline", "init", path, "--url", url)
    assert (found.code, found.err) == (0, "")
    assert found.lines == [
        f"{'orders':<24} 150 of 150 documents; 4 fields; 5 doubts, see the comments",
        f"{'shop_x2e_orders':<24} 1 of 1 documents; 1 field",
        f"{'shop_x2e_Orders_2':<24} 2 of 2 documents; 1 field; 1 doubt, see the comments",
        f"{path}: 3 tables. Check it: penstock pipeline plan {path}",
    ]
    text = path.read_text()
    assert "# total: 145 numbers, 5 texts; values that do not fit are in _rest\n" in text
    given = tomllib.loads(text)
    assert given["lake"] == "./lake"
    assert given["source"] == {"beer": {"url": url}}
    assert [table["collection"] for table in given["table"]] == ["orders", "shop.orders", "shop.Orders"]
    assert given["table"][0]["schema"].split(",\n") == [
        "  id DECIMAL(38, 0)", "  paid STRING", "  total DOUBLE", "  note STRING\n",
    ]  # fmt: skip
    before = path.read_bytes()
    plan = run("pipeline", "plan", path)
    assert plan.code == 0, plan.out + plan.err
    assert all(f"  {name} " in plan.out for name in ("orders", "shop_x2e_orders", "shop_x2e_Orders_2"))
    assert path.read_bytes() == before


def test_doubts_name_the_fields(run, node, tmp_path):
    make_collections(node)
    fill(node.url("beer"), {"orders": ORDERS})
    found = run("pipeline", "init", tmp_path / "p.toml", "--url", node.url("beer"), "--json").json
    (table,) = found["tables"]
    assert (table["sampled"], table["documents"], found["denied"]) == (150, 150, [])
    assert sorted(table["doubts"]) == [
        "id: 1 number beyond 64 bits, so DECIMAL(38, 0)",
        "note: in 1 of 150 documents",
        "paid: the texts look like times; TIMESTAMP may be better than STRING",
        "tags: not in schema, because it has only nulls, empty objects or empty arrays",
        "total: 145 numbers, 5 texts; values that do not fit are in _rest",
    ]


def test_arrays_of_objects_are_suggested_as_children(run, node, tmp_path):
    path = tmp_path / "p.toml"
    orders = [{"lines": [{"sku": "a", "taxes": [{"n": 1}]}], "to": {"unit-prices": [{"n": 1}]}, "tags": ["x"]}]
    fill(node.url("beer"), {"": [json.dumps(each).encode() for each in orders]})
    assert run("pipeline", "init", path, "--url", node.url("beer")).code == 0
    text = path.read_text()
    suggested = re.findall(r"^# (.*): array of objects; children = (.*) makes it a table$", text, re.MULTILINE)
    assert suggested == [("lines", '["lines"]'), ("to.`unit-prices`", '["to.`unit-prices`"]')]
    path.write_text(text + 'children = ["lines", "to.`unit-prices`"]')
    plan = run("pipeline", "plan", path)
    assert plan.code == 0, plan.err
    assert "lines of default in 13 columns" in plan.out
    assert "default_to_x2e_unit_x2d_prices" in plan.out


def test_documents_without_fields_have_an_inferred_table(run, node, tmp_path):
    path = tmp_path / "p.toml"
    fill(node.url("beer"), {"": [b"text", [1]]})
    assert run("pipeline", "init", path, "--url", node.url("beer")).code == 0
    assert tomllib.loads(path.read_text())["table"][0]["schema"] == "infer"
    assert run("pipeline", "plan", path).code == 0


def test_an_existing_file_stays(run, node, tmp_path):
    path = tmp_path / "p.toml"
    path.write_text("mine")
    found = run("pipeline", "init", path, "--url", node.url("beer"))
    assert (found.code, path.read_text()) == (2, "mine")
    assert f"{path} exists; --force replaces it" in found.err
    assert run("pipeline", "init", path, "--url", node.url("beer"), "--force").code == 0
    assert [each.name for each in read_definition(str(path)).sources] == ["beer"]


def test_a_login_in_the_url_is_refused(run, tmp_path):
    found = run("pipeline", "init", tmp_path / "p.toml", "--url", "couchbase://ada:hops@127.0.0.1/beer")
    assert (found.code, [*tmp_path.iterdir()]) == (2, [])
    assert "connection string contains a login; pass username and password separately" in found.err
    assert "hops" not in found.out + found.err


@pytest.fixture
def guarded(tmp_path):
    """A node whose user taster may read two collections, and only write a third."""
    path = tmp_path / "users.json"
    roles = [
        "data_dcp_reader[beer:shop:orders]",
        "data_dcp_reader[beer:_default:empty]",
        "data_writer[beer:shop:Orders]",
    ]
    with change_users(path) as accounts:
        for name, some in {"root": ["admin"], "taster": roles, "writer": roles[2:]}.items():
            accounts[name] = make_account(User.from_texts(name, some), f"{name}'s", ITERATIONS)
    with Node.running(["beer"], vbuckets=16, users=path) as node:
        make_collections(node)
        one: list[object] = [{"a": 1}]
        login = {"username": "root", "password": "root's"}
        fill(node.url("beer"), {"orders": one, "shop.orders": one, "shop.Orders": one}, **login)
        yield node


def test_a_user_gets_the_collections_that_it_may_read(run, guarded, tmp_path):
    secret, path = tmp_path / "secret", tmp_path / "p.toml"
    secret.write_text("taster's\n")
    access = ("--username", "taster", "--password-file", secret)
    found = run("pipeline", "init", path, "--url", guarded.url("beer"), *access, "--json")
    assert found.code == 0, found.err
    assert [each["collection"] for each in found.json["tables"]] == ["shop.orders"]
    assert found.json["denied"] == ["shop.Orders"]
    assert tomllib.loads(path.read_text())["source"]["beer"] == {
        "url": guarded.url("beer"), "username": "taster", "password_file": str(secret),
        "collections": ["empty", "shop.orders"],
    }  # fmt: skip
    plan = run("pipeline", "plan", path)
    assert plan.code == 0, plan.out + plan.err


def test_the_password_of_the_environment_stays_there(run, guarded, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_PASSWORD", "root's")
    path = tmp_path / "p.toml"
    assert run("pipeline", "init", path, "--url", guarded.url("beer"), "--username", "root").code == 0
    assert "root's" not in path.read_text()
    plan = run("pipeline", "plan", path)
    assert plan.code == 0, plan.out + plan.err


@pytest.mark.parametrize("selection", ["scope=shop", "collections=shop.orders"])
def test_the_selection_of_the_url_counts(run, node, tmp_path, selection):
    make_collections(node)
    fill(node.url("beer"), {"orders": [{"a": 1}], "shop.orders": [{"a": 1}]})
    path = tmp_path / "p.toml"
    found = run("pipeline", "init", path, "--url", f"{node.url('beer')}?{selection}", "--json")
    assert [each["collection"] for each in found.json["tables"]] == ["shop.orders"]
    plan = run("pipeline", "plan", path)
    assert plan.code == 0, plan.out + plan.err


def test_a_dialect_without_collections_reads_the_default_collection(run, node, tmp_path):
    make_collections(node)
    fill(node.url("beer"), {"": [{"a": 1}], "orders": [{"a": 1}]})
    path = tmp_path / "p.toml"
    found = run("pipeline", "init", path, "--url", f"{node.url('beer')}?protocol=upr", "--json")
    assert [(each["collection"], each["sampled"]) for each in found.json["tables"]] == [("_default", 1)]
    plan = run("pipeline", "plan", path)
    assert plan.code == 0, plan.out + plan.err


def test_an_empty_bucket_gives_a_file_without_tables(run, node, tmp_path):
    path = tmp_path / "p.toml"
    found = run("pipeline", "init", path, "--url", node.url("beer"))
    assert found.lines == [f"{path}: 0 tables. Check it: penstock pipeline plan {path}"]
    assert run("pipeline", "plan", path).code == 0


def test_a_user_that_may_read_nothing_gets_no_file(run, guarded, tmp_path):
    secret, path = tmp_path / "secret", tmp_path / "p.toml"
    secret.write_text("writer's\n")
    access = ("--username", "writer", "--password-file", secret)
    found = run("pipeline", "init", path, "--url", guarded.url("beer"), *access)
    assert (found.code, path.exists()) == (1, False)
    assert "user 'writer' may not read change streams" in found.err
