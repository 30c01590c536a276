"""Blocking client for tests: one socket and the messages of the wire layer."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.layout import Message, decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import BufferAck, CloseStream, Control, Open, StreamReq
from penstock.wire.messages.kv import Delete, Get, GetMeta, Hello, Noop, SelectBucket, Set, Stat, pack_features
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab
from tests.patience import PATIENCE


class WireClient:
    """Client of one connection.

    Attributes:
        socket: the connected socket.
        connection: finds the frames in the received bytes.
        frames: received frames that were not returned yet, in order.
        opaques: opaques of the next stream requests.
    """

    def __init__(self, node, bucket=None, *, receive_buffer=None, tls=None, address=None):
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        if address is not None:  # all addresses of 127.0.0.0/8 are local
            self.socket.bind((address, 0))
        self.socket.connect((node.host, node.kv_port if tls is None else node.tls_port))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=node.host)
        self.connection = FrameReceiver(Slab(1 << 16), run_dialect=None)
        self.frames: list[Frame] = []
        self.opaques = count(1)
        if bucket is not None:
            assert self.ask(SelectBucket(key=bucket.encode())).specific == Status.SUCCESS

    def send(self, *messages):
        """Send messages, frames or bytes in one call."""
        self.socket.sendall(b"".join(as_bytes(message) for message in messages))

    def receive(self) -> Frame:
        """Return the next frame.

        Raises:
            EOFError: the node has closed the connection.
            TimeoutError: no bytes came in time.
        """
        while not self.frames:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            for event in self.connection.feed(data):
                assert isinstance(event, Frame), event
                self.frames.append(event)
        return self.frames.pop(0)

    def ask(self, message) -> Frame:
        """Send a request and return its reply; frames that arrive before the reply stay in `frames`."""
        self.send(message)
        skipped: list[Frame] = []
        while True:
            frame = self.receive()
            if frame.magic == Magic.RESPONSE and frame.opcode == opcode_of(message):
                self.frames[:0] = skipped
                return frame
            skipped.append(frame)

    def status(self, message) -> int:
        return self.ask(message).specific

    def skip_to(self, **header) -> Frame:
        """Return the next frame with these header fields, and drop the frames before it."""
        while True:
            frame = self.receive()
            if all(getattr(frame, name) == value for name, value in header.items()):
                return frame

    def ended(self) -> bool:
        """Wait for the end of the connection; return False if a frame comes instead."""
        try:
            self.receive()
        except (EOFError, ConnectionResetError):
            return True
        return False

    def hello(self, *features):
        """Request features with HELLO; the node must grant all of them."""
        reply = self.ask(Hello(value=pack_features(features)))
        assert reply.value == pack_features(features)
        return self

    # KV

    def set(self, key, value=b"", **fields) -> Frame:
        return self.ask(Set(key=key, value=value, **fields))

    def get(self, key, **fields) -> Frame:
        return self.ask(Get(key=key, **fields))

    def delete(self, key, **fields) -> Frame:
        return self.ask(Delete(key=key, **fields))

    def stats(self, group="") -> dict[str, str]:
        self.send(Stat(key=group.encode()))
        found: dict[str, str] = {}
        while True:
            frame = self.receive()
            assert (frame.opcode, frame.specific) == (Opcode.STAT, Status.SUCCESS), frame
            if not frame.key:
                return found
            found[frame.key.decode()] = frame.value.decode()

    def meta(self, key, **fields) -> Any:
        """Return the reply to GET_META, by default in its version 2."""
        return decode_frame(self.ask(GetMeta(**{"key": key, "version": 2, **fields})))

    # DCP

    def open(self, name="test", flags=OpenFlag.PRODUCER):
        assert self.status(Open(key=name.encode(), flags=flags)) == Status.SUCCESS
        return self

    def control(self, key, value) -> int:
        return self.status(Control(key=key.encode(), value=value.encode()))

    def stream(
        self, vbucket=0, start=0, end=MAX_SEQNO, *, vbuuid=0, snap=None, flags=0, opaque=None, value=b""
    ) -> Frame:
        """Request a stream and return the reply.

        Args:
            vbucket: id of the vbucket.
            start: start seqno.
            end: end seqno.
            vbuuid: vbuuid of the branch; 0 for a consumer without data.
            snap: start and end of the consumer's last snapshot; default: (start, start).
            flags: flags of the request.
            opaque: opaque of the stream's messages; default: the next unused number.
            value: the filter, as JSON.
        """
        low, high = snap if snap is not None else (start, start)
        return self.ask(
            StreamReq(
                vbucket=vbucket,
                flags=flags,
                start_seqno=start,
                end_seqno=end,
                vbuuid=vbuuid,
                snap_start=low,
                snap_end=high,
                value=value,
                opaque=next(self.opaques) if opaque is None else opaque,
            )
        )

    def close_stream(self, vbucket=0) -> int:
        return self.status(CloseStream(vbucket=vbucket))

    def acknowledge(self, nbytes):
        self.send(BufferAck(nbytes=nbytes))

    def message(self) -> Message:
        return decode_frame(self.receive())

    def changes(self) -> Iterator[Message]:
        """Yield the messages of streams before the next STREAM_END."""
        while (frame := self.receive()).opcode != Opcode.DCP_STREAM_END:
            yield decode_frame(frame)

    def disconnect(self):
        """Close the sending side, and wait until the node closes its side: then it has forgotten the connection."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(1 << 16):
                continue
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.ECONNRESET):  # the node has closed the connection before
                raise

    def close(self):
        self.socket.close()


def find_session(node, client):
    """Return the node's session of a client's connection."""
    assert client.status(Noop()) == Status.SUCCESS  # now the node has accepted the connection
    host, port = client.socket.getsockname()
    sessions = node.call(lambda: [connection.session for connection in node.connections.open_connections])
    (found,) = (session for session in sessions if session.peer == f"{host}:{port}")
    return found


def as_bytes(message) -> bytes:
    if isinstance(message, Frame):
        return join_frame(message)
    return message.encode() if isinstance(message, Message) else message


def opcode_of(message) -> int:
    return message.opcode if isinstance(message, Frame | Message) else message[1]


@contextmanager
def connected(node, bucket=None, **options):
    client = WireClient(node, bucket, **options)
    try:
        yield client
    finally:
        client.close()


def until_stat(client, name, value, group=""):
    """Read a statistic repeatedly until it has the expected value.

    Raises:
        AssertionError: it has another value after many reads.
    """
    for _ in range(100_000):
        if client.stats(group)[name] == str(value):
            return
    raise AssertionError(f"{name} is {client.stats(group)[name]}, expected {value}")
