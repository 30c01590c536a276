"""Streams of a recorded real server, from tests/captures, drive the consumer core without a socket.

Each recorded STREAM_REQ becomes a feed that starts at the same position, and each TAP_CONNECT a feed of TAP. The feed
receives the frames that the server sent for it. The delivered changes are compared with the fields in the recorded
bytes, which this module reads by itself.
"""

import json
from functools import cache
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import cramjam
import pytest

from penstock.client.feeds.feed import Feed
from penstock.client.feeds.stream_position import Position
from penstock.client.feeds.vbucket_stream import StreamTarget
from penstock.client.tap.tap_feed import TapFeed
from penstock.errors import Error, StatusError
from penstock.wire.codec.flags import Datatype, TapFlag
from penstock.wire.codec.frame import Frame, cut_frame, join_frame, name_status
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import StreamReq
from penstock.wire.messages.tap import TapReply
from tests.client.receiver import Receiver

CAPTURES = Path(__file__).parents[1] / "captures"
VBUCKETS = 16
WINDOW = 1 << 24

_REQUESTS = ("8053", "8040")
"""The beginnings of the client's frames that are used: STREAM_REQ and TAP_CONNECT. Others may be malformed."""

_REQUEST = Struct(">IIQQQQQ")
_MUTATION = Struct(">QQIII")
_DELETION = Struct(">QQ")
_END = Struct(">I")
_ENTRY = Struct(">QQ")
_TAP_ITEM = Struct(">HHBBHII")
_TAP_PRIVATE = Struct(">H")
_REVISION = Struct(">Q")


@cache
def read_frames(name: str) -> list[tuple[str, str, Frame]]:
    """Return the frames of a recording: their direction, connection and parts."""
    recorded = json.loads((CAPTURES / f"{name}.json").read_text())["frames"]
    return [
        (each["dir"], each.get("conn", ""), cut_frame(memoryview(bytes.fromhex(each["hex"])), 0))
        for each in recorded
        if each["hex"] and (each["dir"] == "S" or each["hex"].startswith(_REQUESTS))
    ]


class RecordedStream(NamedTuple):
    """A stream request that a client sent, and the frames of the server for it.

    Attributes:
        name: name of the recording.
        number: the place of the request in the recording.
        request: the frame of the request.
        frames: the answer and the messages of the stream.
    """

    name: str
    number: int
    request: Frame
    frames: list[Frame]

    @property
    def fields(self):
        """Return flags, reserved, start, end, vbuuid, snap_start and snap_end of the request."""
        return _REQUEST.unpack(self.request.extras)

    def __str__(self) -> str:
        return f"{self.name}-{self.number}"


def list_streams() -> list[RecordedStream]:
    found: list[RecordedStream] = []
    for path in sorted(CAPTURES.glob("dcp_*.json")):
        open_streams: dict[tuple[str, int], RecordedStream] = {}
        for number, (direction, connection, frame) in enumerate(read_frames(path.stem)):
            place = connection, frame.opaque
            is_request = frame.opcode == Opcode.DCP_STREAM_REQ and len(frame.extras) == _REQUEST.size
            if direction == "C" and is_request and frame.magic == Magic.REQUEST:
                open_streams[place] = RecordedStream(path.stem, number, frame, [])
                found.append(open_streams[place])
            elif direction == "S" and place in open_streams:
                answers_another = frame.magic == Magic.RESPONSE and frame.opcode != Opcode.DCP_STREAM_REQ
                open_streams[place].frames.extend([] if answers_another else [frame])
    return [each for each in found if each.frames]


STREAMS = list_streams()


def read_change(frame: Frame):
    """Return event, seqno, revision, cas, key, value, flags, expiry and datatype of a recorded change."""
    if frame.opcode == Opcode.DCP_MUTATION:
        seqno, revision, flags, expiry, _ = _MUTATION.unpack_from(frame.extras)
        # The server sends compressed values without an agreement. The consumer inflates them.
        is_compressed = bool(frame.datatype & Datatype.SNAPPY)
        value = bytes(cramjam.snappy.decompress_raw(frame.value)) if is_compressed else frame.value
        content = value, flags, expiry, frame.datatype & ~Datatype.SNAPPY
        return "mutation", seqno, revision, frame.cas, frame.key, *content
    seqno, revision = _DELETION.unpack_from(frame.extras)
    return "deletion", seqno, revision, frame.cas, frame.key


def show_change(change):
    """Return a delivered change in the form of `read_change`."""
    common = change.event, change.seqno, change.rev_seqno, change.cas, change.key
    if change.event != "mutation":
        return common
    return *common, change.value, change.flags, change.expiry, change.datatype


def make_receiver(stream: RecordedStream) -> Receiver:
    """Return a receiver whose feed has sent the recorded request."""
    _, _, start, end, vbuuid, snap_start, snap_end = stream.fields
    position = Position(seqno=start, vbuuid=vbuuid, snap_start=snap_start, snap_end=snap_end)
    target = StreamTarget(position=position, end_seqno=end)
    receiver = Receiver(Feed(VBUCKETS, {stream.request.specific: target}, window=WINDOW))
    (asked,) = receiver.feed.take_requests(lambda: stream.request.opaque)
    assert isinstance(asked, StreamReq)
    assert (asked.vbucket, asked.opaque) == (stream.request.specific, stream.request.opaque)
    found = (asked.start_seqno, asked.end_seqno, asked.vbuuid, asked.snap_start, asked.snap_end)
    assert found == stream.fields[2:]
    return receiver


def is_requested(stream: RecordedStream) -> bool:
    """Return whether our consumer sends such a request: its ends are not before its starts, and 0 is in no branch."""
    _, _, start, end, vbuuid, *_ = stream.fields
    return end >= max(start, 1) and not (start == 0 and vbuuid)


def find_status(stream: RecordedStream) -> int:
    return stream.frames[0].specific


def select(*statuses):
    return [each for each in STREAMS if is_requested(each) and find_status(each) in statuses]


ACCEPTED, ROLLED_BACK = select(Status.SUCCESS), select(Status.ROLLBACK)
REFUSED = [each for each in STREAMS if is_requested(each) and each not in (*ACCEPTED, *ROLLED_BACK)]


def test_recordings_have_streams_of_each_outcome():
    assert [len(ACCEPTED), len(ROLLED_BACK), len(REFUSED)] == [50, 15, 7]


@pytest.mark.parametrize("stream", ACCEPTED, ids=str)
def test_changes_of_a_recorded_stream_are_the_recorded_bytes(stream):
    receiver = make_receiver(stream)
    rows = receiver.get(*map(join_frame, stream.frames))
    changes = [each for each in stream.frames if each.opcode in (Opcode.DCP_MUTATION, Opcode.DCP_DELETION)]
    assert [show_change(row) for row in rows] == [read_change(frame) for frame in changes]
    assert {row.vbucket for row in rows} <= {stream.request.specific}
    branches = [vbuuid for vbuuid, _ in _ENTRY.iter_unpack(stream.frames[0].value)]
    assert {row.vbuuid for row in rows} <= {branches[0]}


@pytest.mark.parametrize("stream", ACCEPTED, ids=str)
def test_recorded_stream_in_pieces_gives_the_same_changes(stream):
    whole = make_receiver(stream).get(*map(join_frame, stream.frames))
    receiver = make_receiver(stream)
    data = b"".join(map(join_frame, stream.frames))
    step = max(1, len(data) // 50)
    pieces = [row for first in range(0, len(data), step) for row in receiver.get(data[first : first + step])]
    assert pieces == whole


@pytest.mark.parametrize("stream", ROLLED_BACK, ids=str)
def test_recorded_rollback_leads_to_a_request_from_there_or_below(stream):
    receiver = make_receiver(stream)
    receiver.get(join_frame(stream.frames[0]))
    requested = int.from_bytes(stream.frames[0].value, "big")
    (again,) = receiver.feed.take_requests(lambda: 1)
    assert again.start_seqno <= requested
    rows = receiver.get(accept_with_log(again))
    assert [(row.event, row.seqno, row.requested_seqno) for row in rows] == [("rollback", again.start_seqno, requested)]


def accept_with_log(request) -> bytes:
    answer = Frame(Magic.RESPONSE, Opcode.DCP_STREAM_REQ, opaque=request.opaque, value=_ENTRY.pack(7, 0))
    return join_frame(answer)


@pytest.mark.parametrize("stream", REFUSED, ids=str)
def test_recorded_refusal_is_reported_with_its_status(stream):
    receiver = make_receiver(stream)
    try:
        receiver.get(join_frame(stream.frames[0]))
        error: Error | None = receiver.feed.failures.newest
    except StatusError as refused:
        error = refused
    assert isinstance(error, StatusError)
    assert name_status(find_status(stream)) in str(error)


# TAP: one stream for all vbuckets


def list_tap_streams() -> dict[str, list[Frame]]:
    """Return the frames of each recorded TAP connection that has changes, by recording and connection."""
    found: dict[str, list[Frame]] = {}
    for path in sorted(CAPTURES.glob("tap_*.json")):
        for direction, connection, frame in read_frames(path.stem):
            if direction == "S" and frame.magic == Magic.REQUEST and frame.opcode in _TAP_MESSAGES:
                found.setdefault(f"{path.stem}-{connection}".rstrip("-"), []).append(frame)
    changes = {Opcode.TAP_MUTATION, Opcode.TAP_DELETE}
    return {name: frames for name, frames in found.items() if changes & {frame.opcode for frame in frames}}


_TAP_MESSAGES = range(Opcode.TAP_MUTATION, Opcode.TAP_CHECKPOINT_END + 1)
TAP_STREAMS = list_tap_streams()


def read_tap_change(frame: Frame):
    """Return vbucket, event, revision, cas, key and, of a mutation, value and expiry of a recorded change."""
    (private,) = _TAP_PRIVATE.unpack_from(frame.extras)
    body, key_length = frame.key + frame.value, len(frame.key)
    key, value = body[private : private + key_length], body[private + key_length :]
    (revision,) = _REVISION.unpack_from(body)
    common = frame.specific, revision, frame.cas, key
    if frame.opcode == Opcode.TAP_DELETE:
        return "deletion", *common
    return "mutation", *common, value, _TAP_ITEM.unpack(frame.extras)[-1]


def show_tap_change(change):
    common = change.event, change.vbucket, change.rev_seqno, change.cas, change.key
    return common if change.event == "deletion" else (*common, change.value, change.expiry)


STARTED_AGAIN = {"tap_change_vb_filter", "tap_flush"}
"""Here the server announces vbuckets for a second time, or empties them: the rows before are void."""


def test_recordings_have_many_tap_streams():
    assert len(TAP_STREAMS) == 29
    assert TAP_STREAMS.keys() > STARTED_AGAIN


@pytest.mark.parametrize("name", TAP_STREAMS)
def test_changes_of_a_recorded_tap_stream_are_the_recorded_bytes(name):
    frames = TAP_STREAMS[name]
    receiver = Receiver(TapFeed(VBUCKETS, range(VBUCKETS), window=WINDOW))
    receiver.feed.take_requests(lambda: 1)
    rows = receiver.get(*map(join_frame, frames))
    changes = [each for each in frames if each.opcode in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE)]
    shown = [show_tap_change(row) for row in rows if row.event != "rollback"]
    for vbucket in range(VBUCKETS):  # rows of several vbuckets may come in another order
        expected = [read_tap_change(each) for each in changes if each.specific == vbucket]
        assert [row for row in shown if row[1] == vbucket] == expected
    assert (name in STARTED_AGAIN) == any(row.event == "rollback" for row in rows)
    wanted = [each.opaque for each in frames if int.from_bytes(each.extras[2:4], "big") & TapFlag.ACK]
    assert [each.opaque for each in receiver.sent if isinstance(each, TapReply)] == wanted
