"""The documents of the real server at the start of a conversation.

Most of them show in frames of the server. Recordings show the changes of each branch of history (a vbuuid), and each
recording shows the branch and the seqno of its vbuckets. The tables have the documents that no frame shows.
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
    DELETION,
    ENTRY,
    EXPECT,
    LATER,
    MARKER,
    MUTATION,
    NAMES,
    SEND,
    STREAM_REQ,
    TAP,
    TAP_ITEM,
    Step,
    header,
    recording,
)

VBUCKETS = 128
AT_ONCE = 0.15
"""Seconds in which a stream's first snapshot comes, if it existed when the stream was requested."""

LONG_AGO = 1
"""Deletion time of documents, in epoch seconds: no frame shows it, and a compaction may purge old tombstones."""

CHANGES = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)


class Start(NamedTuple):
    """A vbucket at the beginning: its failover log (newest first), and the seqno up to which it has its history.

    state: None where it is not there. grown: the seqno up to which actions take it.
    """

    log: tuple[FailoverEntry, ...] = ()
    high: int = 0
    state: VbucketState | None = VbucketState.ACTIVE
    grown: int = 0


def seqno(frame: Frame) -> int:
    return int.from_bytes(frame.extras[:8], "big")


class Asked(NamedTuple):
    """A stream that the client asked for. reply: its place in the recording."""

    reply: int
    at: float
    connection: str
    opaque: int
    vbucket: int
    start: int
    end: int
    log: tuple[FailoverEntry, ...]


def streams(steps: Sequence[Step]) -> Iterator[Asked]:
    """Yield the streams of a recording that were accepted."""
    asked: dict[tuple[str, int], tuple[int, int, int]] = {}
    for step in steps:
        if step.kind == SEND and step.data[1] == Opcode.DCP_STREAM_REQ and step.data[4] == STREAM_REQ.size:
            request = STREAM_REQ.unpack_from(step.data, HEADER_BYTES)
            asked[step.connection, header(step.data).opaque] = header(step.data).specific, request[2], request[3]
        reply = step.frame
        if step.kind == EXPECT and reply[:3] == (Magic.RESPONSE, Opcode.DCP_STREAM_REQ, Status.SUCCESS):
            place = asked[step.connection, reply.opaque]
            yield Asked(step.index, step.at, step.connection, reply.opaque, *place, log_of(reply))


def log_of(reply: Frame) -> tuple[FailoverEntry, ...]:
    return tuple(FailoverEntry(*entry) for entry in ENTRY.iter_unpack(reply.value))


def changes_of(steps: Sequence[Step], stream: Asked) -> Iterator[Step]:
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
def histories() -> dict[int, dict[int, Frame]]:
    """Return by vbuuid and seqno every change that any recording shows of a branch."""
    found: dict[int, dict[int, Frame]] = {}
    for name in NAMES:
        for stream in streams(recording(name)) if name.startswith("dcp_") else ():
            branch = found.setdefault(stream.log[0].vbuuid, {})
            for step in changes_of(recording(name), stream):
                if step.frame.opcode in CHANGES:
                    branch.setdefault(seqno(step.frame), step.frame)
    return found


def starts(name: str, steps: Sequence[Step]) -> dict[int, Start]:
    """Return the vbuckets that are there when a conversation begins."""
    found: dict[int, Start] = {}
    for stream in streams(steps):
        if stream.vbucket not in found:
            marker = next(changes_of(steps, stream), None)
            high = stream.start
            if marker is not None and marker.at - stream.at < AT_ONCE:
                high = MARKER.unpack(marker.frame.extras)[1]
            found[stream.vbucket] = Start(stream.log, high)
    for step in steps:  # those that the server asks for
        frame = step.frame
        if step.kind == EXPECT and frame[:2] == (Magic.REQUEST, Opcode.DCP_STREAM_REQ):
            vbuuid = STREAM_REQ.unpack(frame.extras)[4]
            found.setdefault(frame.specific, Start((FailoverEntry(vbuuid, 0),), state=VbucketState.REPLICA))
    streamed = {step.frame.specific for step in steps if step.kind == EXPECT and is_tap(step.frame)}
    return {0: Start(), **dict.fromkeys(streamed - found.keys(), Start()), **found, **STARTS.get(name, {})}


def is_tap(frame: Frame) -> bool:
    return frame.magic == Magic.REQUEST and frame.opcode in TAP


def is_item(frame: Frame) -> bool:
    return is_tap(frame) and frame.opcode in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE)


def build(node: Node, name: str) -> None:
    """Fill the node's bucket as the real server's was. Call it on the node's loop."""
    steps = recording(name)
    vbuckets = node.buckets["default"].store.vbuckets
    there = starts(name, steps)
    own = {
        (vbuuid, seqno(step.frame)): step.frame
        for stream in streams(steps)
        for step in changes_of(steps, stream)
        if step.frame.opcode in CHANGES
        for vbuuid in (stream.log[0].vbuuid, find_branch(stream.log, seqno(step.frame)).vbuuid)
    }
    for vbucket in vbuckets:
        start = there.get(vbucket.id)
        if start is None or start.state is None:
            vbucket.remove()
            continue
        if start.log:
            branch = histories().get(start.log[0].vbuuid, {})
            for number in sorted(branch):
                if number <= start.high:
                    apply(vbucket, own.get((start.log[0].vbuuid, number), branch[number]))
            vbucket.history.set_failover_log(start.log)
        vbucket.set_state(start.state, takeover=True)
    for vbid, documents in tap_items_of(name).items():
        for number, item in enumerate(documents, 1):
            apply_tap(vbuckets[vbid], number, item)
    for vbid, checkpoint in open_checkpoints(steps).items():
        checkpoints = node.buckets["default"].tap.get_checkpoints(vbuckets[vbid])
        if checkpoint != checkpoints.open_id:
            checkpoints.open_checkpoint(1)  # earlier checkpoints are unknown
            checkpoints.open_checkpoint(checkpoint)
    node.tap = SETTINGS.get(name, node.tap)


def open_checkpoints(steps: Sequence[Step]) -> dict[int, int]:
    """Return by vbucket which checkpoint was open: the first that a TAP stream speaks of."""
    found: dict[int, int] = {}
    for step in steps:
        if step.kind == EXPECT and step.frame.opcode == Opcode.TAP_CHECKPOINT_START and is_tap(step.frame):
            found.setdefault(step.frame.specific, int.from_bytes(step.frame.value, "big"))
    return found


def apply(vbucket: Vbucket, frame: Frame) -> None:
    """Put a change into a vbucket's history, as the recording shows it but for the time when it expires."""
    if frame.opcode == Opcode.DCP_MUTATION:
        number, rev, flags, expiry, lock_time, _, nru = MUTATION.unpack(frame.extras)
        if expiry:
            expiry = int(time.time()) - 1 if frame.key in EXPIRED else expiry + LATER
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


def tap_items(steps: Sequence[Step], seconds: float = AT_ONCE) -> dict[int, list[Frame]]:
    """Return by vbucket the documents of a TAP stream within some seconds, each at its first time."""
    found: dict[int, dict[bytes, Frame]] = {}
    for step in steps:
        frame = step.frame
        if step.kind == EXPECT and is_item(frame) and step.at < seconds:
            found.setdefault(frame.specific, {}).setdefault(frame.key, frame)
    return {vbucket: list(documents.values()) for vbucket, documents in found.items()}


def tap_items_of(name: str) -> dict[int, list[Frame]]:
    """Return by vbucket the documents that were there when a TAP conversation began."""
    return TAP_ITEMS.get(name, tap_items(recording(name)))


def apply_tap(vbucket: Vbucket, number: int, frame: Frame) -> None:
    rev = int.from_bytes(frame.framing[:8], "big")
    if frame.opcode == Opcode.TAP_DELETE:
        vbucket.incoming.apply(Event.DELETION, DEFAULT_PREFIX + frame.key, cas=frame.cas, rev_seqno=rev, seqno=number)
        return
    *_, flags, expiry = TAP_ITEM.unpack(frame.extras)
    fields = {"flags": int.from_bytes(flags.to_bytes(4, "big"), "little"), "expiry": expiry and expiry + LATER}
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

STARTS: dict[str, dict[int, Start]] = {
    "dcpcons_addstream_dead": {21: Start((FailoverEntry(0xE78C8D59B20E, 0),), state=D)},
    "dcpcons_odd_items_readback": {16: Start((FailoverEntry(0x7E4103561D85, 0),), state=R, grown=10)},
    "dcp_disk_backfill_after_sigkill": {0: Start((FailoverEntry(DISK, 0),), 18)},
    "dcp_failover_rollback_matrix": {1: Start((FailoverEntry(0xB79266C79898, 0),), grown=15)},
    "dcp_notifier": {0: Start((FailoverEntry(K0, 0),), 19)},
    "dcp_replica_stream": {3: Start((FailoverEntry(0x71D28265B4A8, 0),), 11, R)},
    "dcp_rollback_purged": {2: Start((FailoverEntry(0xE5744E76F333, 0),), 10)},
    "dcp_start_0_end_0": {0: Start((FailoverEntry(K0, 0),), 11)},
    "setup_vbuckets_and_items": {0: Start(state=None)},
    **{name: {10: Start(), 11: Start(state=R)} for name in NAMES if name.startswith("tapcons_")},
    "tap_list_replica": {5: Start(state=R)},
    "tap_no_vbuckets": {0: Start(state=None)},
    "stats_checkpoint_1": {1: Start((FailoverEntry(C1, 10),), 15)},
    "stats_dcp": {4: Start()},
    "stats_dcp-vbtakeover_4_statconn": {4: Start()},
    "stats_vbucket": {vbucket: Start(state=R if vbucket == 3 else A) for vbucket in range(6)},
    "stats_vbucket-seqno_1": {1: Start((FailoverEntry(C1, 10),), 15)},
}
"""By recording and vbucket: changes from before, where the start of its streams does not show them."""

EXPIRED = frozenset((b"e1",))
"""Documents whose time was over when they were asked for."""

SETTINGS = {"tap_noop": TapSettings(noop_interval=0.05)}
"""By recording settings of the node's TAP side: intervals of seconds, made short."""

TAP_ITEMS = {
    "tap_ack_unknown_seqno": tap_items(recording("tap_support_ack")),
    "tap_change_vb_filter": tap_items(recording("tap_change_vb_filter"), seconds=1.0),
    "tap_support_ack_unanswered": tap_items(recording("tap_support_ack")),
}
"""By recording the documents that were there, where a TAP stream did not show them, or not at once."""
