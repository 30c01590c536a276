"""Runs of a connection with collections, and values with extended attributes: the same changes by every path."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.layout import Message
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.collection_names import CollectionNames
from penstock.wire.columns.heads import StreamContext
from penstock.wire.columns.message_decoder import decode_messages
from penstock.wire.columns.run_decoder import SMALL_RUN, decode_run, list_changes
from penstock.wire.messages.dcp import Deletion, DeletionV2, Mutation, PrototypeMutation
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.values.collection_key import pack_collection_id
from tests.strategies import runs_in
from tests.wire.test_columns import (
    NAMED,
    assert_every_path,
    by_columns,
    change_of,
    context_of,
    damaged,
    outcome,
    run_of,
)

pytestmark = pytest.mark.usefixtures("path")

IDS = (0, 8, 9, 0x7F, 0x80, 0x3FFF, 0x4000, 0xCAFEF00D, 2**32 - 1)
NAMES = {0: ("_default", "_default"), 8: ("inventory", "airline"), 0x80: ("inventory", "x" * 251), 0x4000: ("", "é")}


def collections_context() -> StreamContext:
    """Return a context with collections, of which some have no name."""
    context, names = context_of(), CollectionNames()
    for number, (collection_id, (scope, name)) in enumerate(NAMES.items()):
        names.add_scope(number, scope)
        names.add_collection(collection_id, number, name)
    context.collections = names
    return context


def prefixed(message: Message, collection_id: int) -> Message:
    return replace(message, key=pack_collection_id(collection_id) + message.key)


@given(runs_in(Dialect.DCP, SMALL_RUN + 10), st.data())
def test_keys_with_their_collection(messages: list[Message], data: st.DataObject) -> None:
    plain = [message for message in messages if not isinstance(message, PrototypeMutation)] or [NAMED_KEY]
    chosen = data.draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=len(plain)))
    sent, expected = [], []
    for number, message in enumerate(plain):
        collection_id = chosen[number % len(chosen)]
        scope, collection = NAMES.get(collection_id, (None, None))
        sent.append(prefixed(message, collection_id).encode())
        expected.append(change_of(message)._replace(collection_id=collection_id, scope=scope, collection=collection))
    assert_every_path(run_of(sent, before=b"before"), collections_context(), expected)


NAMED_KEY = Mutation(key=b"k", value=b"v", by_seqno=1)

BAD = [
    (b"\x80\x80\x80\x80\x80\x00k", "key 8080808080 does not begin with a collection id"),
    (b"\xff\xff\xff\xff\x1fk", "key ffffffff1f does not begin with a collection id"),
    (b"\x80\x00k", "key 80006b does not begin with a collection id"),
    (b"\x80", "key 80 does not begin with a collection id"),
    (b"\x80\x80\x80\x80", "key 80808080 does not begin with a collection id"),
    (b"\x08", "key 08: nothing behind a collection id"),
    (b"\xff\xff\xff\xff\x0f", "key ffffffff0f: nothing behind a collection id"),
]


@pytest.mark.parametrize(("key", "text"), BAD, ids=[key.hex() for key, _ in BAD])
@pytest.mark.parametrize("around", [0, SMALL_RUN])
def test_key_without_collection_id_is_refused(key: bytes, text: str, around: int) -> None:
    """The bytes after the key do not matter: a value must not be taken for the rest of a key."""
    good = prefixed(NAMED_KEY, 8).encode()
    bad = Mutation(key=key, value=b"\x00\x01value", by_seqno=1).encode()
    run = run_of([*[good] * around, bad, *[good] * around])
    for decode in (decode_messages, decode_run, by_columns):
        with pytest.raises(RemoteProtocolError, match=f"^DCP_MUTATION: {text}") as caught:
            decode(run, collections_context())
        assert (caught.value.status, caught.value.fatal) == (Status.EINVAL, True)


def test_key_with_collection_name_and_id_is_refused() -> None:
    run = run_of([prefixed(NAMED_KEY, 8).encode(), NAMED.encode()])
    for decode in (decode_messages, by_columns):
        with pytest.raises(RemoteProtocolError, match=r"^DCP_MUTATION: a collection by name and by id$"):
            decode(run, collections_context())


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.binary(max_size=9)), min_size=1, max_size=8))
def test_any_keys_give_the_same_changes_or_the_same_error(keys: list[tuple[bytes, bytes]]) -> None:
    run = run_of([Mutation(key=key, value=value, by_seqno=1).encode() for key, value in keys])
    assert outcome(lambda: decode_messages(run, collections_context())) == outcome(
        lambda: list_changes(by_columns(run, collections_context()))
    )


def test_later_names_appear_in_columns() -> None:
    names = CollectionNames()
    ids = np.array([8, 0, 9], np.int64)
    assert [column.to_pylist() for column in names.make_columns(ids)] == [[None, "_default", None]] * 2
    names.add_scope(5, "s")
    names.add_collection(9, 5, "nine")
    names.add_collection(8, 6, "eight")
    scopes, collections = names.make_columns(ids)
    assert scopes.to_pylist() == [None, "_default", "s"]
    assert collections.to_pylist() == ["eight", "_default", "nine"]
    assert [column.to_pylist() for column in names.make_columns(ids[2:])] == [["s"], ["nine"]]
    assert names.find_collection(9) == ("s", "nine")
    assert names.find_scope(5) == "s"


# Extended attributes


XATTRS = st.dictionaries(st.sampled_from(["_sync", "txn", "ä"]), st.binary(max_size=9), max_size=3)


@given(st.data())
def test_extended_attributes_are_a_column(data: st.DataObject) -> None:
    sent, expected = [], []
    for number in range(data.draw(st.integers(1, SMALL_RUN + 10))):
        xattrs = data.draw(st.none() | XATTRS)
        body, kind = data.draw(st.binary(max_size=14)), data.draw(st.sampled_from([Mutation, Deletion, DeletionV2]))
        datatype = data.draw(st.sampled_from([Datatype.RAW, Datatype.JSON]))
        marked = datatype | (0 if xattrs is None else Datatype.XATTR)
        value = body if xattrs is None else pack_xattrs(xattrs, body)
        message = kind(vbucket=3, key=b"k", by_seqno=number + 1, value=value, datatype=marked)
        sent.append(message.encode())
        change = change_of(replace(message, value=body, datatype=datatype))
        expected.append(change._replace(xattrs=xattrs))
    context = context_of()
    context.xattrs = True
    assert_every_path(run_of(sent), context, expected)


BAD_VALUES = [b"", b"\0\0", b"\0\0\0\x09abc", b"\0\0\0\x04abcd", pack_xattrs({"a": b"b"})[:-1]]


@pytest.mark.parametrize("value", BAD_VALUES)
@pytest.mark.parametrize("kind", [Mutation, Deletion])
def test_malformed_attributes_are_refused(value: bytes, kind: type[Mutation | Deletion]) -> None:
    good = Mutation(key=b"k", value=b"v", by_seqno=1).encode()
    bad = kind(key=b"k", value=value, by_seqno=1, datatype=Datatype.XATTR).encode()
    run, context = run_of([good, bad]), context_of()
    assert len(decode_messages(run, context)) == 2
    context.xattrs = True
    for decode in (decode_messages, by_columns):
        with pytest.raises(RemoteProtocolError, match="extended attribute") as caught:
            decode(run, context)
        assert caught.value.fatal


def test_bad_frame_is_reported_before_bad_attributes() -> None:
    bad_value = Mutation(key=b"k", value=b"", by_seqno=1, datatype=Datatype.XATTR).encode()
    run, context = run_of([bad_value, damaged(NAMED_KEY, 3, 0)]), context_of()
    context.xattrs = True
    for decode in (decode_messages, by_columns):
        with pytest.raises(RemoteProtocolError, match="key must be present"):
            decode(run, context)
