"""JSON that is nested 100,000 levels deep, in each request with JSON: it gets its status and the node keeps running.

test_stream_collections has the row for stream requests.
"""

import time

import pytest

from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.flags import Datatype, PathFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.collections import SetManifest
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import Append, Get, Hello, Noop, Set, SetVbucket, SetWithMeta, Stat, pack_features
from penstock.wire.messages.subdoc import (
    MultiLookup,
    SubdocLookup,
    SubdocMutation,
    pack_lookup_specs,
    unpack_lookup_results,
)
from tests.node.wire_client import connected

S = Status
LEVELS = 100_000
DEEP = [b"[" * LEVELS + b"]" * LEVELS, b'{"a":' * LEVELS + b"1" + b"}" * LEVELS, b"[" * LEVELS]
GET, UPSERT, PUSH = Opcode.SUBDOC_GET, Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_ARRAY_PUSH_LAST
XATTR = PathFlag.XATTR


@pytest.fixture
def client(node):
    with connected(node) as client:
        client.ask(Hello(value=pack_features([Feature.JSON, Feature.XATTR, Feature.XERROR])))
        yield client
        assert client.status(Noop()) == S.SUCCESS


def make_set_with_meta(value, datatype=0):
    now = time.time_ns()
    return SetWithMeta(key=b"k", value=value, datatype=datatype, new_cas=now, rev_seqno=9, flags=0, expiry=0)


@pytest.mark.parametrize("deep", DEEP)
def test_deep_document_is_stored_as_binary(client, deep):
    plain, claimed = Set(key=b"k", value=deep), Set(key=b"k", value=deep, datatype=Datatype.JSON)
    for message in (plain, claimed, make_set_with_meta(deep)):
        assert client.status(message) == S.SUCCESS
        answer = client.ask(Get(key=b"k"))
        assert (answer.value, answer.datatype) == (deep, 0)
    assert client.status(Append(key=b"k", value=b" ")) == S.SUCCESS


@pytest.mark.parametrize("deep", DEEP)
def test_paths_into_deep_documents_are_refused(client, deep):
    client.set(b"k", deep)
    assert client.ask(SubdocLookup.for_path(b"a", key=b"k").encode(GET)).specific == S.SUBDOC_DOC_E2DEEP
    assert client.ask(SubdocMutation.for_path(b"a", b"1", key=b"k").encode(UPSERT)).specific == S.SUBDOC_DOC_E2DEEP
    answer = client.ask(MultiLookup(key=b"k", value=pack_lookup_specs([(GET, 0, b"a"), (GET, 0, b"[0]")])))
    assert answer.specific == S.SUBDOC_MULTI_PATH_FAILURE
    assert [status for status, _ in unpack_lookup_results(answer.value)] == [S.SUBDOC_DOC_E2DEEP] * 2


@pytest.mark.parametrize("deep", DEEP)
@pytest.mark.parametrize(("opcode", "path", "flags"), [(UPSERT, b"a", 0), (UPSERT, b"x", XATTR), (PUSH, b"l", 0)])
def test_deep_values_are_refused(client, deep, opcode, path, flags):
    client.set(b"k", b'{"l":[]}')
    request = SubdocMutation.for_path(path, deep, key=b"k", flags=flags)
    assert client.ask(request.encode(opcode)).specific == S.SUBDOC_VALUE_ETOODEEP
    assert client.get(b"k").value == b'{"l":[]}'


def test_deep_attributes_are_refused(client):
    value = pack_xattrs({"x": DEEP[0]}, b"{}")
    assert client.status(make_set_with_meta(value, Datatype.XATTR)) == S.SUCCESS
    assert client.ask(SubdocLookup.for_path(b"x", key=b"k", flags=XATTR).encode(GET)).specific == S.SUBDOC_DOC_E2DEEP


REQUESTS = [
    (SetManifest(value=DEEP[0]), S.EINVAL),
    (SetVbucket(state=VbucketState.ACTIVE, value=DEEP[0], datatype=Datatype.JSON), S.EINVAL),
    (Stat(key=b"vbucket-details", value=b"[" * 4096, datatype=Datatype.JSON), S.EINVAL),
    (Stat(key=b"vbucket-details", value=DEEP[0], datatype=Datatype.JSON), S.E2BIG),
]


@pytest.mark.parametrize(("message", "status"), REQUESTS)
def test_deep_json_in_requests_is_refused(client, message, status):
    assert client.status(message) == status
