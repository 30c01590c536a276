"""Events beside a conversation: actions of other clients.

Most of them show in frames of the server: a change that is newer than the start of the conversation is made before its
frame. The table has the actions that no frame shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.frame import HEADER_BYTES, Frame
from penstock.wire.codec.layout import Request
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Control, DcpGetFailoverLog, Mutation
from penstock.wire.messages.kv import Delete, DelVbucket, Flush, Get, GetVbucket, Noop, Set, SetVbucket
from penstock.wire.messages.observe import CompactDb
from penstock.wire.messages.tap import (
    ChangeVbFilter,
    CreateCheckpoint,
    DeregisterTapClient,
    LastClosedCheckpoint,
    pack_checkpoints,
)
from tests.node.replay import (
    DO,
    EXPECT,
    LATER,
    MARKER,
    MUTATION,
    SEND,
    TAP_ITEM,
    Mismatch,
    Player,
    Script,
    Step,
    header,
    recording,
)
from tests.node.replay_state import (
    C1,
    CHANGES,
    EXPIRED,
    A,
    D,
    P,
    R,
    apply,
    changes_of,
    histories,
    is_item,
    seqno,
    starts,
    streams,
    tap_items_of,
)
from tests.node.wire_client import WireClient
from tests.patience import PATIENCE

Action = Callable[[Player], None]


def script(name: str) -> Script:
    """Return the steps of a conversation with what happened beside it in between."""
    steps = recording(name)
    highs = {vbucket: max(start.high, start.grown) for vbucket, start in starts(name, steps).items()}
    owner = {(s.connection, s.opaque, s.vbucket): s for s in streams(steps)}
    begun = {item.cas for items in tap_items_of(name).values() for item in items}
    made: set[int] = set()  # by their cas, the changes that our node makes by itself
    found: Script = []
    for step in steps:
        frame = step.frame
        found += [Step(DO, action=action) for action in ACTIONS.get(name, {}).get(step.index, ())]
        new: list[Frame] = []
        if step.kind == EXPECT and is_item(frame) and frame.cas not in begun:
            new = [frame]
            found.append(Step(DO, action=partial(happen_over_tap, frame)))
        elif step.kind == EXPECT and frame[:2] == (Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER):
            stream = owner[step.connection, frame.opaque, frame.specific]
            high, end = highs[frame.specific], MARKER.unpack(frame.extras)[1]
            shown = [s.frame for s in changes_of(steps, stream) if s.frame.opcode in CHANGES]
            if new := [change for change in shown if high < seqno(change) <= end]:
                found.append(Step(DO, action=partial(happen, new)))
                highs[frame.specific] = end
        begun |= {change.cas for change in new}
        made |= {change.cas for change in new}
        live = step.kind == EXPECT and frame.cas in made
        found.append(replace(step, live=live, data=hurried(step.data)))
    return found


def hurried(data: bytes) -> bytes:
    """Return the client's frame, with a tenth of its timeout."""
    second = Control(key=b"set_noop_interval", value=b"1")
    if data[HEADER_BYTES:] != second.encode()[HEADER_BYTES:]:
        return data
    return replace(second, value=b"0.1", opaque=header(data).opaque).encode()


def happen(changes: Sequence[Frame], player: Player) -> None:
    """Let another client make changes that a stream shows, all at once, and those that no stream showed any more."""
    vbucket = _vbucket(player, changes[0])
    high = vbucket.changes.high_seqno
    requests: list[Request] = []
    for change in changes:
        requests += [_request(change)] * (seqno(change) - high)
        high = seqno(change)
    ask_all(player, requests)


def _request(change: Frame) -> Request:
    """Return the request that has a change as its effect."""
    if change.key in EXPIRED:
        return Get(key=change.key, vbucket=change.specific)  # it finds the document expired
    if change.opcode != Opcode.DCP_MUTATION:
        return Delete(key=change.key, vbucket=change.specific)
    _, _, flags, expiry, *_ = MUTATION.unpack(change.extras)
    write = Set(key=change.key, value=change.value, vbucket=change.specific, flags=flags)
    return replace(write, expiry=expiry + LATER) if expiry else write


def happen_over_tap(change: Frame, player: Player) -> None:
    """Let another client make a change that a TAP stream shows, and the changes that must precede it."""
    write = Set(key=change.key, value=change.value, vbucket=change.specific)
    if change.opcode == Opcode.TAP_MUTATION:
        *_, flags, _ = TAP_ITEM.unpack(change.extras)
        ask_all(player, [replace(write, flags=int.from_bytes(flags.to_bytes(4, "big"), "little"))])
        return
    delete = Delete(key=change.key, vbucket=change.specific)
    ask_all(player, [delete] if _vbucket(player, change).get(b"\0" + change.key) else [write, delete])


def _vbucket(player: Player, change: Frame) -> Vbucket:
    return player.node.buckets["default"].store.vbuckets[change.specific]


def ask_all(player: Player, requests: Sequence[Request]) -> None:
    player.side.send(*requests)
    for request in requests:
        reply = player.side.receive()
        expected = Status.KEY_ENOENT if isinstance(request, Get) else Status.SUCCESS
        if reply.specific != expected:
            raise Mismatch(f"another client: {request}, {reply}")


def ask(*requests: Request) -> Action:
    """Return the action by which another client sends requests, all at once, which succeed."""
    return lambda player: ask_all(player, requests)


def become(vbucket: int, *states: VbucketState) -> Action:
    """Return the action that gives a vbucket one state after the other."""
    return ask(*(SetVbucket(vbucket=vbucket, state=state) for state in states))


def await_value(request: Request, value: bytes) -> Action:
    """Return an action that waits until another client gets a value with this start."""

    def act(player: Player) -> None:
        reply = player.side.ask(request)
        if reply.specific != Status.SUCCESS or not reply.value.startswith(value):
            raise Mismatch(f"another client: {request}, {reply}, expected {value!r}")

    return act


def await_statistic(group: str, name: str, value: int) -> Action:
    """Return an action that waits until another client gets a statistic."""

    def act(player: Player) -> None:
        if (found := player.side.stats(group).get(name)) != str(value):
            raise Mismatch(f"{name} {found}, expected {value}")

    return act


def in_the_middle(player: Player) -> None:
    """Let the client send two requests more, and get the stream of 2000 changes with the replies somewhere in it."""
    peer = player.peers[""]
    peer.send(DcpGetFailoverLog(vbucket=3, opaque=1).encode() + Noop(opaque=2).encode())
    frames = [peer.receive(player.patience) for _ in range(2003)]
    replies = [frame.opaque for frame in frames if frame and frame.magic == Magic.RESPONSE]
    changes = [seqno(frame) for frame in frames if frame and frame.opcode == Opcode.DCP_MUTATION]
    if (replies, changes) != ([1, 2], list(range(1, 2001))):
        raise Mismatch(f"replies {replies}, {len(changes)} changes")


def stream_for_statistics(player: Player) -> None:
    client = WireClient(player.node)
    player.others.append(client)
    client.open("statconn").control("connection_buffer_size", "1000")
    client.stream(4, opaque=0x2001)


def lives(player: Player) -> None:
    """Wait for a NOOP. The recording is too short for one: that server looks every 6 s or so whether it is time."""
    for peer in player.peers.values():
        frame = peer.receive(PATIENCE)
        if frame is None or (frame.magic, frame.opcode) != (Magic.REQUEST, Opcode.DCP_NOOP):
            raise Mismatch(f"{frame}, expected a NOOP")


def send_mutations(player: Player) -> None:
    """Let the client send the 400 mutations of 10 kB that the recording only mentions."""
    player.send(
        [
            Step(
                SEND,
                data=Mutation(
                    vbucket=40,
                    opaque=0x1000000,
                    key=b"vol%d" % number,
                    value=bytes(10_000),
                    cas=0x77,
                    by_seqno=number + 1,
                ).encode(),
            )
            for number in range(400)
        ]
    )


def grow(vbucket: int, vbuuid: int, to: int) -> Action:
    """Return the action by which a branch of a vbucket's history goes on up to a seqno."""

    def act(player: Player) -> None:
        found = player.node.buckets["default"].store.vbuckets[vbucket]
        branch = histories()[vbuuid]
        for number in sorted(branch):
            if found.changes.high_seqno < number <= to:
                player.on_loop(partial(apply, found, branch[number]))

    return act


LIVE1 = (Set(key=b"live1", value=b"on", flags=5), Delete(key=b"live1"))

ACTIONS: dict[str, dict[int, Sequence[Action]]] = {
    "dcp_failover_rollback_matrix": {
        2: [grow(1, C1, 5)],
        4: [become(1, R, A), grow(1, C1, 10)],
        6: [become(1, R, A), grow(1, C1, 15)],
    },
    "dcp_flow_control_accounting": {
        9: [
            await_statistic("dcp", "eq_dcpq:count:unacked_bytes", 194),
            await_statistic("dcp", "eq_dcpq:count:total_bytes_sent", 194),
        ],
        # The second stream is shorter here than there, since it ends where it was to end.
        18: [await_statistic("dcp", "eq_dcpq:count:unacked_bytes", 194 + 44 + 43 + 28)],
    },
    "dcp_noop_without_stream": {6: [lives]},
    "dcp_requests_during_stream": {
        0: [ask(*(Set(key=b"key %d" % number, value=bytes(100), vbucket=3) for number in range(2000)))],
        4: [in_the_middle],
    },
    "dcp_rollback_purged": {5: [ask(CompactDb(vbucket=2)), await_statistic("vbucket-seqno 2", "vb_2:purge_seqno", 9)]},
    "dcp_state_change_stream_end": {4: [become(3, R)], 7: [become(3, D)], 10: [become(3, P)], 13: [become(3, A)]},
    "dcp_takeover": {14: [await_value(GetVbucket(vbucket=4), bytes((0, 0, 0, D)))]},
    "dcp_vbucket_deleted": {4: [become(2, D)], 6: [ask(DelVbucket(vbucket=2))]},
    "dcpcons_buffer_acks": {14: [send_mutations]},
    "dcpcons_odd_items_readback": {24: [become(16, A)]},
    "stats_dcp": {0: [stream_for_statistics]},
    "stats_dcp-vbtakeover_4_statconn": {0: [stream_for_statistics]},
    "tap_change_vb_filter": {37: [ask(ChangeVbFilter(key=b"replication_x", value=pack_checkpoints(((0, 1), (4, 0)))))]},
    "tap_checkpoint": {40: [ask(*LIVE1)]},
    "tap_checkpoint_crossing": {
        19: [await_value(CreateCheckpoint(), bytes((*bytes(7), 3)))],
        28: [await_value(CreateCheckpoint(), bytes((*bytes(7), 4)))],
        34: [await_value(LastClosedCheckpoint(), bytes((*bytes(7), 3)))],
    },
    "tap_flush": {49: [ask(Flush())]},
    "tap_keys_only_live": {25: [ask(*LIVE1)]},
    "tap_registered": {51: [ask(DeregisterTapClient(key=b"reg1"))]},
    "tap_support_ack": {35: [ask(*LIVE1)]},
    "tap_support_ack_unanswered": {4: [ask(*LIVE1)]},
    "tap_takeover": {15: [await_value(GetVbucket(vbucket=2), bytes((0, 0, 0, D)))]},
    "tap_takeover_noack": {7: [await_value(GetVbucket(vbucket=3), bytes((0, 0, 0, D)))]},
    "tapcons_vbucket_set": {4: [await_value(GetVbucket(vbucket=30), bytes((0, 0, 0, P)))]},
}
"""By recording and frame: actions of other clients before the frame, where no frame shows them."""
