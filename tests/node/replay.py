"""The client's side of recorded conversations with a real server, played to our node over real sockets.

A recording becomes a script of steps: frames of the client, frames of the server, the connection's end, and events
beside the conversation. The player compares frame by frame. Each server chooses some values freely: cas, vbuuids,
times, and its own opaques. The first time that a recorded value occurs, it is bound to our value. From then on, each
stands for the other, also in frames of the client.
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

LATER = 10 * 365 * 86400
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
NOW = struct.pack(">Q", 0x6B0023D1)  # date in the only recording that asks for a backfill from now on
_OPAQUE = slice(12, 16)  # of a frame
_TURNS = 6
_A_MONTH = 30 * 86400


NOTHING = Frame(0, 0)


class Mismatch(AssertionError):
    """The node behaves differently from the recording."""


@dataclass(frozen=True)
class Step:
    """One step of a script. index: its place in the recording. live: about a change of after the beginning."""

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
        """Return the step with these fields of its frame changed."""
        return replace(self, frame=self.frame._replace(**fields))


Script = list[Step]


def cut(data: bytes) -> Frame:
    """Cut a frame. TAP's engine-private data, which stands in front of the key, goes where framing extras go."""
    frame = cut_frame(memoryview(data), 0)
    if frame.opcode not in TAP or frame.magic != Magic.REQUEST:
        return frame
    private = TAP_HEAD.unpack_from(frame.extras)[0]
    rest, key_length = frame.key + frame.value, len(frame.key)
    return frame._replace(
        framing=rest[:private], key=rest[private : private + key_length], value=rest[private + key_length :]
    )


def header(data: bytes) -> Frame:
    """Return the header of a request, without a check of its parts."""
    magic, opcode, _, _, datatype, specific, _, opaque, cas = HEADER.unpack_from(data)
    return Frame(magic, opcode, specific, datatype, opaque, cas)


@cache
def recording(name: str) -> tuple[Step, ...]:
    steps = []
    for index, line in enumerate(json.loads((CAPTURES / f"{name}.json").read_text())["frames"]):
        data, text = bytes.fromhex(line["hex"]), line["text"]
        kind = {"C": SEND, "S": EXPECT}.get(line["dir"]) or _ENDS.get(text, REMARK)
        frame = cut(data) if kind == EXPECT else NOTHING
        steps.append(Step(kind, line.get("conn", ""), data, frame, index, line["t"], text=text))
    return tuple(steps)


# Comparing frames

Part = tuple[str, Any, str]
"""The name of a part of a frame, its value, and the kind of name that the value is; "" where it must be the same."""


def parts(frame: Frame) -> Iterator[Part]:
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


def _extras(frame: Frame, response: bool) -> Iterator[Part]:
    fields = None if response else _FIELDS.get((frame.opcode, len(frame.extras)))
    if fields is None:
        yield "extras", frame.extras, ""
        return
    layout, names = fields
    for name, value in zip(names, layout.unpack(frame.extras), strict=True):
        if name == "tap flags":
            value &= ~TapFlag.ACK  # which changes ask for an answer is timing
        yield name, value, _KINDS.get(name, "")


def _value(frame: Frame, response: bool) -> Iterator[Part]:
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
    """Which value of ours stands for which recorded one, by kind. 0 stands for itself."""

    def __init__(self) -> None:
        self._ours: dict[str, dict[int, int]] = {}
        self._recorded: dict[str, dict[int, int]] = {}

    def bind(self, kind: str, recorded: int, ours: int) -> bool:
        """Bind the two, unless one of them is bound. Returns whether they go together."""
        if not recorded or not ours:
            return recorded == ours
        there = self._ours.setdefault(kind, {}).setdefault(recorded, ours)
        here = self._recorded.setdefault(kind, {}).setdefault(ours, recorded)
        return (there, here) == (ours, recorded)

    def ours(self, kind: str, recorded: int) -> int:
        return self._ours.get(kind, {}).get(recorded, recorded)


def compare(expected: Frame, actual: Frame, bindings: Bindings, connection: str) -> str | None:
    """Return how the frames differ, None if they do not."""
    theirs, ours = list(parts(expected)), list(parts(actual))
    for (name, recorded, kind), (_, value, _) in zip(theirs, ours, strict=False):
        kind = f"{kind} of {connection}" if kind == "opaque" else kind
        same = bindings.bind(kind, recorded, value) if kind else recorded == value
        if not same:
            return f"{name} {recorded!r}, found {value!r}"
    if [name for name, _, _ in theirs] != [name for name, _, _ in ours]:
        return f"parts {theirs}, found {ours}"
    return None


def shown(frame: Frame) -> str:
    return ", ".join(f"{name} {value!r:.60}" for name, value, _ in parts(frame) if value or name == "status")


# The player


class Peer:
    """One connection of the recorded client. acknowledge: answer each TAP frame that asks for it."""

    def __init__(self, node: Node, *, acknowledge: bool) -> None:
        self.socket = socket.create_connection((node.host, node.kv_port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.acknowledge = acknowledge
        self._received = b""

    def receive(self, seconds: float) -> Frame | None:
        """Return the next frame, None at the connection's end. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while (frame := self._cut()) is None:
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

    def _cut(self) -> Frame | None:
        if len(self._received) < HEADER_BYTES:
            return None
        size = HEADER_BYTES + BODY_LENGTH.unpack_from(self._received)[0]
        if len(self._received) < size:
            return None
        data, self._received = self._received[:size], self._received[size:]
        return cut(data)

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            """Ignore the error: the next reader finds it."""

    def close(self) -> None:
        self.socket.close()


class Player:
    """Plays scripts to a node. patience: seconds to wait for a frame."""

    def __init__(
        self, node: Node, bindings: Bindings, *, patience: float = PATIENCE, acknowledge: bool = False
    ) -> None:
        self.node = node
        self.side = WireClient(node)
        self.patience = patience
        self.bindings = bindings
        self.acknowledge = acknowledge
        self.peers: dict[str, Peer] = {}
        self.others: list[WireClient] = []

    def play(self, script: Iterable[Step], *, by_vbucket: bool) -> None:
        """Raises Mismatch. by_vbucket: frames that follow each other may come in another order.

        Only those of one vbucket keep theirs: which one's turn it is, is timing.
        """
        for run in _runs(script, by_vbucket):
            step = run[0]
            peer = self._peer(step.connection) if step.kind in (SEND, EXPECT, CLOSED, CLOSES) else None
            if step.kind == EXPECT:
                self._expect(run)
            elif step.kind == DO:
                assert step.action is not None
                self._settle()
                step.action(self)
            elif peer is not None and step.kind == SEND:
                self.send(run)
            elif peer is not None:
                self._end(step, peer)
        for name, peer in self.peers.items():
            if peer.socket.fileno() >= 0:
                self._end(Step(CLOSES, name, text="the end of the recording"), peer)

    def send(self, steps: Sequence[Step]) -> None:
        """Let the client send the frames of steps, all of one connection."""
        self._peer(steps[0].connection).send(b"".join(map(self._translate, steps)))

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()
        for client in (self.side, *self.others):
            client.close()

    def statistics(self) -> dict[str, str]:
        """Return the rest of a reply to STAT."""
        found = {}
        while (frame := self._receive(Step(EXPECT, text="a statistic"))) is not None and frame.key:
            found[frame.key.decode()] = frame.value.decode()
        return found

    def on_loop(self, work: Callable[[], Any]) -> Any:
        """Do something with the node's insides, on the node's thread."""

        async def job() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(job(), self.node.loop).result(PATIENCE)

    def _peer(self, name: str) -> Peer:
        if name not in self.peers:
            self.peers[name] = Peer(self.node, acknowledge=self.acknowledge)
        return self.peers[name]

    def _receive(self, step: Step) -> Frame | None:
        try:
            return self._peer(step.connection).receive(self.patience)
        except TimeoutError:
            raise Mismatch(f"{_at(step)}: nothing, expected {shown(step.frame) or 'the end'}") from None

    def _expect(self, run: Script) -> None:
        found: list[Frame] = []
        for step in run:
            frame = self._receive(step)
            if frame is None:
                raise Mismatch(f"{_at(step)}: the end, expected {shown(step.frame)}")
            found.append(frame)
        for step, frame in zip(sorted(run, key=lambda step: _turn(step.frame)), sorted(found, key=_turn), strict=True):
            if difference := compare(step.frame, frame, self.bindings, step.connection):
                raise Mismatch(f"{_at(step)}: {difference}\nexpected {shown(step.frame)}\nfound    {shown(frame)}")

    def _end(self, step: Step, peer: Peer) -> None:
        if step.kind == CLOSED:
            if (frame := self._receive(step)) is not None:
                raise Mismatch(f"{_at(step)}: {shown(frame)}, expected the end")
        else:
            self._settle()
            if (came := self._unexpected(peer)) is not None:
                raise Mismatch(f"{_at(step)}: {came}, expected nothing")
        peer.close()

    def _unexpected(self, peer: Peer) -> str | None:
        """Return the frames of the node that no step expects, but NOOPs."""
        try:
            while (frame := peer.receive(0)) is not None:
                if frame[:2] != (Magic.REQUEST, Opcode.NOOP):
                    return shown(frame)
        except TimeoutError:
            return None
        return "the end"

    def _settle(self) -> None:
        """Wait until the node has processed all requests, and has sent all that it sends by itself.

        It needs a turn of its event loop to accept a connection, to start it, to read, and to send. Answering another
        connection as often takes at least as many turns.
        """
        for _ in range(_TURNS):
            self.side.ask(Noop())

    def _translate(self, step: Step) -> bytes:
        """Return the frame that the client sends, with the names of this node's objects."""
        kind, opaque = f"opaque of {step.connection}", header(step.data).opaque
        if step.data[0] == Magic.REQUEST:
            self.bindings.bind(kind, opaque, opaque)  # unless it is the server's own
        head = step.data[: _OPAQUE.start] + self.bindings.ours(kind, opaque).to_bytes(4, "big")
        data = head + step.data[_OPAQUE.stop :]
        match tuple(data[:2]):
            case (Magic.REQUEST, Opcode.DCP_STREAM_REQ) if data[4] == STREAM_REQ.size:
                fields = list(STREAM_REQ.unpack_from(data, HEADER_BYTES))
                fields[4] = self.bindings.ours("vbuuid", fields[4])
                return data[:HEADER_BYTES] + STREAM_REQ.pack(*fields) + data[HEADER_BYTES + STREAM_REQ.size :]
            case (Magic.REQUEST, Opcode.TAP_CONNECT):
                return data.replace(NOW, struct.pack(">Q", int(time.time()) + 60))
            case (Magic.REQUEST, Opcode.SET):
                flags, expiry = _SET.unpack_from(data, HEADER_BYTES)
                return data[:HEADER_BYTES] + _SET.pack(flags, _expiry(expiry)) + data[HEADER_BYTES + _SET.size :]
        return data


def _expiry(recorded: int) -> int:
    """Return when an item is to expire here: later, or, where the recording waits for it, long ago."""
    if recorded > _A_MONTH:
        return recorded + LATER
    return int(time.time()) - 60 if recorded else 0


def _runs(script: Iterable[Step], by_vbucket: bool) -> Iterator[Script]:
    """Cut a script into runs of steps: frames sent without a break; with by_vbucket also frames received so."""
    run: Script = []
    for step in script:
        together = step.kind == SEND or (step.kind == EXPECT and by_vbucket)
        if run and not (together and (step.kind, step.connection) == (run[0].kind, run[0].connection)):
            yield run
            run = []
        run.append(step)
    if run:
        yield run


def _turn(frame: Frame) -> tuple[int, int]:
    return frame.magic, frame.specific if frame.magic == Magic.REQUEST else 0


def _at(step: Step) -> str:
    return f"frame {step.index}{' of ' + step.connection if step.connection else ''} ({step.text[:60]})"


@contextmanager
def playing(node: Node, **options: Any) -> Iterator[Player]:
    player = Player(node, Bindings(), **options)
    try:
        yield player
    finally:
        player.close()
