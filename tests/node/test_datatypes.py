"""Compressed values and extended attributes: how they are stored, and the values that readers get."""

import pytest

from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import Datatype, PathFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import Append, Count, Hello, Set, SetWithMeta, pack_features
from penstock.wire.messages.subdoc import SubdocLookup
from penstock.wire.values.snappy import deflate, inflate
from tests.node.wire_client import connected

D, F = Datatype, Feature
TEXT = b'{"text":"' + b"water " * 100 + b'"}'


def request_features(client, *features):
    assert client.status(Hello(value=pack_features(features))) == Status.SUCCESS


@pytest.fixture
def modern(node):
    with connected(node) as client:
        request_features(client, F.SNAPPY, F.JSON, F.XATTR)
        yield client


def test_compressed_value_is_stored_unchanged(modern):
    packed = deflate(TEXT)
    assert modern.set(b"k", packed, datatype=D.SNAPPY | D.JSON).specific == Status.SUCCESS
    read = modern.get(b"k")
    assert (read.value, read.datatype) == (packed, D.SNAPPY | D.JSON)


@pytest.mark.parametrize(("features", "datatype"), [((), 0), ((F.JSON,), D.JSON)])
def test_client_without_snappy_gets_inflated_values(client, modern, features, datatype):
    modern.set(b"k", deflate(TEXT), datatype=D.SNAPPY | D.JSON)
    request_features(client, *features)
    read = client.get(b"k")
    assert (read.value, read.datatype) == (TEXT, datatype)


@pytest.mark.parametrize(
    "value", [b"", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x08x", deflate(TEXT)[:-1], b"\x05abc"]
)
def test_invalid_compressed_value_is_refused(modern, value):
    assert modern.set(b"bad", value, datatype=D.SNAPPY).specific in (Status.EINVAL, Status.E2BIG)
    assert modern.get(b"bad").specific == Status.KEY_ENOENT


def test_compressed_value_can_be_extended(modern):
    modern.set(b"k", deflate(b"abc"), datatype=D.SNAPPY)
    assert modern.status(Append(key=b"k", value=deflate(b"def"), datatype=D.SNAPPY)) == Status.SUCCESS
    read = modern.get(b"k")
    assert (read.value, read.datatype) == (b"abcdef", 0)
    modern.set(b"n", deflate(b"41"), datatype=D.SNAPPY)
    assert modern.ask(Count(key=b"n", delta=1)).value == (42).to_bytes(8, "big")
    read = modern.get(b"n")
    assert (read.value, read.datatype) == (b"42", D.JSON)


@pytest.mark.parametrize("compressed", [False, True])
def test_readers_get_no_extended_attributes(client, modern, compressed):
    value = pack_xattrs({"_sync": b"{}", "mine": b"1"}, TEXT)
    datatype = D.XATTR | D.JSON
    if compressed:
        value, datatype = deflate(value), datatype | D.SNAPPY
    stored = SetWithMeta(key=b"x", value=value, datatype=datatype, flags=1, expiry=0, rev_seqno=1, new_cas=7)
    assert modern.status(stored) == Status.SUCCESS
    assert (modern.get(b"x").value, modern.get(b"x").datatype) == (TEXT, D.JSON)
    assert (client.get(b"x").value, client.get(b"x").datatype) == (TEXT, 0)
    assert modern.meta(b"x").value_datatype == datatype


def test_set_with_extended_attributes_is_refused(modern):
    assert modern.status(Set(key=b"k", value=pack_xattrs({"a": b"1"}), datatype=D.XATTR)) == Status.EINVAL


@pytest.mark.parametrize("opcode", [Opcode.SET, Opcode.REPLACE])
@pytest.mark.parametrize("compressed", [False, True])
def test_replaced_document_keeps_only_system_attributes(modern, opcode, compressed):
    value, datatype = pack_xattrs({"_sync": b"{}", "mine": b"1"}, b"old"), D.XATTR
    if compressed:
        value, datatype = deflate(value), datatype | D.SNAPPY
    modern.ask(SetWithMeta(key=b"x", value=value, datatype=datatype, flags=1, expiry=0, rev_seqno=1, new_cas=7))
    new, new_datatype = (deflate(b"new"), D.SNAPPY) if compressed else (b"new", 0)
    assert modern.ask(Set(key=b"x", value=new, datatype=new_datatype).encode(opcode)).specific == Status.SUCCESS
    assert modern.get(b"x").value == b"new"
    assert modern.ask(SubdocLookup.for_path(b"mine", key=b"x", flags=PathFlag.XATTR)).value == b"1"
    assert modern.meta(b"x").value_datatype == D.XATTR


def test_inflated_value_equals_the_original():
    assert inflate(deflate(TEXT)) == TEXT
