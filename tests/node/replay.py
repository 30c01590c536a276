"""Replay of recorded conversations with a real server: the client's frames, sent to our node over real sockets.

A recording becomes a script of steps: frames of the client, frames of the server, the connection's end, and actions of
other clients. The player compares the frames of the node with those of the server. Each server chooses some values
freely: cas, vbuuids, times, and its own opaques. When such a recorded value occurs for the first time, the player binds
it to the node's value. From then on, it translates one into the other, also in frames of the client.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

from penstock.node import Node
from penstock.wire.codec.flags import TapFlag
from penstock.wire.codec.frame import BODY_LENGTH, HEADER, HEADER_BYTES, Frame, cut_frame, join_frame, name_opcode
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Noop
from tests.node.wire_client import WireClient
from tests.patience import PATIENCE

CAPTURES = Path(__file__).parents[1] / "captures"
NAMES = sorted(path.stem for path in CAPTURES.glob("*.json"))

CLOCK_OFFSET = 10 * 365 * 86400
"""Seconds between the recording's clock and ours. Documents of the recording must not expire during the replay."""

SEND, EXPECT, CLOSED, CLOSES, DO, REMARK = "send", "expect", "closed", "closes", "do", "remark"
"""The kinds of steps: the client sends; the server sends; the server has closed; the client closes; an action."""

_ENDS = {"server closed the connection": CLOSED, "client closes the connection": CLOSES}
TAP = range(Opcode.TAP_MUTATION, Opcode.TAP_CHECKPOINT_END + 1)
TAP_HEAD = Struct(">HHB")
TAP_ITEM = Struct(">HHBBHII")
TAP_DELETE = Struct(">HHBBH")
MUTATION = Struct(">QQIIIHB")
DELETION = Struct(">QQH")
MARKER = Struct(">QQI")
STREAM_REQ = Struct(">IIQQQQQ")
_SET = Struct(">II")
ENTRY = Struct(">QQ")
LOGS = (Opcode.DCP_STREAM_REQ, Opcode.DCP_GET_FAILOVER_LOG)
NOW = struct.pack(">Q", 0x6B0023D1)  # a date, in the only recording that requests no older changes
_OPAQUE = slice(12, 16)  # of a frame
_TURNS = 6
_A_MONTH = 30 * 86400


NOTHING = Frame(0, 0)


class Mismatch(AssertionError):
    """The node behaves differently from the recording."""


@dataclass(frozen=True)
class Step:
    """One step of a script.

    Attributes:
        kind: SEND, EXPECT, CLOSED, CLOSES, DO or REMARK.
        connection: name of the connection in the recording.
        data: bytes of the client's frame.
        frame: the server's frame.
        index: position in the recording, from 0; -1 for an added step.
        at: seconds since the start of the recording.
        live: whether the frame sends a change that was made after the start of the conversation.
        text: the recording's description of the frame.
        action: the action of other clients, in a step of the kind DO.
    """

    kind: str
    connection: str = ""
    data: bytes = b""
    frame: Frame = NOTHING
    index: int = -1
    at: float = 0.0
    live: bool = False
    text: str = ""
    action: Callable[[Player], None] | None = None

    def change(self, **fields: Any) -> Step:
        """Return a copy of the step with these fields of its frame changed."""
        return replace(self, frame=self.frame._replace(**fields))


Script = list[Step]


def parse_frame(data: bytes) -> Frame:
    """Parse a frame.

    TAP's engine-private data stands in front of the key. It becomes the framing extras of the result.
    """
    frame = cut_frame(memoryview(data), 0)
    if frame.opcode not in TAP or frame.magic != Magic.REQUEST:
        return frame
    private = TAP_HEAD.unpack_from(frame.extras)[0]
    rest, key_length = frame.key + frame.value, len(frame.key)
    return frame._replace(
        framing=rest[:private], key=rest[private : private + key_length], value=rest[private + key_length :]
    )


def parse_header(data: bytes) -> Frame:
    """Parse the header of a request, and leave the body unchecked."""
    magic, opcode, _, _, datatype, specific, _, opaque, cas = HEADER.unpack_from(data)
    return Frame(magic, opcode, specific, datatype, opaque, cas)


@cache
def load_recording(name: str) -> tuple[Step, ...]:
    steps = []
    for index, line in enumerate(json.loads((CAPTURES / f"{name}.json").read_text())["frames"]):
        data, text = bytes.fromhex(line["hex"]), line["text"]
        kind = {"C": SEND, "S": EXPECT}.get(line["dir"]) or _ENDS.get(text, REMARK)
        frame = parse_frame(data) if kind == EXPECT else NOTHING
        steps.append(Step(kind, line.get("conn", ""), data, frame, index, line["t"], text=text))
    return tuple(steps)


# Comparing frames

FramePart = tuple[str, Any, str]
"""Name, value and kind of a part of a frame. The kind is that of its bindings, or "" if the values must be equal."""


def list_parts(frame: Frame) -> Iterator[FramePart]:
    """Yield the compared parts of a frame, in order."""
    response = frame.magic == Magic.RESPONSE
    yield "magic", frame.magic, ""
    yield "opcode", name_opcode(frame.opcode), ""
    yield "status" if response else "vbucket", frame.specific, ""
    yield "datatype", frame.datatype, ""
    if frame.opcode not in TAP or response:
        yield "opaque", frame.opaque, "opaque"
    yield "cas", frame.cas, "cas"
    yield from _extras(frame, response)
    yield "private", frame.framing, ""
    yield "key", frame.key, ""
    yield from _value(frame, response)


def _extras(frame: Frame, response: bool) -> Iterator[FramePart]:
    fields = None if response else _FIELDS.get((frame.opcode, len(frame.extras)))
    if fields is None:
        yield "extras", frame.extras, ""
        return
    layout, names = fields
    for name, value in zip(names, layout.unpack(frame.extras), strict=True):
        if name == "tap flags":
            value &= ~TapFlag.ACK  # timing decides which changes request an answer
        yield name, value, _KINDS.get(name, "")


def _value(frame: Frame, response: bool) -> Iterator[FramePart]:
    if response and frame.specific not in (Status.SUCCESS, Status.ROLLBACK):
        yield "text of the error", bool(frame.value), ""
    elif response and frame.opcode in LOGS and frame.specific == Status.SUCCESS:
        for vbuuid, seqno in ENTRY.iter_unpack(frame.value):
            yield "vbuuid", vbuuid, "vbuuid"
            yield "seqno", seqno, ""
    else:
        yield "value", frame.value, ""


_FIELDS: dict[tuple[int, int], tuple[Struct, tuple[str, ...]]] = {
    (Opcode.DCP_MUTATION, 31): (MUTATION, ("by_seqno", "rev_seqno", "flags", "expiry", "lock_time", "nmeta", "nru")),
    (Opcode.DCP_DELETION, 18): (DELETION, ("by_seqno", "rev_seqno", "nmeta")),
    (Opcode.DCP_SNAPSHOT_MARKER, 20): (MARKER, ("start_seqno", "end_seqno", "flags")),
    (Opcode.DCP_STREAM_REQ, 48): (
        STREAM_REQ,
        ("flags", "reserved", "start_seqno", "end_seqno", "vbuuid", "snap_start", "snap_end"),
    ),
    (Opcode.TAP_MUTATION, 16): (
        TAP_ITEM,
        ("private length", "tap flags", "ttl", "reserved", "reserved too", "flags", "expiry"),
    ),
    (Opcode.TAP_DELETE, 8): (TAP_DELETE, ("private length", "tap flags", "ttl", "reserved", "reserved too")),
}
_KINDS = {"expiry": "expiry", "vbuuid": "vbuuid"}


class Bindings:
    """Pairs of a recorded value and the node's value, by kind. 0 is always paired with 0."""

    def __init__(self) -> None:
        self._ours: dict[str, dict[int, int]] = {}
        self._recorded: dict[str, dict[int, int]] = {}

    def bind(self, kind: str, recorded: int, ours: int) -> bool:
        """Bind two values if neither is bound yet, and return whether they are bound to each other."""
        if not recorded or not ours:
            return recorded == ours
        there = self._ours.setdefault(kind, {}).setdefault(recorded, ours)
        here = self._recorded.setdefault(kind, {}).setdefault(ours, recorded)
        return (there, here) == (ours, recorded)

    def translate(self, kind: str, recorded: int) -> int:
        """Return the node's value for a recorded value; the same value if it is unbound."""
        return self._ours.get(kind, {}).get(recorded, recorded)


PartLister = Callable[[Frame], Iterator[FramePart]]


def compare_frames(
    expected: Frame, actual: Frame, bindings: Bindings, connection: str, list_parts: PartLister = list_parts
) -> str | None:
    """Return a text about the first difference of two frames, or None if they agree."""
    theirs, ours = list(list_parts(expected)), list(list_parts(actual))
    for (name, recorded, kind), (_, value, _) in zip(theirs, ours, strict=False):
        kind = f"{kind} of {connection}" if kind == "opaque" else kind
        same = bindings.bind(kind, recorded, value) if kind else recorded == value
        if not same:
            return f"{name} {recorded!r}, found {value!r}"
    if [name for name, _, _ in theirs] != [name for name, _, _ in ours]:
        return f"parts {theirs}, found {ours}"
    return None


def format_frame(frame: Frame) -> str:
    return ", ".join(f"{name} {value!r:.60}" for name, value, _ in list_parts(frame) if value or name == "status")


# The player


class Peer:
    """One connection of the recorded client.

    Attributes:
        acknowledge: whether to answer each TAP frame that requests an answer.
    """

    def __init__(self, node: Node, *, acknowledge: bool) -> None:
        self.socket = socket.create_connection((node.host, node.kv_port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.acknowledge = acknowledge
        self._received = b""

    def receive(self, seconds: float) -> Frame | None:
        """Return the next frame, or None at the connection's end.

        Raises:
            TimeoutError: no frame came within so many seconds.
        """
        deadline = time.monotonic() + seconds
        while (frame := self._cut_frame()) is None:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._received += data
        if self.acknowledge and frame.opcode in TAP and TAP_HEAD.unpack_from(frame.extras)[1] & TapFlag.ACK:
            self.send(join_frame(Frame(Magic.RESPONSE, frame.opcode, opaque=frame.opaque)))
        return frame

    def _cut_frame(self) -> Frame | None:
        if len(self._received) < HEADER_BYTES:
            return None
        size = HEADER_BYTES + BODY_LENGTH.unpack_from(self._received)[0]
        if len(self._received) < size:
            return None
        data, self._received = self._received[:size], self._received[size:]
        return parse_frame(data)

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            """Ignore the error: the next receive reports the end."""

    def close(self) -> None:
        self.socket.close()


class Player:
    """Plays scripts to a node.

    Attributes:
        node: the node.
        side_client: a connection for the actions of other clients.
        patience: seconds to wait for a frame.
        bindings: pairs of recorded values and the node's values.
        acknowledge: whether the recorded client answers TAP frames that request an answer.
        peers: connections of the recorded client, by name.
        others: more connections that actions have opened.
    """

    list_parts: PartLister = staticmethod(list_parts)

    def __init__(
        self, node: Node, bindings: Bindings, *, patience: float = PATIENCE, acknowledge: bool = False
    ) -> None:
        self.node = node
        self.side_client = self.connect_side_client()
        self.patience = patience
        self.bindings = bindings
        self.acknowledge = acknowledge
        self.peers: dict[str, Peer] = {}
        self.others: list[WireClient] = []

    def connect_side_client(self) -> WireClient:
        return WireClient(self.node)

    def make_peer(self, connection: str) -> Peer:
        """Open a connection of the recorded client."""
        return Peer(self.node, acknowledge=self.acknowledge)

    def play(self, script: Iterable[Step], *, by_vbucket: bool) -> None:
        """Play a script.

        Args:
            script: the steps.
            by_vbucket: compare the order of frames only within a vbucket, since timing decides the order of vbuckets.

        Raises:
            Mismatch: the node sends other frames than the script expects.
        """
        for run in _split_into_runs(script, by_vbucket):
            step = run[0]
            peer = self._open_peer(step.connection) if step.kind in (SEND, EXPECT, CLOSED, CLOSES) else None
            if step.kind == EXPECT:
                self._expect_run(run)
            elif step.kind == DO:
                assert step.action is not None
                self._wait_until_settled()
                step.action(self)
            elif peer is not None and step.kind == SEND:
                self.send(run)
            elif peer is not None:
                self._end_connection(step, peer)
        for name, peer in self.peers.items():
            if peer.socket.fileno() >= 0:
                self._end_connection(Step(CLOSES, name, text="the end of the recording"), peer)

    def send(self, steps: Sequence[Step]) -> None:
        """Send the client's frames of some steps, which all belong to one connection."""
        self._open_peer(steps[0].connection).send(b"".join(map(self._translate, steps)))

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()
        for client in (self.side_client, *self.others):
            client.close()

    def read_statistics(self) -> dict[str, str]:
        """Receive the frames of a reply to STAT, and return the statistics."""
        found = {}
        while (frame := self._receive(Step(EXPECT, text="a statistic"))) is not None and frame.key:
            found[frame.key.decode()] = frame.value.decode()
        return found

    def run_on_loop(self, work: Callable[[], Any]) -> Any:
        """Run a function on the node's event loop, which owns the node's state, and return its result."""

        async def job() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(job(), self.node.loop).result(PATIENCE)

    def _open_peer(self, name: str) -> Peer:
        if name not in self.peers:
            self.peers[name] = self.make_peer(name)
        return self.peers[name]

    def _receive(self, step: Step) -> Frame | None:
        try:
            return self._open_peer(step.connection).receive(self.patience)
        except TimeoutError:
            expected = format_frame(step.frame) or "the end"
            raise Mismatch(f"{_format_place(step)}: nothing, expected {expected}") from None

    def _expect_run(self, run: Script) -> None:
        found: list[Frame] = []
        for step in run:
            frame = self._receive(step)
            if frame is None:
                raise Mismatch(f"{_format_place(step)}: the end, expected {format_frame(step.frame)}")
            found.append(frame)
        steps = sorted(run, key=lambda step: _get_order_key(step.frame))
        for step, frame in zip(steps, sorted(found, key=_get_order_key), strict=True):
            if difference := compare_frames(step.frame, frame, self.bindings, step.connection, self.list_parts):
                both = f"expected {format_frame(step.frame)}\nfound    {format_frame(frame)}"
                raise Mismatch(f"{_format_place(step)}: {difference}\n{both}")

    def _end_connection(self, step: Step, peer: Peer) -> None:
        if step.kind == CLOSED:
            if (frame := self._receive(step)) is not None:
                raise Mismatch(f"{_format_place(step)}: {format_frame(frame)}, expected the end")
        else:
            self._wait_until_settled()
            if (found := self._find_unexpected(peer)) is not None:
                raise Mismatch(f"{_format_place(step)}: {found}, expected nothing")
        peer.close()

    def _find_unexpected(self, peer: Peer) -> str | None:
        """Return a text about the next received frame that is no NOOP, or None if there is none."""
        try:
            while (frame := peer.receive(0)) is not None:
                if frame[:2] != (Magic.REQUEST, Opcode.NOOP):
                    return format_frame(frame)
        except TimeoutError:
            return None
        return "the end"

    def _wait_until_settled(self) -> None:
        """Wait until the node has processed all requests, and has sent all messages that need no request.

        The node takes one turn of its event loop each to accept a connection, to start it, to read, and to send. A
        reply on another connection takes at least one turn.
        """
        for _ in range(_TURNS):
            self.side_client.ask(Noop())

    def _translate(self, step: Step) -> bytes:
        """Return the client's frame with the recorded values replaced by the node's values."""
        kind, opaque = f"opaque of {step.connection}", parse_header(step.data).opaque
        if step.data[0] == Magic.REQUEST:
            self.bindings.bind(kind, opaque, opaque)  # the server's own opaques are bound already
        head = step.data[: _OPAQUE.start] + self.bindings.translate(kind, opaque).to_bytes(4, "big")
        data = head + step.data[_OPAQUE.stop :]
        match tuple(data[:2]):
            case (Magic.REQUEST, Opcode.DCP_STREAM_REQ) if data[4] == STREAM_REQ.size:
                fields = list(STREAM_REQ.unpack_from(data, HEADER_BYTES))
                fields[4] = self.bindings.translate("vbuuid", fields[4])
                return data[:HEADER_BYTES] + STREAM_REQ.pack(*fields) + data[HEADER_BYTES + STREAM_REQ.size :]
            case (Magic.REQUEST, Opcode.TAP_CONNECT):
                return data.replace(NOW, struct.pack(">Q", int(time.time()) + 60))
            case (Magic.REQUEST, Opcode.SET):
                flags, expiry = _SET.unpack_from(data, HEADER_BYTES)
                return data[:HEADER_BYTES] + _SET.pack(flags, _shift_expiry(expiry)) + data[HEADER_BYTES + _SET.size :]
        return data


def _shift_expiry(recorded: int) -> int:
    """Return the expiry for the replay: later than now, or in the past where the recording waits for the expiry."""
    if recorded > _A_MONTH:
        return recorded + CLOCK_OFFSET
    return int(time.time()) - 60 if recorded else 0


def _split_into_runs(script: Iterable[Step], by_vbucket: bool) -> Iterator[Script]:
    """Split a script into runs: consecutive frames of the client, and single other steps.

    With `by_vbucket`, consecutive frames of the server are one run too.
    """
    run: Script = []
    for step in script:
        together = step.kind == SEND or (step.kind == EXPECT and by_vbucket)
        if run and not (together and (step.kind, step.connection) == (run[0].kind, run[0].connection)):
            yield run
            run = []
        run.append(step)
    if run:
        yield run


def _get_order_key(frame: Frame) -> tuple[int, int]:
    return frame.magic, frame.specific if frame.magic == Magic.REQUEST else 0


def _format_place(step: Step) -> str:
    return f"frame {step.index}{' of ' + step.connection if step.connection else ''} ({step.text[:60]})"


@contextmanager
def open_player(node: Node, **options: Any) -> Iterator[Player]:
    player = Player(node, Bindings(), **options)
    try:
        yield player
    finally:
        player.close()
