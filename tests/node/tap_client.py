"""TAP consumer for tests, and the bucket of the tests of TAP streams."""

from contextlib import contextmanager

import pytest

from penstock.node import Node
from penstock.node.session.tap_settings import TapSettings
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import TapConnectFlag, TapFlag
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import DelVbucket
from penstock.wire.messages.tap import (
    TapConnect,
    TapDelete,
    TapMessage,
    TapMutation,
    TapOpaqueMessage,
    TapOptions,
    TapReply,
)
from tests.node.wire_client import WireClient, connected

F = TapConnectFlag


class TapClient(WireClient):
    """Consumer of one TAP connection.

    Attributes:
        acks: whether to answer the messages that request an answer.
    """

    acks = False

    def connect(self, name=b"", flags=0, *, acks=None, **options):
        """Send TAP_CONNECT.

        Args:
            name: name of the consumer.
            flags: flags of TAP_CONNECT.
            acks: whether to answer messages that request it; default: if the flags have SUPPORT_ACK.
            options: fields of TapOptions.
        """
        self.acks = bool(flags & F.SUPPORT_ACK) if acks is None else acks
        value = TapOptions(flags, **options).pack()
        self.send(TapConnect(key=name, flags=int(flags), value=value))
        return self

    def answer(self, message, status=Status.SUCCESS):
        self.send(TapReply(opaque=message.opaque, status=status).encode(message.opcode))

    def read_message(self):
        """Return the next message of the stream, and answer it if it requests an answer."""
        frame = self.receive()
        message = decode_frame(frame) if frame.opcode == Opcode.NOOP else decode_frame(frame, Dialect.TAP)
        if self.acks and isinstance(message, TapMessage) and message.tap_flags & TapFlag.ACK:
            self.answer(message)
        return message

    def read_messages(self, count):
        return [self.read_message() for _ in range(count)]

    def read_to_end(self):
        """Return all messages up to the end of the connection."""
        messages = []
        while True:
            try:
                messages.append(self.read_message())
            except (EOFError, ConnectionResetError):
                return messages

    def read_until(self, key):
        """Return the messages up to the change of this key."""
        messages = [self.read_message()]
        while messages[-1].key != key:
            messages.append(self.read_message())
        return messages


def abbreviate(message):
    """Return a message in a few letters: vbucket, then + and the key, - and the key, or the kind and its number."""
    match message:
        case TapMutation():
            return f"{message.vbucket}+{message.key.decode()}"
        case TapDelete():
            return f"{message.vbucket}-{message.key.decode()}"
        case TapOpaqueMessage():
            return f"{message.vbucket}opaque{message.engine_private[-1]}"
    name = type(message).__name__.removeprefix("Tap").lower()
    return f"{message.vbucket}{name}{int.from_bytes(message.value, 'big') or ''}"


def summarize(messages):
    return " ".join(map(abbreviate, messages))


@contextmanager
def connected_tap(node, name=b"", flags=0, **options):
    client = TapClient(node)
    try:
        yield client.connect(name, flags, **options)
    finally:
        client.close()


# The bucket of the stream tests: `default` with four vbuckets, two of them deleted

DUMP = F.BACKFILL | F.DUMP
FUTURE = 2**64 - 1


@pytest.fixture
def node():
    with Node.running(vbuckets=4) as node:
        yield node


@pytest.fixture
def client(node):
    with connected(node) as client:
        for vbucket in (2, 3):
            assert client.status(DelVbucket(vbucket=vbucket)) == Status.SUCCESS
        client.set(b"a", b"1", vbucket=0, flags=0xDEADBEEF, expiry=4_000_000_000)
        client.set(b"b", b"2", vbucket=0)
        client.delete(b"b", vbucket=0)
        client.set(b"c", b"3", vbucket=1)
        yield client


def set_tap_settings(node, **values):
    node.tap = TapSettings(**values)


BACKFILL = "0opaque1 1opaque1 0+a 0-b 1+c 0opaque8 1opaque8"
"""Messages of the backfill of that bucket, abbreviated."""
