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
