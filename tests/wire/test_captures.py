"""Conversations recorded from a real server, in tests/captures: every frame decodes and encodes to the same bytes.

The server is of the last line that speaks TAP beside DCP. A file holds the frames of one conversation in their order.
`dir` is C for frames of the client, S for frames of the server, and - for a remark without bytes.
"""

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.frame import Frame, cut_frame, join_frame, read_frame_length
from penstock.wire.codec.layout import Message, decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages import dcp, kv, tap
from penstock.wire.messages.dcp_values import split_extended_meta

CAPTURES = sorted((Path(__file__).parents[1] / "captures").glob("*.json"))


class Recorded(NamedTuple):
    """A frame: the conversation and its number there, from 0."""

    conversation: str
    number: int
    data: bytes


@cache
def recorded() -> tuple[Recorded, ...]:
    return tuple(
        Recorded(path.stem, number, bytes.fromhex(frame["hex"]))
        for path in CAPTURES
        for number, frame in enumerate(json.loads(path.read_text())["frames"])
        if frame["hex"]
    )


MALFORMED = {
    ("crash_response_get", 0): (Status.EINVAL, "GET: extras of 0 bytes, expected 4 with status SUCCESS"),
    ("dcp_bad_bufack_ext8", 2): (Status.EINVAL, "DCP_BUFFER_ACK: extras of 8 bytes, expected 4"),
    ("dcp_bad_flog_ext", 2): (Status.EINVAL, "DCP_GET_FAILOVER_LOG: extras of 4 bytes, expected 0"),
    ("dcp_bad_keylen_gt_body", 2): (
        Status.EINVAL,
        "DCP_GET_FAILOVER_LOG: extras of 0 and key of 10 bytes in a body of 0",
    ),
    ("dcp_bad_magic_00", 2): (Status.EINVAL, "first byte of a frame is 0x00, not a known magic"),
    ("dcp_bad_magic_82", 2): (Status.UNKNOWN_COMMAND, "server opcode 0x54 is not served here"),
    ("dcp_bad_op5f", 2): (Status.EINVAL, "DCP_SYSTEM_EVENT: extras of 0 bytes, expected 13"),
    ("dcp_bad_open_ext0", 0): (Status.EINVAL, "DCP_OPEN: extras of 0 bytes, expected 8"),
    ("dcp_bad_open_ext4", 0): (Status.EINVAL, "DCP_OPEN: extras of 4 bytes, expected 8"),
    ("dcp_bad_open_nokey", 0): (Status.EINVAL, "DCP_OPEN: key must be present, found 0 bytes"),
    ("dcp_bad_sreq_ext0", 2): (Status.EINVAL, "DCP_STREAM_REQ: extras of 0 bytes, expected 48"),
    ("dcp_bad_sreq_ext40", 2): (Status.EINVAL, "DCP_STREAM_REQ: extras of 40 bytes, expected 48"),
    ("dcpcons_marker_ext19", 13): (Status.EINVAL, "DCP_SNAPSHOT_MARKER: extras of 19 bytes, expected 1 or 20"),
    ("dcpcons_mut_ext30", 13): (Status.EINVAL, "DCP_MUTATION: extras of 30 bytes, expected 31 or 32"),
    ("dcpcons_mut_nokey", 13): (Status.EINVAL, "DCP_MUTATION: key must be present, found 0 bytes"),
}
"""Frames that were made wrong to see the server's reaction."""


def read(data: bytes) -> tuple[Frame, Message]:
    """Read a frame as a connection does: its length, its parts, its meaning."""
    assert read_frame_length(data, 0) == len(data)
    frame = cut_frame(memoryview(data), 0)
    return frame, decode_frame(frame)


def well_formed() -> Iterator[tuple[Recorded, Frame, Message]]:
    for each in recorded():
        if each[:2] not in MALFORMED:
            yield each, *read(each.data)


def test_recorded_frames_round_trip() -> None:
    count = 0
    for each, frame, message in well_formed():
        assert join_frame(frame) == each.data, each
        assert message.encode(Opcode(frame.opcode)) == each.data, each
        count += 1
    assert count + len(MALFORMED) == len(recorded()) == 2355
    assert len(CAPTURES) == 179


@pytest.mark.parametrize("place", MALFORMED, ids=[name for name, _ in MALFORMED])
def test_malformed_frame_is_refused(place: tuple[str, int]) -> None:
    (data,) = (each.data for each in recorded() if each[:2] == place)
    with pytest.raises(RemoteProtocolError) as caught:
        read(data)
    assert (caught.value.status, str(caught.value)) == MALFORMED[place]
    assert caught.value.fatal == ("magic" in str(caught.value))


def look_inside(frame: Frame, message: Message) -> Any:
    """Return the contents of the value, if messages of this kind have any."""
    replied = isinstance(message, dcp.DcpReply) and frame.opcode in (Opcode.DCP_STREAM_REQ, Opcode.DCP_GET_FAILOVER_LOG)
    if replied and frame.specific == Status.SUCCESS:
        return kv.unpack_failover_log(frame.value)
    if replied and frame.specific == Status.ROLLBACK:
        return dcp.unpack_rollback(frame.value)
    if isinstance(message, tap.TapConnect):
        return tap.unpack_tap_options(message.flags or 0, message.value)
    if isinstance(message, tap.ChangeVbFilter):
        return tap.unpack_checkpoints(message.value)
    if isinstance(message, dcp.Mutation):
        return split_extended_meta(message.value, message.nmeta)
    if isinstance(message, kv.Reply) and frame.opcode == Opcode.GET_ALL_VB_SEQNOS:
        return kv.unpack_vb_seqnos(frame.value)
    return None


MALFORMED_INSIDE = {
    ("dcp_bad_res_unknown_opcode", 2): "failover log of 0 bytes, expected a multiple of 16",
    ("crash_dcp_mutation_nmeta_gt_value", 13): "extended meta data of 400 bytes in a value of 3",
    ("crash_dcp_rollback_nobody", 10): "ROLLBACK with 0 bytes, expected 8",
    ("dcpcons_mut_nmeta_big", 13): "extended meta data of 400 bytes in a value of 3",
    ("dcpcons_streamreq_reply_success_badflog", 10): "failover log of 5 bytes, expected a multiple of 16",
    ("dcpcons_streamreq_reply_success_noflog", 10): "failover log of 0 bytes, expected a multiple of 16",
    ("tap_bad_backfill_4", 0): "TAP_CONNECT: backfill date of 4 bytes, expected 8",
    ("tap_bad_backfill_nobody", 0): "TAP_CONNECT: backfill date of 0 bytes, expected 8",
    ("tap_bad_chk_short", 0): "TAP list of 2 elements in 10 bytes, expected 20",
    ("tap_bad_list_nobody", 0): "TAP list: count in 0 bytes, expected 2",
}
"""Well-formed frames with wrong values."""


def test_recorded_values_unpack() -> None:
    refused, read_inside = {}, Counter[type[Message]]()
    for each, frame, message in well_formed():
        try:
            found = look_inside(frame, message)
        except RemoteProtocolError as error:
            refused[each.conversation, each.number] = str(error)
            continue
        if found is not None:
            read_inside[type(message)] += 1
    assert refused == MALFORMED_INSIDE
    assert all(read_inside[cls] > 0 for cls in (dcp.DcpReply, tap.TapConnect, dcp.Mutation, kv.Reply))


def test_old_forms_are_recorded() -> None:
    expirations = [message for _, _, message in well_formed() if isinstance(message, dcp.OldExpiration)]
    assert [(message.by_seqno, message.rev_seqno, message.key) for message in expirations] == [(6, 2, b"c2")]
    states = [message for _, _, message in well_formed() if isinstance(message, kv.OldSetVbucket)]
    assert states


def test_recordings_show_these_messages() -> None:
    """The dialects' messages that these conversations show."""
    shown = {type(message) for _, _, message in well_formed()}
    assert shown >= {
        *(
            dcp.Open,
            dcp.AddStream,
            dcp.AddStreamReply,
            dcp.CloseStream,
            dcp.StreamReq,
            dcp.DcpGetFailoverLog,
            dcp.StreamEnd,
        ),
        *(
            dcp.SnapshotMarker,
            dcp.Mutation,
            dcp.Deletion,
            dcp.OldExpiration,
            dcp.DcpFlush,
            dcp.SetVbucketState,
            dcp.DcpNoop,
        ),
        *(dcp.BufferAck, dcp.Control, dcp.DcpReply, tap.TapConnect, tap.TapMutation, tap.TapDelete, tap.TapFlush),
        *(tap.TapOpaqueMessage, tap.TapVbucketSet, tap.TapCheckpointStart, tap.TapCheckpointEnd, tap.TapReply),
        *(kv.NoDocument, kv.OldSetVbucket, kv.GetVbucket),
    }
