"""Ways of names into other spaces: the ways back, and that no two names become one."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import names
from penstock.client.bucket import Bucket
from penstock.client.connect.address import parse_address
from penstock.client.groups.group_documents import GroupKeys
from penstock.client.positions.document_positions import DocumentPositions
from penstock.errors import UsageError
from penstock.node import Node
from penstock.node.auth.roles import parse_role
from tests.naughty_names import BUCKETS, BYTES, FILES_OF_NODES, IMPOSSIBLE_BUCKETS, TEXTS

WAYS: dict[str, Any] = {
    "text": (names.escape_text, names.unescape_text, st.text(), TEXTS),
    "bytes": (names.escape_bytes, names.unescape_bytes, st.binary() | st.text().map(str.encode), BYTES),
    "url": (names.quote_part, names.unquote_part, st.text(st.characters(codec="utf-8")), TEXTS),
    "key": (names.quote_key_part, names.unquote_part, st.text(st.characters(codec="utf-8")), TEXTS),
    "column": (names.quote_column, names.unquote_column, st.text() | st.text("_xXaA49-"), TEXTS),
    "column without case": (
        partial(names.quote_column, keep_case=False),
        names.unquote_column,
        st.text() | st.text("_xXaA49-"),
        TEXTS,
    ),
}
SPACES = pytest.mark.parametrize("space", WAYS)


@SPACES
@given(data=st.data())
def test_way_back(space, data):
    into, back, strategy, _ = WAYS[space]
    name = data.draw(strategy)
    assert back(into(name)) == name


@SPACES
def test_naughty_names_stay_apart(space):
    into, back, _, naughty = WAYS[space]
    assert [back(into(name)) for name in naughty] == [*naughty]
    assert len({into(name) for name in naughty}) == len(naughty)


@given(st.text(), st.binary())
def test_escaped_names_are_printable(text, data):
    assert names.escape_text(text).isprintable()
    assert names.escape_bytes(data).isprintable()


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1))
def test_parts_of_a_key_stay_apart(parts):
    key = ":".join(map(names.quote_key_part, parts))
    assert [names.unquote_part(part) for part in key.split(":")] == parts


@pytest.mark.parametrize("name", BUCKETS)
def test_connection_string_leads_to_the_bucket(name):
    address = parse_address(f"couchbase://127.0.0.1/{names.quote_part(name)}")
    assert address.bucket == name
    assert parse_address(str(address)).bucket == name


@pytest.mark.parametrize("name", IMPOSSIBLE_BUCKETS)
def test_impossible_bucket_is_refused_everywhere(name):
    with pytest.raises(UsageError, match=r"bucket .*: expected"):
        names.check_new_bucket(name)
    if name:
        with pytest.raises(UsageError, match="bucket name "):
            parse_address(f"couchbase://127.0.0.1/{names.quote_part(name)}")
    with pytest.raises(UsageError):
        parse_role(f"data_reader[{name}]")


async def store(url, key):
    async with penstock.connect(url) as bucket:
        await bucket.upsert(key, b"{}")


def list_keys(url):
    return [key for batch in penstock.read_changes(url, stop="now") for key in batch["key"].to_pylist()]


def test_a_node_serves_buckets_of_any_name(tmp_path):
    """Each URL of a node leads to its own bucket, over both ports, and so after a restart."""
    for _ in range(2):
        with Node.running(buckets=BUCKETS, data_dir=tmp_path, vbuckets=1) as node:
            for name in BUCKETS:
                asyncio.run(store(node.url(name), name))
                assert list_keys(node.url(name)) == [name.encode()]
                http = f"couchbase://127.0.0.1:{node.http_port}/{names.quote_part(name)}?bootstrap=http"
                assert list_keys(http) == [name.encode()]


@pytest.mark.parametrize("name", FILES_OF_NODES)
def test_a_node_does_not_create_a_bucket_in_place_of_its_own_file(name, tmp_path):
    with (
        pytest.raises(UsageError, match="expected another name than that of the node's file"),
        Node.running(buckets=[name], data_dir=tmp_path),
    ):
        pass
    assert not list(tmp_path.iterdir())
    assert parse_address(f"couchbase://127.0.0.1/{name}").bucket == name  # of a server with other files


GROUPS = ("a", "a:vbucket:3", "a:member:b", "a%3Amember%3Ab", "a%", ":", *TEXTS)


def test_no_two_documents_of_groups_and_consumers_have_the_same_key():
    """Also if the name of a group looks like a part of the keys of another group."""
    found = Counter(
        DocumentPositions(Bucket(parse_address("couchbase://127.0.0.1/b")), group)._key for group in set(GROUPS)
    )
    for group in set(GROUPS):
        keys = GroupKeys(group)
        made = [keys.state, keys.make_member_key("b"), keys.make_member_key("vbucket:3"), keys.make_position_key(3)]
        found.update(made)
    assert [key for key, count in found.items() if count > 1] == []
    assert GroupKeys("indexer").make_position_key(3) == "_penstock:group:indexer:vbucket:3"


@pytest.mark.parametrize("name", ["", "x" * 250, "é" * 120, "\ud800"])
def test_name_that_no_key_can_have_is_refused_at_once(name):
    for make in (GroupKeys, partial(DocumentPositions, cast(Any, None))):
        with pytest.raises(UsageError):
            make(name)


LONG_S, DOTLESS_I = "\u017f", "\u0131"  # upper case makes ASCII letters of them
ODD_FIELDS = ["_rest", "_REST", "_key", "", "_x_", "_X_", LONG_S, "s", DOTLESS_I, "ß"]
FIELDS = st.text() | st.text("_xXaA49-") | st.sampled_from(ODD_FIELDS)


@given(st.lists(FIELDS, unique=True))
def test_columns_differ_in_engines_that_ignore_case(fields):
    columns = names.spell_columns(fields)
    for compare in (str.lower, str.upper, str.casefold):
        if all(column.isascii() for column in columns):
            assert len({compare(column) for column in columns}) == len(fields)
    assert len({column.lower() for column in columns}) == len(fields)
    assert [names.unquote_column(column) for column in columns] == fields
    assert not {column.lower() for column in columns} & names.RESERVED_COLUMNS


@given(FIELDS, FIELDS)
def test_columns_without_case_never_differ_in_case_alone(one, other):
    columns = [names.quote_column(field, keep_case=False) for field in (one, other)]
    assert (columns[0].lower() == columns[1].lower()) == (one == other)


@given(st.lists(FIELDS, unique=True), st.lists(FIELDS, unique=True))
def test_later_columns_differ_from_those_that_exist(earlier, later):
    taken = names.spell_columns(earlier)
    found = names.spell_columns([field for field in later if field not in earlier], taken)
    assert not {column.lower() for column in taken} & {column.lower() for column in found}


@pytest.mark.parametrize(
    ("field", "column"),
    [
        ("orderId", "orderId"),
        ("first-name", "first_x2d_name"),
        ("größe", "größe"),
        ("max_x", "max_x"),
        ("offset_x_min", "offset_x_min"),
        ("_id", "_id"),
        ("_rest", "_x5f_rest"),
        ("", "_x_"),
        ("\ud800", "_xd800_"),
    ],
)
def test_columns_of_common_fields(field, column):
    assert names.quote_column(field) == column


def test_columns_of_fields_that_differ_in_case():
    assert names.spell_columns(["orderId", "orderid", "ORDERID"]) == [
        "orderId",
        "_x6f__x72__x64__x65__x72__x69__x64_",
        "_x4f__x52__x44__x45__x52__x49__x44_",
    ]
    assert names.spell_columns(["id", "Id"]) == ["id", "_x49_d"]


COLLECTION_NAMES = st.from_regex(r"[A-Za-z0-9_%-]{1,12}", fullmatch=True) | st.sampled_from(["_default", "default"])


@given(st.lists(st.tuples(COLLECTION_NAMES, COLLECTION_NAMES), unique=True))
def test_tables_of_collections(pairs):
    tables = [names.quote_table(*pair) for pair in pairs]
    assert len(set(tables)) == len(pairs)
    assert [names.unquote_table(table) for table in tables] == pairs


def test_tables_of_common_collections():
    assert names.quote_table("_default", "_default") == "default"
    assert names.quote_table("_default", "default") == "_x64_efault"
    assert names.quote_table("_default", "orders") == "orders"
    assert names.quote_table("shop", "orders") == "shop_x2e_orders"
