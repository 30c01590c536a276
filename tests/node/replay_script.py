"""Actions of other clients during a conversation.

Frames of the server show most actions: a change after the start of the conversation is made just before its frame. The
table ACTIONS has the actions that no frame shows.
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
    CLOCK_OFFSET,
    DO,
    EXPECT,
    MARKER,
    MUTATION,
    SEND,
    TAP_ITEM,
    Mismatch,
    Player,
    Script,
    Step,
    load_recording,
    parse_header,
)
from tests.node.replay_state import (
    C1,
    CHANGES,
    EXPIRED,
    A,
    D,
    P,
    R,
    apply_change,
    collect_histories,
    get_seqno,
    get_tap_items,
    is_item,
    list_changes,
    list_starts,
    list_streams,
)
from tests.node.wire_client import WireClient
from tests.patience import PATIENCE

Action = Callable[[Player], None]


def make_script(name: str) -> Script:
    """Return the steps of a conversation, with the actions of other clients between them."""
    steps = load_recording(name)
    highs = {vbucket: max(start.high, start.grown) for vbucket, start in list_starts(name, steps).items()}
    owner = {(s.connection, s.opaque, s.vbucket): s for s in list_streams(steps)}
    begun = {item.cas for items in get_tap_items(name).values() for item in items}
    made: set[int] = set()  # cas of changes that other clients make during the replay
    found: Script = []
    for step in steps:
        frame = step.frame
        found += [Step(DO, action=action) for action in ACTIONS.get(name, {}).get(step.index, ())]
        new: list[Frame] = []
        if step.kind == EXPECT and is_item(frame) and frame.cas not in begun:
            new = [frame]
            found.append(Step(DO, action=partial(make_tap_change, frame)))
        elif step.kind == EXPECT and frame[:2] == (Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER):
            stream = owner[step.connection, frame.opaque, frame.specific]
            high, end = highs[frame.specific], MARKER.unpack(frame.extras)[1]
            shown = [s.frame for s in list_changes(steps, stream) if s.frame.opcode in CHANGES]
            if new := [change for change in shown if high < get_seqno(change) <= end]:
                found.append(Step(DO, action=partial(make_changes, new)))
                highs[frame.specific] = end
        begun |= {change.cas for change in new}
        made |= {change.cas for change in new}
        live = step.kind == EXPECT and frame.cas in made
        found.append(replace(step, live=live, data=shorten_timeout(step.data)))
    return found


def shorten_timeout(data: bytes) -> bytes:
    """Return the client's frame; a NOOP interval of a second becomes a tenth of a second."""
    second = Control(key=b"set_noop_interval", value=b"1")
    if data[HEADER_BYTES:] != second.encode()[HEADER_BYTES:]:
        return data
    return replace(second, value=b"0.1", opaque=parse_header(data).opaque).encode()


def make_changes(changes: Sequence[Frame], player: Player) -> None:
    """Make the changes that a stream shows, in one batch.

    A missing seqno stands for an older version that no stream shows. The change is repeated to fill the gap.
    """
    vbucket = _find_vbucket(player, changes[0])
    high = vbucket.changes.high_seqno
    requests: list[Request] = []
    for change in changes:
        requests += [_make_request(change)] * (get_seqno(change) - high)
        high = get_seqno(change)
    send_requests(player, requests)


def _make_request(change: Frame) -> Request:
    """Return the request that makes a change."""
    if change.key in EXPIRED:
        return Get(key=change.key, vbucket=change.specific)  # the document has expired, so the read deletes it
    if change.opcode != Opcode.DCP_MUTATION:
        return Delete(key=change.key, vbucket=change.specific)
    _, _, flags, expiry, *_ = MUTATION.unpack(change.extras)
    write = Set(key=change.key, value=change.value, vbucket=change.specific, flags=flags)
    return replace(write, expiry=expiry + CLOCK_OFFSET) if expiry else write


def make_tap_change(change: Frame, player: Player) -> None:
    """Make a change that a TAP stream shows, and the changes that must precede it."""
    write = Set(key=change.key, value=change.value, vbucket=change.specific)
    if change.opcode == Opcode.TAP_MUTATION:
        *_, flags, _ = TAP_ITEM.unpack(change.extras)
        send_requests(player, [replace(write, flags=int.from_bytes(flags.to_bytes(4, "big"), "little"))])
        return
    delete = Delete(key=change.key, vbucket=change.specific)
    send_requests(player, [delete] if _find_vbucket(player, change).get(b"\0" + change.key) else [write, delete])


def _find_vbucket(player: Player, change: Frame) -> Vbucket:
    return player.node.buckets["default"].store.vbuckets[change.specific]


def send_requests(player: Player, requests: Sequence[Request]) -> None:
    player.side_client.send(*requests)
    for request in requests:
        reply = player.side_client.receive()
        expected = Status.KEY_ENOENT if isinstance(request, Get) else Status.SUCCESS
        if reply.specific != expected:
            raise Mismatch(f"another client: {request}, {reply}")


def request_action(*requests: Request) -> Action:
    """Return an action: another client sends these requests in one batch, and all succeed."""
    return lambda player: send_requests(player, requests)


def set_states(vbucket: int, *states: VbucketState) -> Action:
    """Return an action: a vbucket gets these states, one after the other."""
    return request_action(*(SetVbucket(vbucket=vbucket, state=state) for state in states))


def expect_value(request: Request, value: bytes) -> Action:
    """Return an action: another client sends a request, whose reply must have a value that starts with these bytes."""

    def act(player: Player) -> None:
        reply = player.side_client.ask(request)
        if reply.specific != Status.SUCCESS or not reply.value.startswith(value):
            raise Mismatch(f"another client: {request}, {reply}, expected {value!r}")

    return act


def expect_statistic(group: str, name: str, value: int) -> Action:
    """Return an action: another client reads a statistic, which must have this value."""

    def act(player: Player) -> None:
        if (found := player.side_client.stats(group).get(name)) != str(value):
            raise Mismatch(f"{name} {found}, expected {value}")

    return act


def check_replies_within_stream(player: Player) -> None:
    """Send two more requests as the client, and check that their replies come within the stream of 2000 changes."""
    peer = player.peers[""]
    peer.send(DcpGetFailoverLog(vbucket=3, opaque=1).encode() + Noop(opaque=2).encode())
    frames = [peer.receive(player.patience) for _ in range(2003)]
    replies = [frame.opaque for frame in frames if frame and frame.magic == Magic.RESPONSE]
    changes = [get_seqno(frame) for frame in frames if frame and frame.opcode == Opcode.DCP_MUTATION]
    if (replies, changes) != ([1, 2], list(range(1, 2001))):
        raise Mismatch(f"replies {replies}, {len(changes)} changes")


def stream_for_statistics(player: Player) -> None:
    client = WireClient(player.node)
    player.others.append(client)
    client.open("statconn").control("connection_buffer_size", "1000")
    client.stream(4, opaque=0x2001)


def await_noop(player: Player) -> None:
    """Wait for a NOOP. The recording is too short for it: that server checks its intervals about every 6 s only."""
    for peer in player.peers.values():
        frame = peer.receive(PATIENCE)
        if frame is None or (frame.magic, frame.opcode) != (Magic.REQUEST, Opcode.DCP_NOOP):
            raise Mismatch(f"{frame}, expected a NOOP")


def send_mutations(player: Player) -> None:
    """Send the 400 mutations of 10 kB as the client: the recording only mentions them."""
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


def extend_branch(vbucket: int, vbuuid: int, to: int) -> Action:
    """Return an action: the changes of a branch, up to a seqno, are added to a vbucket."""

    def act(player: Player) -> None:
        found = player.node.buckets["default"].store.vbuckets[vbucket]
        branch = collect_histories()[vbuuid]
        for number in sorted(branch):
            if found.changes.high_seqno < number <= to:
                player.run_on_loop(partial(apply_change, found, branch[number]))

    return act


LIVE1 = (Set(key=b"live1", value=b"on", flags=5), Delete(key=b"live1"))

ACTIONS: dict[str, dict[int, Sequence[Action]]] = {
    "dcp_failover_rollback_matrix": {
        2: [extend_branch(1, C1, 5)],
        4: [set_states(1, R, A), extend_branch(1, C1, 10)],
        6: [set_states(1, R, A), extend_branch(1, C1, 15)],
    },
    "dcp_flow_control_accounting": {
        9: [
            expect_statistic("dcp", "eq_dcpq:count:unacked_bytes", 194),
            expect_statistic("dcp", "eq_dcpq:count:total_bytes_sent", 194),
        ],
        # The second stream is shorter than the recorded one, since it ends exactly at its end seqno.
        18: [expect_statistic("dcp", "eq_dcpq:count:unacked_bytes", 194 + 44 + 43 + 28)],
    },
    "dcp_noop_without_stream": {6: [await_noop]},
    "dcp_requests_during_stream": {
        0: [request_action(*(Set(key=b"key %d" % number, value=bytes(100), vbucket=3) for number in range(2000)))],
        4: [check_replies_within_stream],
    },
    "dcp_rollback_purged": {
        5: [request_action(CompactDb(vbucket=2)), expect_statistic("vbucket-seqno 2", "vb_2:purge_seqno", 9)]
    },
    "dcp_state_change_stream_end": {
        4: [set_states(3, R)],
        7: [set_states(3, D)],
        10: [set_states(3, P)],
        13: [set_states(3, A)],
    },
    "dcp_takeover": {14: [expect_value(GetVbucket(vbucket=4), bytes((0, 0, 0, D)))]},
    "dcp_vbucket_deleted": {4: [set_states(2, D)], 6: [request_action(DelVbucket(vbucket=2))]},
    "dcpcons_buffer_acks": {14: [send_mutations]},
    "dcpcons_odd_items_readback": {24: [set_states(16, A)]},
    "stats_dcp": {0: [stream_for_statistics]},
    "stats_dcp-vbtakeover_4_statconn": {0: [stream_for_statistics]},
    "tap_change_vb_filter": {
        37: [request_action(ChangeVbFilter(key=b"replication_x", value=pack_checkpoints(((0, 1), (4, 0)))))]
    },
    "tap_checkpoint": {40: [request_action(*LIVE1)]},
    "tap_checkpoint_crossing": {
        19: [expect_value(CreateCheckpoint(), bytes((*bytes(7), 3)))],
        28: [expect_value(CreateCheckpoint(), bytes((*bytes(7), 4)))],
        34: [expect_value(LastClosedCheckpoint(), bytes((*bytes(7), 3)))],
    },
    "tap_flush": {49: [request_action(Flush())]},
    "tap_keys_only_live": {25: [request_action(*LIVE1)]},
    "tap_registered": {51: [request_action(DeregisterTapClient(key=b"reg1"))]},
    "tap_support_ack": {35: [request_action(*LIVE1)]},
    "tap_support_ack_unanswered": {4: [request_action(*LIVE1)]},
    "tap_takeover": {15: [expect_value(GetVbucket(vbucket=2), bytes((0, 0, 0, D)))]},
    "tap_takeover_noack": {7: [expect_value(GetVbucket(vbucket=3), bytes((0, 0, 0, D)))]},
    "tapcons_vbucket_set": {4: [expect_value(GetVbucket(vbucket=30), bytes((0, 0, 0, P)))]},
}
"""By recording and index of a frame: actions before the frame that no frame shows."""
