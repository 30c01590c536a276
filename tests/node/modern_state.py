"""The documents of the recorded 7.2.8 at the start of a conversation, and the actions of its other clients."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from penstock.node import Node
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_SEQNO, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Request
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Event
from penstock.wire.messages.kv import DelVbucket, FailoverEntry, SetVbucket
from penstock.wire.values.collection_key import DEFAULT_PREFIX
from tests.node.modern_replay import BUCKET, NAMES, ModernPlayer, inflate_value, load_modern_recording, read_snapshot
from tests.node.replay import CLOCK_OFFSET, CLOSED, DO, EXPECT, LOGS, MUTATION, Player, Script, Step
from tests.node.replay_script import send_requests, shorten_timeout
from tests.node.replay_state import (
    AT_ONCE,
    CHANGES,
    RecordedStream,
    get_seqno,
    list_streams,
    parse_failover_log,
)
from tests.patience import PATIENCE

Action = Callable[[Player], None]
A, R, P, D = VbucketState.ACTIVE, VbucketState.REPLICA, VbucketState.PENDING, VbucketState.DEAD


def make_modern_script(name: str) -> Script:
    """Return the steps of a conversation, with the actions of other clients between them."""
    found: Script = []
    closed: set[str] = set()
    for step in load_modern_recording(name):
        if step.connection in closed:  # the recorded client went on sending
            continue
        if step.kind == CLOSED:
            closed.add(step.connection)
        found += [Step(DO, action=action) for action in ACTIONS.get(name, {}).get(step.index, ())]
        found.append(replace(step, data=shorten_timeout(step.data)))
    return found


# Documents


@cache
def collect_modern_histories() -> dict[int, dict[int, Frame]]:
    """Return every change that a recording shows, by vbuuid and seqno, with a whole value if any recording has it."""
    found: dict[int, dict[int, Frame]] = {}
    for name in NAMES:
        steps = load_modern_recording(name)
        if "nvdt" in name:  # its frames have datatypes of values that they lack
            continue
        for stream in list_streams(steps):
            branch = found.setdefault(stream.log[-1].vbuuid, {})
            for step in list_stream_steps(steps, stream):
                if step.frame.opcode in CHANGES:
                    change = normalize_change(step)
                    known = branch.setdefault(get_seqno(change), change)
                    if len(known.value) < len(change.value):
                        branch[get_seqno(change)] = change
    return found


def normalize_change(step: Step) -> Frame:
    """Return a change with a collection in its key, and with an inflated value."""
    frame = step.frame
    if step.connection.endswith("nocoll") or step.connection == "neither" or "nocoll" in step.text:
        frame = frame._replace(key=DEFAULT_PREFIX + frame.key)
    return frame._replace(value=inflate_value(frame), datatype=frame.datatype & ~Datatype.SNAPPY)


def list_stream_steps(steps: Sequence[Step], stream: RecordedStream) -> Iterator[Step]:
    """Yield the frames of a stream."""
    for step in steps:
        frame = step.frame
        if (
            step.kind == EXPECT
            and step.index > stream.reply
            and (step.connection, frame.opaque, frame.specific) == (stream.connection, stream.opaque, stream.vbucket)
            and frame.magic == Magic.REQUEST
        ):
            yield step


def is_same_stream(one: Step, other: Step) -> bool:
    return (one.connection, one.frame.opaque, one.frame.specific, one.frame.magic) == (
        other.connection,
        other.frame.opaque,
        other.frame.specific,
        other.frame.magic,
    )


def find_logs(steps: Sequence[Step]) -> dict[int, tuple[FailoverEntry, ...]]:
    """Return the first failover log that a conversation shows of each vbucket."""
    found = {stream.vbucket: stream.log for stream in reversed(list(list_streams(steps)))}
    for step in steps:
        if step.kind == EXPECT and step.frame.opcode in LOGS and step.frame[:3:2] == (Magic.RESPONSE, Status.SUCCESS):
            log = parse_failover_log(step.frame)
            known = [vbucket for vbucket, entries in found.items() if entries and entries[-1] == log[-1]] if log else []
            for vbucket in known:
                found[vbucket] = min(found[vbucket], log, key=len)
    if not found and "dcp_frames_bad" in steps[0].text:
        found[0] = (FailoverEntry(_BASE, 0),)
    return found


_BASE = 0x9E5CEF39F8F6
"""The branch of vbucket 0 in most recordings."""


def find_high(steps: Sequence[Step], vbucket: int, log: tuple[FailoverEntry, ...]) -> int:
    """Return the high seqno of a vbucket at the start: the end of the changes that its first stream sends at once."""
    for stream in list_streams(steps):
        frames = list(list_stream_steps(steps, stream)) if stream.vbucket == vbucket else []
        markers = [step for step in frames if step.frame.opcode == Opcode.DCP_SNAPSHOT_MARKER]
        if markers and markers[0].at - stream.at < AT_ONCE:
            at_once = [step for step in markers if step.at - markers[0].at < AT_ONCE]
            return max(read_snapshot(step.frame)[1] for step in at_once)
        if markers:
            return stream.start
    return max(collect_modern_histories().get(log[-1].vbuuid, {}), default=0)


def activate_vbuckets(node: Node) -> None:
    for vbucket in node.buckets[BUCKET].store.vbuckets:
        vbucket.set_state(A, takeover=True)


def build_modern_documents(node: Node, name: str, most: int = MAX_SEQNO) -> None:
    """Fill the node's bucket with the recorded documents up to a seqno. It must run on the node's event loop."""
    vbuckets = node.buckets[BUCKET].store.vbuckets
    steps = load_modern_recording(name)
    for number, log in find_logs(steps).items():
        vbucket = vbuckets[number]
        high = min(most, HIGHS.get(name, find_high(steps, number, log)))
        branch = collect_modern_histories().get(log[-1].vbuuid, {})
        for seqno in sorted(branch):
            if vbucket.changes.high_seqno < seqno <= high:
                apply_modern_change(vbucket, branch[seqno])
        if 0 < vbucket.changes.high_seqno < high:  # no recording shows the newest change
            newest = branch[vbucket.changes.high_seqno]
            extras = high.to_bytes(8, "big") + newest.extras[8:]
            apply_modern_change(vbucket, newest._replace(key=newest.key + b"'", extras=extras))
        vbucket.history.set_failover_log(log)


def apply_modern_change(vbucket: Vbucket, frame: Frame) -> None:
    """Add a recorded change to a vbucket. Only its expiry is shifted to the time of the replay."""
    fields: dict[str, Any] = {"datatype": frame.datatype}
    if frame.opcode == Opcode.DCP_MUTATION:
        number, rev, flags, expiry, lock_time, _, nru = MUTATION.unpack(frame.extras)
        if 0 < expiry < FAR_FUTURE:
            expiry += CLOCK_OFFSET
        fields |= {"flags": flags, "expiry": expiry, "lock_time": lock_time, "nru": nru}
        event = Event.MUTATION
    else:
        number, rev = int.from_bytes(frame.extras[:8], "big"), int.from_bytes(frame.extras[8:16], "big")
        fields["delete_time"] = int(time.time())
        event = Event.DELETION
    vbucket.incoming.apply(event, frame.key, frame.value, cas=frame.cas, rev_seqno=rev, seqno=number, **fields)


FAR_FUTURE = 4_000_000_000
"""An expiry of the recordings that needs no shift."""

HIGHS: dict[str, int] = {
    "dcp_flow_control": 8,
    "disk_sync": 0,
    "dcp_sync_writes_replica": 0,
    "dcp_sync_writes_single": 0,
}
"""By recording: the high seqno at the start, where its first stream does not show it."""


# Actions of other clients


def set_modern_states(vbucket: int, *states: VbucketState) -> Action:
    """Return an action: a vbucket gets these states, one after the other."""
    return partial(send, [SetVbucket(vbucket=vbucket, state=state) for state in states])


def send(requests: Sequence[Request], player: Player) -> None:
    send_requests(player, requests)


def set_manifest(uid: int, *scopes: tuple[str, int, Sequence[tuple[str, int, int | None]]]) -> Action:
    """Return an action: the bucket gets a manifest of these scopes, each with its collections and their max TTL."""
    manifest = {
        "uid": f"{uid:x}",
        "scopes": [
            {
                "name": scope,
                "uid": f"{number:x}",
                "collections": [
                    {"name": collection, "uid": f"{id_:x}"} | ({} if ttl is None else {"maxTTL": ttl})
                    for collection, id_, ttl in collections
                ],
            }
            for scope, number, collections in scopes
        ],
    }

    def act(player: Player) -> None:
        frame = Frame(Magic.REQUEST, Opcode.COLLECTIONS_SET_MANIFEST, value=json.dumps(manifest).encode())
        reply = player.side_client.ask(frame)
        assert reply.specific == Status.SUCCESS, reply

    return act


DEFAULT = ("_default", 0, [("_default", 0, None)])
WITHOUT_DEFAULT: tuple[str, int, list[tuple[str, int, int | None]]] = ("_default", 0, [])
C1, C2, C2_AGAIN = ("c1", 8, None), ("c2", 9, 1000), ("c2", 0xB, None)
S2 = ("s2", 9, [("c3", 0xA, None)])
MANIFESTS = {
    1: set_manifest(1, DEFAULT, ("s1", 8, [C1, C2])),
    2: set_manifest(2, DEFAULT, ("s1", 8, [C1, C2]), S2),
    4: set_manifest(4, DEFAULT, ("s1", 8, [C1]), S2),
    5: set_manifest(5, DEFAULT, ("s1", 8, [C1])),
    6: set_manifest(6, DEFAULT, ("s1", 8, [C1, C2_AGAIN])),
    7: set_manifest(7, DEFAULT, ("s1", 8, [C1])),
    8: set_manifest(8, WITHOUT_DEFAULT, ("s1", 8, [C1])),
}
"""The recorded manifests, by uid."""


def persist(player: Player) -> None:
    """Write all changes to disk."""
    flusher = player.node.buckets[BUCKET].flusher
    assert flusher is not None
    asyncio.run_coroutine_threadsafe(flusher.flush(), player.node.loop).result(PATIENCE)


def crash_vbucket(player: Player) -> None:
    """Give vbucket 0 the failover log that it has after a crash."""
    steps = load_modern_recording("disk_sigkill")
    log = next(
        parse_failover_log(step.frame) for step in steps if step.frame.opcode in LOGS and len(step.frame.value) > 16
    )
    vbucket = player.node.buckets[BUCKET].store.vbuckets[0]
    player.run_on_loop(partial(vbucket.history.set_failover_log, log))


ON_DISK = ("disk_collections", "disk_restart", "disk_sync")
"""Recordings of a server that was restarted before the conversation, or after its first connection."""


def set_document(key: bytes, value: bytes, *, level: int = 0, opcode: Opcode = Opcode.SET, vbucket: int = 0) -> Action:
    """Return an action: another client stores or deletes a document, with a level of durability."""
    framing = bytes((0x11, level)) if level else b""
    magic = Magic.ALT_REQUEST if level else Magic.REQUEST
    extras = bytes(8) if opcode == Opcode.SET else b""

    def act(player: Player) -> None:
        reply = player.side_client.ask(
            Frame(magic, opcode, vbucket, framing=framing, extras=extras, key=key, value=value)
        )
        assert reply.specific == Status.SUCCESS, reply

    return act


def set_topology(vbucket: int) -> Action:
    """Return an action: the vbucket gets a replication chain of one node."""
    frame = Frame(
        Magic.REQUEST,
        Opcode.SET_VBUCKET,
        vbucket,
        datatype=Datatype.JSON,
        extras=bytes((A,)),
        value=b'{"topology":[["n0"]]}',
    )

    def act(player: Player) -> None:
        reply = player.side_client.ask(frame)
        assert reply.specific == Status.SUCCESS, reply

    return act


def build_documents_up_to(seqno: int) -> Action:
    """Return an action: vbucket 0 gets the recorded documents up to a seqno."""

    def act(player: Player) -> None:
        assert isinstance(player, ModernPlayer)
        player.run_on_loop(partial(build_modern_documents, player.node, player.name, seqno))

    return act


HISTORIES: dict[str, Sequence[Action]] = {
    "disk_collections": [
        set_manifest(1, S2, ("s1", 8, [C1, ("c2", 9, None)]), DEFAULT),
        build_documents_up_to(22),
        set_manifest(2, S2, ("s1", 8, [C1]), DEFAULT),
    ],
    "disk_sync": [
        set_topology(0),
        set_document(b"\0a", b"1"),
        set_document(b"\0b", b"2", level=1),
        set_document(b"\0c", b"3", level=1),
        set_document(b"\0b", b"", level=1, opcode=Opcode.DELETE),
        set_document(b"\0d", b"4"),
    ],
    "coll_default_dropped": [MANIFESTS[uid] for uid in (1, 2, 4, 5, 6, 7)],
    "coll_filter_empty": [MANIFESTS[uid] for uid in (1, 2, 4, 5, 6)],
    "coll_modify": [MANIFESTS[uid] for uid in (1, 2, 4, 5, 6, 7, 8)],
}
"""By recording: actions that precede the documents at the start."""

ACTIONS: dict[str, dict[int, Sequence[Action]]] = {
    "coll_default_dropped": {38: [MANIFESTS[8]]},
    "coll_filter_empty": {17: [MANIFESTS[7]]},
    "disk_collections": {
        25: [set_document(b"\x08lv-all", b"1")],
        41: [set_document(b"\x08lv-c1", b"1")],
        50: [set_document(b"\x08lv-c2", b"1")],
        68: [set_document(b"\x08lv-s1", b"1")],
        82: [set_document(b"\x08lv-nocoll", b"1")],
        115: [set_document(b"\x08lv-flat", b"1")],
        138: [set_document(b"\x08lv-oso_c1", b"1")],
        175: [set_document(b"\x08lv-oso_all", b"1")],
        200: [set_document(b"\x08lv-oso_adv_c1", b"1")],
        232: [set_document(b"\x08lv-oso_two", b"1")],
    },
    "disk_restart": {
        38: [set_document(b"\0live-plain", b"1")],
        145: [set_document(b"\0live-repl", b"1")],
        184: [persist],
    },
    "disk_sigkill": {7: [crash_vbucket]},
    "disk_sync": {
        15: [set_document(b"\0l-repl", b"x"), set_document(b"\0ld-repl", b"y", level=1)],
        36: [set_document(b"\0l-sync", b"x"), set_document(b"\0ld-sync", b"y", level=1)],
        58: [set_document(b"\0l-plain", b"x"), set_document(b"\0ld-plain", b"y", level=1)],
    },
    "dcp_state_changes": {
        16: [set_modern_states(4, R)],
        29: [set_modern_states(4, P)],
        36: [set_modern_states(4, D)],
        42: [set_modern_states(4, A)],
        54: [partial(send, [DelVbucket(vbucket=4)])],
    },
}
"""By recording and index of a frame: actions before the frame that no frame shows."""
