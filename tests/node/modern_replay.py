"""Replay of conversations with a real 7.2.8, in tests/captures/7.2.8: the connections, the bucket, the comparison.

The recordings are lines of text: the time in seconds, a mark, the connection, the frame in hex. Their connections
have logged in, agreed on FEATURES and selected a bucket before the first line, but for those of HANDSHAKES.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from operator import itemgetter
from pathlib import Path
from struct import Struct

from penstock.errors import RemoteProtocolError
from penstock.node import Node
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.wire.codec.flags import Datatype, OpenFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Request
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Control, Open
from penstock.wire.messages.kv import Hello, SelectBucket, pack_features
from penstock.wire.messages.sasl import SaslAuth
from penstock.wire.messages.system_event import unpack_system_event
from penstock.wire.values.snappy import inflate
from tests.node.replay import (
    CLOSED,
    CLOSES,
    EXPECT,
    MARKER,
    NOTHING,
    REMARK,
    SEND,
    Bindings,
    FramePart,
    Peer,
    Player,
    Step,
    list_parts,
    parse_frame,
)
from tests.node.wire_client import WireClient
from tests.patience import PATIENCE

RECORDINGS = Path(__file__).parents[1] / "captures" / "7.2.8"
FILES = sorted(path.stem for path in RECORDINGS.glob("*.txt"))
BUCKET, VBUCKETS = "b", 64

FEATURES = (3, 4, 6, 7, 8, 0x0A, 0x0B, 0x10, 0x11, 0x12, 0x14, 0x17)
_SIDE_FEATURES = (4, 0x0B, 0x10, 0x11, 0x12)
_WITHOUT_COLLECTIONS = tuple(feature for feature in FEATURES if feature != 0x12)
HANDSHAKES: dict[str, tuple[int, ...] | None] = {
    "coll_default_dropped/write": _WITHOUT_COLLECTIONS,
    "dcp_docs_delete_times_nocoll": _WITHOUT_COLLECTIONS,
    "dcp_docs_no_json": tuple(feature for feature in FEATURES if feature != 0x0B),
    "dcp_docs_no_snappy": tuple(feature for feature in FEATURES if feature != 0x0A),
    "dcp_mem_stream_nocoll": _WITHOUT_COLLECTIONS,
    "dcp_sreq_without_noop/xattrs": _WITHOUT_COLLECTIONS,
    "dcp_sreq_without_noop/neither": _WITHOUT_COLLECTIONS,
    "setup_bad_auth": None,
    "setup_hello": (),
    "setup_no_auth": None,
}
"""By recording, or recording and connection: the features that it agreed on. None: there was no login either."""

OPENED = ("dcp_controls", "dcp_frames_bad", "dcp_sreq_bad")
"""Recordings whose connections were opened as producers before the first line."""

_MARKS = {">": SEND, "<": EXPECT, "x": CLOSES, "!": CLOSED, "?": REMARK}
PREPARE = Struct(">QQIIIBBB")
_DELETION_V2 = Struct(">QQIB")
_TOKEN = Struct(">QQ")


@cache
def load_modern_recording(name: str) -> tuple[Step, ...]:
    """Return the steps of a recording, or those of one connection: `recording/connection`."""
    steps = []
    file, _, only = name.partition("/")
    lines = (RECORDINGS / f"{file}.txt").read_text(encoding="utf-8").splitlines()[1:]
    for index, line in enumerate(lines):
        at, mark, connection, *rest = line.split()
        if connection == only or not only:
            data = bytes.fromhex("".join(rest))
            frame = parse_frame(data) if mark == "<" else NOTHING
            steps.append(Step(_MARKS[mark], connection, data, frame, index, float(at), text=f"{name}, {mark}"))
    return tuple(steps)


def list_names() -> Iterator[str]:
    """Yield the names of all conversations. The connections of OPENED have nothing in common, so each is one."""
    for file in FILES:
        if file in OPENED:
            connections = dict.fromkeys(step.connection for step in load_modern_recording(file))
            yield from (f"{file}/{connection}" for connection in connections)
        else:
            yield file


NAMES = tuple(list_names())


def list_modern_parts(frame: Frame) -> Iterator[FramePart]:
    """Yield the compared parts of a frame: as for the old recordings, but values are inflated.

    The texts of errors are not compared, and neither are the times of deletions.
    """
    if frame.magic == Magic.RESPONSE and frame.specific not in (Status.SUCCESS, Status.ROLLBACK):
        frame = frame._replace(value=b"", datatype=0)
    frame = frame._replace(value=inflate_value(frame))
    if frame.magic == Magic.RESPONSE and len(frame.extras) == _TOKEN.size:
        vbuuid, seqno = _TOKEN.unpack(frame.extras)
        yield from (("vbuuid", vbuuid, "vbuuid"), ("seqno", seqno, ""))
        frame = frame._replace(extras=b"")
    if frame.magic == Magic.REQUEST:
        frame = frame._replace(extras=mask_times(frame))
    if frame.opcode == Opcode.GET_FAILOVER_LOG:
        frame = frame._replace(opcode=Opcode.DCP_GET_FAILOVER_LOG)
    if frame.opcode == Opcode.GET_CLUSTER_CONFIG:
        frame = frame._replace(value=bytes(bool(frame.value)))
    if frame.opcode == Opcode.COLLECTIONS_GET_MANIFEST and frame.value:
        frame = frame._replace(value=sort_manifest(frame.value))
    if frame.opcode == Opcode.DCP_SYSTEM_EVENT and frame.extras and frame.magic == Magic.REQUEST:
        event, version = frame.extras[11], frame.extras[12]
        yield "event", unpack_system_event(event, version, frame.key, frame.value), ""
        frame = frame._replace(value=b"")
    yield from list_parts(frame)


def sort_manifest(value: bytes) -> bytes:
    """Return a manifest with its scopes and collections in the order of their ids: the recorded server has no order."""
    manifest = json.loads(value)
    for scope in manifest["scopes"]:
        scope["collections"].sort(key=itemgetter("uid"))
    manifest["scopes"].sort(key=itemgetter("uid"))
    return json.dumps(manifest, sort_keys=True).encode()


def inflate_value(frame: Frame) -> bytes:
    """Return the value of a frame, inflated. NO_VALUE_WITH_UNDERLYING_DATATYPE sends the datatype of another value."""
    try:
        return inflate(frame.value) if frame.datatype & Datatype.SNAPPY and frame.value else frame.value
    except RemoteProtocolError:
        return frame.value


def mask_times(frame: Frame) -> bytes:
    """Return the extras of a frame with 1 for the time of a deletion."""
    extras = frame.extras
    if frame.opcode == Opcode.DCP_DELETION and len(extras) == _DELETION_V2.size:
        seqno, rev, time, unused = _DELETION_V2.unpack(extras)
        return _DELETION_V2.pack(seqno, rev, bool(time), unused)
    if frame.opcode == Opcode.DCP_PREPARE:
        *fields, expiry, lock_time, nru, deleted, level = PREPARE.unpack(extras)
        return PREPARE.pack(*fields, bool(expiry) if deleted else expiry, lock_time, nru, deleted, level)
    return extras


class ModernPeer(Peer):
    """A connection that has made the requests of a handshake, as the recorded ones have.

    Attributes:
        compares: whether a frame is compared.
        snapshots: by opaque: start and end of the stream's snapshot, from its last marker.
    """

    def __init__(self, node: Node, requests: Iterable[Request], compares: Callable[[Frame], bool]) -> None:
        super().__init__(node, acknowledge=False)
        self.compares = compares
        self.snapshots: dict[int, tuple[int, int]] = {}
        for request in requests:
            self.send(request.encode())
            reply = self.receive(PATIENCE)
            assert reply is not None
            assert reply.specific == Status.SUCCESS, reply

    def receive(self, seconds: float) -> Frame | None:
        """Return the next frame that is compared, or None at the connection's end.

        Raises:
            TimeoutError: no frame came within so many seconds.
        """
        while (frame := super().receive(seconds)) is not None:
            self._check_snapshot(frame)
            if self.compares(frame):
                return frame
        return None

    def _check_snapshot(self, frame: Frame) -> None:
        """Check that a change lies in the snapshot of the last marker."""
        if frame.magic != Magic.REQUEST:
            return
        if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            self.snapshots[frame.opaque] = read_snapshot(frame)
        elif frame.opcode in _CHANGES:
            start, end = self.snapshots[frame.opaque]
            place = 8 if frame.opcode in (Opcode.DCP_COMMIT, Opcode.DCP_ABORT) else 0
            seqno = int.from_bytes(frame.extras[place : place + 8], "big")
            assert start <= seqno <= end, (frame, start, end)


def read_snapshot(frame: Frame) -> tuple[int, int]:
    """Return start and end of the snapshot that a marker announces, in either form."""
    start, end, _ = MARKER.unpack_from(frame.extras if len(frame.extras) > 1 else frame.value)
    return start, end


_CUTS = (Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_SEQNO_ADVANCED)
"""Messages at the ends of snapshots."""

_CHANGES = (
    Opcode.DCP_MUTATION,
    Opcode.DCP_DELETION,
    Opcode.DCP_PREPARE,
    Opcode.DCP_COMMIT,
    Opcode.DCP_ABORT,
    Opcode.DCP_SYSTEM_EVENT,
)


class ModernPlayer(Player):
    """Plays the scripts of one recording.

    Attributes:
        name: the recording.
        cuts_freely: whether markers are only checked against the changes of their snapshots, and SEQNO_ADVANCED is left
            out. Timing decides where a producer cuts live changes into snapshots.
        replies_only: whether messages of streams are left out. Timing decides how many come before a close.
    """

    list_parts = staticmethod(list_modern_parts)

    def __init__(
        self,
        node: Node,
        name: str,
        *,
        patience: float = PATIENCE,
        cuts_freely: bool = False,
        replies_only: bool = False,
    ) -> None:
        self.name = name
        self.cuts_freely = cuts_freely
        self.replies_only = replies_only
        super().__init__(node, Bindings(), patience=patience)

    def play(self, script: Iterable[Step], *, by_vbucket: bool) -> None:
        super().play(
            [step for step in script if step.kind != EXPECT or self._compares(step.frame)], by_vbucket=by_vbucket
        )

    def _compares(self, frame: Frame) -> bool:
        if frame.magic != Magic.REQUEST:
            return True
        return not (self.replies_only or (self.cuts_freely and frame.opcode in _CUTS))

    def connect_side_client(self) -> WireClient:
        if self.name.startswith("setup_"):
            return WireClient(self.node)
        client = WireClient(self.node, BUCKET)
        client.hello(*_SIDE_FEATURES)
        return client

    def make_peer(self, connection: str) -> Peer:
        default = _WITHOUT_COLLECTIONS if connection.endswith("nocoll") else FEATURES
        features = HANDSHAKES.get(self.name, HANDSHAKES.get(f"{self.name}/{connection}", default))
        return ModernPeer(self.node, self._list_handshake(features, connection), self._compares)

    def _list_handshake(self, features: Sequence[int] | None, connection: str) -> Iterator[Request]:
        if features is None:
            return
        if self.name == "setup_hello":
            yield SaslAuth(key=b"PLAIN", value=b"\0Administrator\0right")
        if features:
            yield Hello(value=pack_features(features))
        if self.name != "dcp_no_bucket":
            yield SelectBucket(key=BUCKET.encode())
        if (file := self.name.partition("/")[0]) in OPENED:
            yield Open(key=connection.encode(), flags=OpenFlag.PRODUCER)
            if file != "dcp_controls":
                yield Control(key=b"enable_noop", value=b"true")


@contextmanager
def open_bucket(node: Node) -> Iterator[None]:
    """Create the recorded bucket on a running node, empty, and delete it at the end."""
    _run(node, node.buckets.create(BucketSpec(name=BUCKET, vbuckets=VBUCKETS)))
    try:
        yield
    finally:
        _run(node, node.buckets.delete(BUCKET))


def _run(node: Node, work: object) -> None:
    asyncio.run_coroutine_threadsafe(work, node.loop).result(PATIENCE)  # type: ignore[arg-type]
