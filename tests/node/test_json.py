"""The node detects JSON in stored values, and ignores the claim of the client."""

from typing import Any

import pytest

from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import Datatype, DocFlag, PathFlag, TapFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Mutation
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import Append, Count, Noop, Set, SetWithMeta
from penstock.wire.messages.subdoc import MultiMutation, MutationSpec, SubdocMutation, pack_mutation_specs
from penstock.wire.messages.tap import TapMutation
from penstock.wire.values.snappy import deflate
from tests.node.wire_client import connected

D, F, Op = Datatype, Feature, Opcode
META: dict[str, Any] = {"flags": 0, "expiry": 0, "rev_seqno": 9, "new_cas": 9}


@pytest.fixture
def reader(node):
    """Connect a client that reads values in their stored form."""
    with connected(node) as reader:
        yield reader.hello(F.XATTR, F.SNAPPY, F.JSON)


def read_stored_datatype(reader, key=b"k") -> int:
    found: int = reader.meta(key).value_datatype
    return found


STORES = [
    (Op.SET, Set),
    (Op.SETQ, Set),
    (Op.ADD, Set),
    (Op.ADDQ, Set),
    (Op.REPLACE, Set),
    (Op.REPLACEQ, Set),
    (Op.SET_WITH_META, SetWithMeta),
    (Op.SETQ_WITH_META, SetWithMeta),
    (Op.ADD_WITH_META, SetWithMeta),
]
VALUES = [
    *((b"1", D.JSON), (b'"text"', D.JSON), (b"true", D.JSON), (b"null", D.JSON), (b' {"a": [1]} ', D.JSON)),
    *((b'"\\ud800"', D.JSON), (b"9" * 400, D.JSON)),
    *((b"", 0), (b"text", 0), (b"{", 0), (b"{}\0", 0), (b'"\xff"', 0), (b"\xef\xbb\xbf{}", 0)),
]


@pytest.mark.parametrize(("opcode", "form"), STORES, ids=[opcode.name for opcode, _ in STORES])
@pytest.mark.parametrize("claimed_datatype", [0, D.JSON, D.SNAPPY, D.JSON | D.SNAPPY])
def test_stored_datatype_is_detected_from_the_value(client, reader, opcode, form, claimed_datatype):
    if claimed_datatype:
        client.hello(F.JSON, F.SNAPPY)
    packed = claimed_datatype & D.SNAPPY
    for number, (value, expected) in enumerate(VALUES):
        key = b"k%d" % number
        if opcode in (Op.REPLACE, Op.REPLACEQ):
            client.set(key, b"old")
        fields = META if form is SetWithMeta else {}
        message = form(key=key, value=deflate(value) if packed else value, datatype=claimed_datatype, **fields)
        client.send(message.encode(opcode), Noop())
        while (reply := client.receive()).opcode != Op.NOOP:
            assert reply.specific == Status.SUCCESS
        assert read_stored_datatype(reader, key) == expected | packed
        assert reader.get(key).datatype == expected | packed


def test_client_without_json_gets_raw_values(client, reader):
    client.set(b"k", b"{}")
    assert (client.get(b"k").datatype, reader.get(b"k").datatype) == (0, D.JSON)


def test_datatype_of_a_compressed_value_is_checked(client, reader):
    client.hello(F.SNAPPY, F.JSON)
    bomb = b"\xff\xff\xff\xff\x0f" + b"\0" * 10
    for message in (
        Set(key=b"k", value=b"{}", datatype=D.SNAPPY),
        SetWithMeta(key=b"k", value=bomb, datatype=D.SNAPPY, **META),
        SetWithMeta(key=b"k", value=b"{}", datatype=D.SNAPPY | D.JSON, **META),
    ):
        assert client.status(message) == Status.EINVAL
    assert client.get(b"k").specific == Status.KEY_ENOENT


@pytest.mark.parametrize("opcode", [Op.APPEND, Op.PREPEND])
def test_append_updates_the_datatype(client, reader, opcode):
    pieces = [b"[", b"1", b"]"] if opcode is Op.APPEND else [b"]", b"1", b"["]
    client.set(b"k", pieces[0])
    found = [read_stored_datatype(reader)]
    for piece in [*pieces[1:], b"x"]:
        client.ask(Append(key=b"k", value=piece).encode(opcode))
        found.append(read_stored_datatype(reader))
    assert found == [0, 0, D.JSON, 0]


def test_counter_is_json(client, reader):
    client.ask(Count(key=b"k", delta=1, initial=5))
    assert read_stored_datatype(reader) == D.JSON
    client.set(b"k", b" 5 apples")
    assert read_stored_datatype(reader) == 0
    client.ask(Count(key=b"k", delta=1))
    assert (client.get(b"k").value, read_stored_datatype(reader)) == (b"6", D.JSON)


@pytest.mark.parametrize("body", [b"{}", b"text"])
@pytest.mark.parametrize("packed", [0, D.SNAPPY])
def test_body_behind_extended_attributes_is_inspected(reader, body, packed):
    value = pack_xattrs({"a": b"1"}, body)
    message = SetWithMeta(
        key=b"k", value=deflate(value) if packed else value, datatype=D.XATTR | D.JSON | packed, **META
    )
    assert reader.status(message) == Status.SUCCESS
    expected = D.JSON if body == b"{}" else 0
    assert read_stored_datatype(reader) == D.XATTR | packed | expected
    reader.set(b"k", b"{}" if body == b"text" else b"text")
    assert read_stored_datatype(reader) == D.XATTR | (D.JSON & ~expected)


def test_subdoc_change_updates_the_datatype(reader):
    message = SubdocMutation.for_path(b"a", b"1", key=b"k", flags=0, doc_flags=DocFlag.MKDOC)
    assert reader.status(message.encode(Op.SUBDOC_DICT_UPSERT)) == Status.SUCCESS
    assert read_stored_datatype(reader) == D.JSON


@pytest.mark.parametrize(("body", "expected"), VALUES[:-1])
def test_body_of_a_multi_mutation_is_inspected(reader, body, expected):
    specs = [
        MutationSpec(Op.SUBDOC_DICT_UPSERT, PathFlag.XATTR | PathFlag.MKDIR_P, b"a", b"1"),
        MutationSpec(Op.SET, 0, b"", body),
    ]
    message = MultiMutation(key=b"k", value=pack_mutation_specs(specs), doc_flags=DocFlag.MKDOC)
    assert reader.status(message) == Status.SUCCESS
    assert read_stored_datatype(reader) == D.XATTR | expected


@pytest.mark.parametrize(("value", "expected"), VALUES)
def test_tap_has_no_datatype_before_hello(node, reader, value, expected):
    with connected(node) as sender:
        message = TapMutation(key=b"k", value=value, flags=0, expiry=0, ttl=1, tap_flags=TapFlag.ACK)
        assert sender.status(message) == Status.SUCCESS
    assert read_stored_datatype(reader) == expected


def test_streams_have_the_json_bit_without_hello(client):
    client.set(b"json", b'{"a":1}')
    client.set(b"text", b"text")
    client.open().stream(end=2)
    found = {message.key: message.datatype for message in client.changes() if isinstance(message, Mutation)}
    assert found == {b"json": D.JSON, b"text": 0}
