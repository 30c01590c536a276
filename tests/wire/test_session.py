"""Layouts of logins, collections and server requests: rules that the layout tests do not cover."""

import pytest

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame, cut_frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode, ServerOpcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.cluster import ClustermapChanged, ServerReply
from penstock.wire.messages.collections import CollectionIdReply, GetCollectionId, GetScopeId, ScopeIdReply
from penstock.wire.messages.kv import GetRandomKey, Set
from penstock.wire.messages.sasl import SaslAuth, SaslReply, SaslStep

SECRET = b"\0user\0pencil"


@pytest.mark.parametrize("message", [SaslAuth(key=b"PLAIN", value=SECRET), SaslStep(key=b"X", value=SECRET)])
def test_secrets_are_not_shown(message):
    assert "pencil" not in f"{message}{message!r}"
    assert "value=12 bytes" in repr(message)


def test_proofs_are_not_shown():
    assert "abc" not in repr(SaslReply(value=b"v=abc"))


@pytest.mark.parametrize("cls", [GetCollectionId, GetScopeId])
def test_names_are_read_from_value_or_key(cls):
    assert cls(value=b"a.b").path == cls(key=b"a.b").path == b"a.b"


@pytest.mark.parametrize("reply", [CollectionIdReply(), ScopeIdReply()])
def test_success_has_an_id(reply):
    with pytest.raises(RemoteProtocolError, match="extras of 0 bytes, expected 12 with status SUCCESS"):
        decode_frame(cut_frame(memoryview(reply.encode()), 0))


@pytest.mark.parametrize("dialect", Dialect)
def test_server_requests_are_same_in_all_dialects(dialect):
    asked = ClustermapChanged(epoch=1, revision=2, key=b"beer")
    frame = cut_frame(memoryview(asked.encode()), 0)
    assert (frame.magic, frame.opcode) == (Magic.SERVER_REQUEST, ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION)
    assert decode_frame(frame, dialect) == asked
    assert decode_frame(cut_frame(memoryview(ServerReply(status=4).encode()), 0), dialect) == ServerReply(status=4)


def test_client_request_with_same_opcode_differs():
    frame = cut_frame(memoryview(Set(key=b"k").encode()), 0)
    assert frame.opcode == ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION
    with pytest.raises(
        RemoteProtocolError, match="CLUSTERMAP_CHANGE_NOTIFICATION: extras of 8 bytes, expected 4 or 16"
    ):
        decode_frame(frame._replace(magic=Magic.SERVER_REQUEST))


def test_other_server_opcodes_are_unknown():
    with pytest.raises(RemoteProtocolError, match="server opcode 0x00 is not served here") as caught:
        decode_frame(Frame(Magic.SERVER_REQUEST, Opcode.GET, key=b"k"))
    assert (caught.value.status, caught.value.fatal) == (Status.UNKNOWN_COMMAND, False)


def test_server_requests_have_no_framing_extras():
    with pytest.raises(LocalProtocolError, match="ClustermapChanged"):
        ClustermapChanged(epoch=1, revision=2, framing=b"\0").encode()


def test_attributes_of_any_document_of_any_collection():
    with pytest.raises(LocalProtocolError, match="GetRandomKey"):
        GetRandomKey(include_xattrs=1).encode()
    with pytest.raises(RemoteProtocolError, match="extras of 1 bytes, expected 0 or 4 or 5"):
        decode_frame(Frame(0x80, Opcode.GET_RANDOM_KEY, extras=b"\1"))
