"""The documents of the real server at the start of a conversation.

Frames of the server show most of the documents. All recordings together show the changes of each branch of history (a
vbuuid). Each recording shows the branch and the seqno of its vbuckets. The tables have the documents that no frame
shows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from penstock.node import Node
from penstock.node.session.tap_settings import TapSettings
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.failover_log import find_branch
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.frame import HEADER_BYTES, Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Event
from penstock.wire.messages.kv import FailoverEntry
from penstock.wire.values.collection_key import DEFAULT_PREFIX
from tests.node.replay import (
    CLOCK_OFFSET,
    DELETION,
    ENTRY,
    EXPECT,
    MARKER,
    MUTATION,
    NAMES,
    SEND,
    STREAM_REQ,
    TAP,
    TAP_ITEM,
    Step,
    load_recording,
    parse_header,
)

VBUCKETS = 128
AT_ONCE = 0.15
"""Seconds within which a stream sends the first snapshot, if its changes existed before the stream request."""

LONG_AGO = 1
"""Deletion time of tombstones, epoch seconds. No frame shows it; it is early so that a compaction may drop them."""

CHANGES = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)


class VbucketStart(NamedTuple):
    """State of a vbucket at the start of a conversation.

    Attributes:
        log: the failover log, newest branch first.
        high: high seqno.
        state: the vbucket's state, or None if the vbucket does not exist.
        grown: high seqno after the actions of other clients, if they add changes.
    """

    log: tuple[FailoverEntry, ...] = ()
    high: int = 0
    state: VbucketState | None = VbucketState.ACTIVE
    grown: int = 0


def get_seqno(frame: Frame) -> int:
    return int.from_bytes(frame.extras[:8], "big")


class RecordedStream(NamedTuple):
    """A stream that the recorded server accepted.

    Attributes:
        reply: index of the reply's frame in the recording.
        at: seconds from the start of the recording to the reply.
        connection: name of the connection.
        opaque: opaque of the stream request.
        vbucket: id of the vbucket.
        start: start seqno of the request.
        end: end seqno of the request.
        log: failover log in the reply.
    """

    reply: int
    at: float
    connection: str
    opaque: int
    vbucket: int
    start: int
    end: int
    log: tuple[FailoverEntry, ...]


def list_streams(steps: Sequence[Step]) -> Iterator[RecordedStream]:
    """Yield the streams that the server of a recording accepted."""
    asked: dict[tuple[str, int], tuple[int, int, int]] = {}
    for step in steps:
        if step.kind == SEND and step.data[1] == Opcode.DCP_STREAM_REQ and step.data[4] == STREAM_REQ.size:
            request = STREAM_REQ.unpack_from(step.data, HEADER_BYTES)
            head = parse_header(step.data)
            asked[step.connection, head.opaque] = head.specific, request[2], request[3]
        reply = step.frame
        if step.kind == EXPECT and reply[:3] == (Magic.RESPONSE, Opcode.DCP_STREAM_REQ, Status.SUCCESS):
            place = asked[step.connection, reply.opaque]
            yield RecordedStream(step.index, step.at, step.connection, reply.opaque, *place, parse_failover_log(reply))


def parse_failover_log(reply: Frame) -> tuple[FailoverEntry, ...]:
    return tuple(FailoverEntry(*entry) for entry in ENTRY.iter_unpack(reply.value))


def list_changes(steps: Sequence[Step], stream: RecordedStream) -> Iterator[Step]:
    """Yield the markers and changes of a stream."""
    for step in steps:
        frame = step.frame
        if (
            step.kind == EXPECT
            and step.index > stream.reply
            and (step.connection, frame.opaque, frame.specific) == (stream.connection, stream.opaque, stream.vbucket)
            and frame.magic == Magic.REQUEST
            and frame.opcode in (Opcode.DCP_SNAPSHOT_MARKER, *CHANGES)
        ):
            yield step


@cache
def collect_histories() -> dict[int, dict[int, Frame]]:
    """Return every change that a recording shows, by vbuuid and seqno."""
    found: dict[int, dict[int, Frame]] = {}
    for name in NAMES:
        for stream in list_streams(load_recording(name)) if name.startswith("dcp_") else ():
            branch = found.setdefault(stream.log[0].vbuuid, {})
            for step in list_changes(load_recording(name), stream):
                if step.frame.opcode in CHANGES:
                    branch.setdefault(get_seqno(step.frame), step.frame)
    return found


def list_starts(name: str, steps: Sequence[Step]) -> dict[int, VbucketStart]:
    """Return the vbuckets that exist when a conversation starts, by id."""
    found: dict[int, VbucketStart] = {}
    for stream in list_streams(steps):
        if stream.vbucket not in found:
            marker = next(list_changes(steps, stream), None)
            high = stream.start
            if marker is not None and marker.at - stream.at < AT_ONCE:
                high = MARKER.unpack(marker.frame.extras)[1]
            found[stream.vbucket] = VbucketStart(stream.log, high)
    for step in steps:  # vbuckets whose streams the server requests
        frame = step.frame
        if step.kind == EXPECT and frame[:2] == (Magic.REQUEST, Opcode.DCP_STREAM_REQ):
            vbuuid = STREAM_REQ.unpack(frame.extras)[4]
            found.setdefault(frame.specific, VbucketStart((FailoverEntry(vbuuid, 0),), state=VbucketState.REPLICA))
    streamed = {step.frame.specific for step in steps if step.kind == EXPECT and is_tap(step.frame)}
    empty = dict.fromkeys({0} | streamed, VbucketStart())
    return empty | found | STARTS.get(name, {})


def is_tap(frame: Frame) -> bool:
    return frame.magic == Magic.REQUEST and frame.opcode in TAP


def is_item(frame: Frame) -> bool:
    return is_tap(frame) and frame.opcode in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE)


def build_documents(node: Node, name: str) -> None:
    """Fill the node's bucket with the documents of the real server. It must run on the node's event loop."""
    steps = load_recording(name)
    vbuckets = node.buckets["default"].store.vbuckets
    at_start = list_starts(name, steps)
    own = {
        (vbuuid, get_seqno(step.frame)): step.frame
        for stream in list_streams(steps)
        for step in list_changes(steps, stream)
        if step.frame.opcode in CHANGES
        for vbuuid in (stream.log[0].vbuuid, find_branch(stream.log, get_seqno(step.frame)).vbuuid)
    }
    for vbucket in vbuckets:
        start = at_start.get(vbucket.id)
        if start is None or start.state is None:
            vbucket.remove()
            continue
        if start.log:
            branch = collect_histories().get(start.log[0].vbuuid, {})
            for number in sorted(branch):
                if number <= start.high:
                    apply_change(vbucket, own.get((start.log[0].vbuuid, number), branch[number]))
            vbucket.history.set_failover_log(start.log)
        vbucket.set_state(start.state, takeover=True)
    for vbid, documents in get_tap_items(name).items():
        for number, item in enumerate(documents, 1):
            apply_tap_item(vbuckets[vbid], number, item)
    for vbid, checkpoint in find_open_checkpoints(steps).items():
        checkpoints = node.buckets["default"].tap.get_checkpoints(vbuckets[vbid])
        if checkpoint != checkpoints.open_id:
            checkpoints.open_checkpoint(1)  # the node then knows no earlier checkpoints
            checkpoints.open_checkpoint(checkpoint)
    node.tap = SETTINGS.get(name, node.tap)


def find_open_checkpoints(steps: Sequence[Step]) -> dict[int, int]:
    """Return the open checkpoint of each vbucket: the first one that a TAP stream announces."""
    found: dict[int, int] = {}
    for step in steps:
        if step.kind == EXPECT and step.frame.opcode == Opcode.TAP_CHECKPOINT_START and is_tap(step.frame):
            found.setdefault(step.frame.specific, int.from_bytes(step.frame.value, "big"))
    return found


def apply_change(vbucket: Vbucket, frame: Frame) -> None:
    """Add a recorded change to a vbucket. Only its expiry is shifted to the time of the replay."""
    if frame.opcode == Opcode.DCP_MUTATION:
        number, rev, flags, expiry, lock_time, _, nru = MUTATION.unpack(frame.extras)
        if expiry:
            expiry = int(time.time()) - 1 if frame.key in EXPIRED else expiry + CLOCK_OFFSET
        fields = {"flags": flags, "expiry": expiry, "lock_time": lock_time, "nru": nru, "datatype": frame.datatype}
        vbucket.incoming.apply(
            Event.MUTATION,
            DEFAULT_PREFIX + frame.key,
            frame.value,
            cas=frame.cas,
            rev_seqno=rev,
            seqno=number,
            **fields,
        )
    else:
        number, rev, _ = DELETION.unpack(frame.extras)
        vbucket.incoming.apply(
            Event.DELETION, DEFAULT_PREFIX + frame.key, cas=frame.cas, rev_seqno=rev, seqno=number, delete_time=LONG_AGO
        )


def collect_tap_items(steps: Sequence[Step], seconds: float = AT_ONCE) -> dict[int, list[Frame]]:
    """Return the first version of each document that TAP streams send in the first seconds, by vbucket."""
    found: dict[int, dict[bytes, Frame]] = {}
    for step in steps:
        frame = step.frame
        if step.kind == EXPECT and is_item(frame) and step.at < seconds:
            found.setdefault(frame.specific, {}).setdefault(frame.key, frame)
    return {vbucket: list(documents.values()) for vbucket, documents in found.items()}


def get_tap_items(name: str) -> dict[int, list[Frame]]:
    """Return the documents that existed when a TAP conversation started, by vbucket."""
    return TAP_ITEMS.get(name, collect_tap_items(load_recording(name)))


def apply_tap_item(vbucket: Vbucket, number: int, frame: Frame) -> None:
    rev = int.from_bytes(frame.framing[:8], "big")
    if frame.opcode == Opcode.TAP_DELETE:
        vbucket.incoming.apply(Event.DELETION, DEFAULT_PREFIX + frame.key, cas=frame.cas, rev_seqno=rev, seqno=number)
        return
    *_, flags, expiry = TAP_ITEM.unpack(frame.extras)
    fields = {"flags": int.from_bytes(flags.to_bytes(4, "big"), "little"), "expiry": expiry and expiry + CLOCK_OFFSET}
    vbucket.incoming.apply(
        Event.MUTATION,
        DEFAULT_PREFIX + frame.key,
        frame.value,
        cas=frame.cas,
        rev_seqno=rev,
        seqno=number,
        nru=frame.framing[8] if len(frame.framing) > 8 else 0,
        **fields,
    )


# Documents that no recording shows

K0, DISK, C1 = 0x8D290AF8AE37, 0xA7C7C6E2EFCE, 0x45831B52CFFF  # branches
A, R, P, D = VbucketState.ACTIVE, VbucketState.REPLICA, VbucketState.PENDING, VbucketState.DEAD

STARTS: dict[str, dict[int, VbucketStart]] = {
    "dcpcons_addstream_dead": {21: VbucketStart((FailoverEntry(0xE78C8D59B20E, 0),), state=D)},
    "dcpcons_odd_items_readback": {16: VbucketStart((FailoverEntry(0x7E4103561D85, 0),), state=R, grown=10)},
    "dcp_disk_backfill_after_sigkill": {0: VbucketStart((FailoverEntry(DISK, 0),), 18)},
    "dcp_failover_rollback_matrix": {1: VbucketStart((FailoverEntry(0xB79266C79898, 0),), grown=15)},
    "dcp_notifier": {0: VbucketStart((FailoverEntry(K0, 0),), 19)},
    "dcp_replica_stream": {3: VbucketStart((FailoverEntry(0x71D28265B4A8, 0),), 11, R)},
    "dcp_rollback_purged": {2: VbucketStart((FailoverEntry(0xE5744E76F333, 0),), 10)},
    "dcp_start_0_end_0": {0: VbucketStart((FailoverEntry(K0, 0),), 11)},
    "setup_vbuckets_and_items": {0: VbucketStart(state=None)},
    **{name: {10: VbucketStart(), 11: VbucketStart(state=R)} for name in NAMES if name.startswith("tapcons_")},
    "tap_list_replica": {5: VbucketStart(state=R)},
    "tap_no_vbuckets": {0: VbucketStart(state=None)},
    "stats_checkpoint_1": {1: VbucketStart((FailoverEntry(C1, 10),), 15)},
    "stats_dcp": {4: VbucketStart()},
    "stats_dcp-vbtakeover_4_statconn": {4: VbucketStart()},
    "stats_vbucket": {vbucket: VbucketStart(state=R if vbucket == 3 else A) for vbucket in range(6)},
    "stats_vbucket-seqno_1": {1: VbucketStart((FailoverEntry(C1, 10),), 15)},
}
"""By recording and vbucket: states at the start that the recorded streams do not show."""

EXPIRED = frozenset((b"e1",))
"""Keys of documents that had expired when the client requested them."""

SETTINGS = {"tap_noop": TapSettings(noop_interval=0.05)}
"""By recording: TAP settings of the node, with short intervals."""

TAP_ITEMS = {
    "tap_ack_unknown_seqno": collect_tap_items(load_recording("tap_support_ack")),
    "tap_change_vb_filter": collect_tap_items(load_recording("tap_change_vb_filter"), seconds=1.0),
    "tap_support_ack_unanswered": collect_tap_items(load_recording("tap_support_ack")),
}
"""By recording: documents at the start that its TAP streams show late or not at all."""
