"""Where our node differs from the recorded server on purpose, and what it cannot do yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.node.release import VERSION
from penstock.wire.constants import Magic, Opcode, SnapshotFlag, Status, TapFlag, TapOpaque
from penstock.wire.frame import Frame
from penstock.wire.tap import TapDelete, TapMessage, TapOpaqueMessage
from tests.node.replay import (
    CLOSED,
    CLOSES,
    DO,
    ENTRY,
    EXPECT,
    MARKER,
    NAMES,
    REMARK,
    SEND,
    TAP_ITEM,
    Mismatch,
    Player,
    Script,
    Step,
    cut,
    header,
)
from tests.node.replay_state import changes_of, histories, is_item, is_tap, seqno, streams

__all__ = ["DIFFERENCES", "NOT_YET", "Difference"]

_STREAMING = range(Opcode.TAP_CONNECT, Opcode.DCP_CONTROL + 1)

Edit = Callable[[Script], Script]


@dataclass(frozen=True)
class Difference:
    """What our node does instead, and why. edit: makes of a script of theirs one of ours.

    where: the recordings; None: whichever the edit changes.
    """

    why: str
    edit: Edit
    where: Collection[str] | None = None


# Edits


def each(change: Callable[[Step], Step]) -> Edit:
    """Change every frame that the server sends."""
    return lambda steps: [change(step) if step.kind == EXPECT else step for step in steps]


def _without_text(step: Step) -> Step:
    frame = step.frame
    refused = frame.magic == Magic.RESPONSE and frame.specific not in (Status.SUCCESS, Status.ROLLBACK)
    return step.change(value=b"") if refused else step


def _with_map(step: Step) -> Step:
    frame = step.frame
    refused = frame.magic == Magic.RESPONSE and frame.specific == Status.NOT_MY_VBUCKET
    return step.change(value=b"a map") if refused and frame.opcode not in _STREAMING else step


def _of_memory(step: Step) -> Step:
    if step.frame[:2] != (Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER):
        return step
    start, end, _ = MARKER.unpack(step.frame.extras)
    return step.change(extras=MARKER.pack(start, end, SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT))


def _never_referenced(step: Step) -> Step:
    frame = step.frame
    if step.live and frame.opcode == Opcode.TAP_MUTATION:
        return step.change(framing=frame.framing[:-1] + b"\0")
    if step.live and frame.opcode == Opcode.DCP_MUTATION:
        return step.change(extras=frame.extras[:-1] + b"\0")
    return step


def _no_floor(steps: Script) -> Script:
    """Let the highest rev_seqno of deleted documents matter to no one."""
    known = {step.frame.key for step in steps if step.kind == EXPECT and is_item(step.frame) and not step.live}
    changed = []
    for step in steps:
        frame = step.frame
        if step.kind == EXPECT and is_tap(frame) and frame.opcode == Opcode.TAP_CHECKPOINT_START:
            step = step.change(framing=bytes(8))
        if step.live and frame.opcode == Opcode.TAP_MUTATION and frame.key not in known:
            step = step.change(framing=FIRST + frame.framing[8:])
            known.add(frame.key)
        changed.append(step)
    return changed


FIRST = (1).to_bytes(8, "big")


def _once(steps: Script) -> Script:
    """Let no change come twice on a connection."""
    seen: set[tuple[str, int]] = set()
    kept = []
    for step in steps:
        change = step.connection, step.frame.cas
        if step.kind == EXPECT and is_item(step.frame):
            if change in seen:
                continue
            seen.add(change)
        kept.append(step)
    return kept


def acknowledged(steps: Script) -> Script:
    """Leave the answers of a TAP consumer to the player, which gives them when it is asked to."""
    return [step for step in steps if step.kind != SEND or step.data[0] != Magic.RESPONSE]


def acknowledges(steps: Sequence[Step]) -> bool:
    """Tell whether the client of a recording answers what asks for that."""
    asked = {step.frame.opaque for step in steps if step.kind == EXPECT and is_tap(step.frame)}
    return any(
        step.kind == SEND and step.data[0] == Magic.RESPONSE and header(step.data).opaque in asked for step in steps
    )


def keys_only(steps: Script) -> Script:
    """Let TAP mutations come without their values, and say so."""
    changed = []
    for step in steps:
        if step.kind == EXPECT and is_tap(step.frame) and step.frame.opcode == Opcode.TAP_MUTATION:
            private, flags, *rest = TAP_ITEM.unpack(step.frame.extras)
            step = step.change(extras=TAP_ITEM.pack(private, flags | TapFlag.NO_VALUE, *rest), value=b"")
        changed.append(step)
    return changed


def after_do(message: TapMessage) -> Edit:
    """Let the server send a change once the last thing has happened; its revision is two above the one before."""

    def edit(steps: Script) -> Script:
        place = max(place for place, step in enumerate(steps) if step.kind == DO)
        old = next(step.frame for step in steps if step.kind == EXPECT and step.frame.key == message.key)
        revision = int.from_bytes(old.framing, "big") + 2
        frame = cut(message.encode())._replace(framing=revision.to_bytes(8, "big"), cas=1)
        return [*steps[: place + 1], Step(EXPECT, frame=frame, text="ours"), *steps[place + 1 :]]

    return edit


def only_new(steps: Script) -> Script:
    """Leave out what was there before."""
    return [step for step in steps if step.live or not (step.kind == EXPECT and is_item(step.frame))]


def more(index: int, *messages: TapMessage, connection: str = "") -> Edit:
    """Let the server send messages in front of the frame of an index."""

    def edit(steps: Script) -> Script:
        place = next(place for place, step in enumerate(steps) if step.index == index)
        while steps[place - 1].kind == DO:
            place -= 1
        added = [Step(EXPECT, connection, frame=cut(message.encode()), text="ours") for message in messages]
        return [*steps[:place], *added, *steps[place:]]

    return edit


def goes_on(steps: Script) -> Script:
    """Let nothing more be said of vbucket 0 once the filter has changed."""
    place = next(place for place, step in enumerate(steps) if step.index == 38) + 1
    rest = [step for step in steps[place:] if step.kind != EXPECT or step.frame.specific]
    return [*steps[:place], *rest]


def second_like_first(steps: Script) -> Script:
    """Let the second connection that takes a name be sent at once what the first one was, which is closed."""
    place = next(place for place, step in enumerate(steps) if step.kind == CLOSED)
    again = [replace(step, connection="second") for step in steps if step.kind == EXPECT]
    return [*steps[: place + 1], *again, *steps[place + 1 :]]


def _to_the_end(steps: Script) -> Script:
    """Let a stream end at the first change that is not below the end that it was asked for, with what counts there."""
    for stream in streams(steps):
        shown = list(changes_of(steps, stream))
        over = [step for step in shown[1:] if stream.start < stream.end <= seqno(step.frame)]
        if not over:
            continue
        marker, last = shown[0], seqno(over[0].frame)
        start, _, flags = MARKER.unpack(marker.frame.extras)
        branch = histories()[stream.log[0].vbuuid]
        counts = {branch[number].key: number for number in sorted(branch) if stream.start < number <= last}
        rest = [
            replace(marker, frame=branch[number]._replace(opaque=stream.opaque), text=f"what counts at {last}")
            for number in sorted(counts.values())
        ]
        place = steps.index(marker)
        marker = marker.change(extras=MARKER.pack(start, last, flags))
        left_out = {step.index for step in shown}
        steps = [*steps[:place], marker, *rest, *(step for step in steps[place:] if step.index not in left_out)]
    return steps


def answered(status: Status) -> Edit:
    """Let the server answer with this status what made it close the connection, and all that follows."""

    def edit(steps: Script) -> Script:
        end = next(index for index, step in enumerate(steps) if step.kind == CLOSED)
        kept: Script = []
        for index, step in enumerate(steps):
            if step.kind not in (CLOSED, REMARK):
                kept.append(step)
            if step.kind == SEND and (index > end or index == end - 1):
                request = header(step.data)
                reply = Frame(Magic.RESPONSE, request.opcode, status, opaque=request.opaque)
                kept.append(Step(EXPECT, step.connection, frame=reply, index=step.index, text="the refusal of it"))
        return kept

    return edit


def instead(index: int, *, then: int = 1, **fields: Any) -> Edit:
    """Change the frame at an index, and leave out all but one of the `then` frames from it on."""

    def edit(steps: Script) -> Script:
        left_out = range(index + 1, index + then)
        return [step.change(**fields) if step.index == index else step for step in steps if step.index not in left_out]

    return edit


def statistics(steps: Script) -> Script:
    """Let the server send more statistics, in another order, but for those that it does not have."""
    recorded = {step.frame.key.decode(): step.frame.value.decode() for step in steps if step.kind == EXPECT}

    def check(player: Player) -> None:
        found = player.statistics()
        for name, value in recorded.items():
            kind = name.rpartition(":")[2].removeprefix("stream_4_")
            if not name or (kind in MOMENTARY and name in found):
                continue
            expected = STATISTICS.get(kind, value)
            if found.get(name) != expected:
                raise Mismatch(f"{name} {expected!r}, found {found.get(name)!r}")

    first = next(place for place, step in enumerate(steps) if step.kind == EXPECT)
    return [*steps[:first], Step(DO, action=check), *(step for step in steps[first:] if step.kind != EXPECT)]


MOMENTARY = frozenset(("created",))

STATISTICS: dict[str, str | None] = {
    **dict.fromkeys(("noop_enabled", "noop_wait"), "false"),
    **{"opaque": str(0x2001), "state": "open"},
    **dict.fromkeys(
        (
            *("pending_disconnect", "supports_ack", "reserved", "paused", "last_sent_time", "flags", "backfilled"),
            *("memory", "last_sent_seqno", "last_read_seqno", "ready_queue_memory", "items_ready"),
            *("ep_dcp_total_queue", "ep_dcp_queue_fill", "ep_dcp_queue_backfillremaining", "ep_dcp_dead_conn_count"),
        )
    ),
}
"""What ours says instead, None where it says nothing."""


def never_opened(steps: Script) -> Script:
    """Let the server refuse OPEN, and so all that follows."""
    kept: Script = []
    for step in steps:
        if step.kind == SEND:
            request = header(step.data)
            reply = Frame(Magic.RESPONSE, request.opcode, Status.EINVAL, opaque=request.opaque)
            kept += [step, Step(EXPECT, step.connection, frame=reply, index=step.index, text="the refusal of it")]
        elif step.kind == CLOSES:
            kept.append(step)
    return kept


def closed(connection: str) -> Edit:
    """Let the server close a connection that it would have closed later."""

    def edit(steps: Script) -> Script:
        return [
            replace(step, kind=CLOSED) if step.kind == CLOSES and step.connection == connection else step
            for step in steps
        ]

    return edit


def at_once(index: int) -> Edit:
    """Let the client send a request before it has read what stands in front of it."""

    def edit(steps: Script) -> Script:
        place = next(place for place, step in enumerate(steps) if step.index == index)
        return [*steps[: place - 1], steps[place], steps[place - 1], *steps[place + 1 :]]

    return edit


DIFFERENCES: dict[str, Difference] = {
    "texts": Difference(
        "The status of a refusal says it all; newer releases do not send these texts either.",
        each(_without_text),
    ),
    "memory": Difference(
        "The bucket lives in memory, and each of our snapshots shows a document once: MEMORY | CHECKPOINT, never DISK.",
        each(_of_memory),
    ),
    "nru": Difference(
        "How recently a document was used is not kept: 0 for what was written here.", each(_never_referenced)
    ),
    "repeats": Difference(
        "A TAP stream sends a change once; theirs began the open checkpoint anew after the backfill.", _once
    ),
    "deleted revisions": Difference(
        "A key counts on from its own tombstone; theirs began above that of every tombstone, and said so.",
        _no_floor,
    ),
    "keys only": Difference("KEYS_ONLY is honoured; theirs passed it over.", keys_only, where=("tap_keys_only_live",)),
    "from now on": Difference(
        "Who asks for what comes gets nothing older; theirs began with the open checkpoint.",
        only_new,
        where=("tap_backfill_now",),
    ),
    "same name of tap": Difference(
        "Who takes a name over is served at once; theirs took more than a second, and the recording ends before.",
        second_like_first,
        where=("tap_same_name",),
    ),
    "filter": Difference(
        "A vbucket that stays in the filter goes on where it is; theirs began all of them anew.",
        goes_on,
        where=("tap_change_vb_filter",),
    ),
    "superfluous body": Difference(
        "What no flag asks for is passed over; theirs sent nothing.",
        more(
            1,
            TapOpaqueMessage(engine_private=bytes((0, 0, 0, TapOpaque.INITIAL_VBUCKET_STREAM)), ttl=255),
            TapOpaqueMessage(engine_private=bytes((0, 0, 0, TapOpaque.CLOSE_BACKFILL)), ttl=255),
        ),
        where=("tap_bad_extra_body",),
    ),
    "prompt": Difference(
        "A change is sent at once; theirs had not sent it when the client left a second later.",
        after_do(TapDelete(key=b"live1", engine_private=bytes(8))),
        where=("tap_checkpoint", "tap_keys_only_live", "tap_support_ack"),
    ),
    "crashes": Difference(
        "Theirs dies of engine-private data of no bytes; ours takes it as none.",
        answered(Status.SUCCESS),
        where=("crash_tap_delete_es0", "crash_tap_mutation_es0"),
    ),
    "exact end": Difference(
        "A snapshot ends where the stream does, as far as there is a change; theirs always completed their checkpoint.",
        _to_the_end,
    ),
    "before open": Difference(
        "Newer releases answer EINVAL to a change-stream request without OPEN, and the connection lives on.",
        answered(Status.EINVAL),
        where=("dcp_before_open", *(f"dcp_no_open_op{code}" for code in ("51", "53", "55", "5a", "5b", "5d"))),
    ),
    "gapless": Difference(
        "A snapshot begins right behind the one before; theirs with the first change that deduplication left.",
        instead(8, extras=MARKER.pack(13, 17, 5)),
        where=("dcp_mem_live_dedup_checkpoint",),
    ),
    "system events": Difference(
        "0x5f was reserved; it is SYSTEM_EVENT now, which cannot be without extras.",
        instead(3, specific=Status.EINVAL),
        where=("dcp_bad_op5f",),
    ),
    "cluster map": Difference(
        "Newer releases say with NOT_MY_VBUCKET who has the vbucket, but not to change streams.",
        each(_with_map),
    ),
    "version": Difference(
        "The version is ours.",
        instead(37, value=VERSION.encode()),
        where=("setup_vbuckets_and_items",),
    ),
    "statistics": Difference(
        "More is known of vbuckets and streams, but for queues of items, which there are not; booleans are words, "
        "and an opaque is not sent in reverse.",
        statistics,
        where=("stats_dcp", "stats_tap", "stats_vbucket-seqno_1"),
    ),
    "value of open": Difference(
        "The value was passed over; since 6.5 it is a JSON object, so that anything else is EINVAL.",
        instead(1, specific=Status.EINVAL),
        where=("dcp_bad_open_value",),
    ),
    "json of stream_req": Difference(
        "A stream request may carry JSON since it has filters, so its datatype is no error; none is asked for here.",
        instead(3, specific=Status.SUCCESS, value=ENTRY.pack(1, 0)),
        where=("dcp_bad_sreq_datatype",),
    ),
    "features": Difference(
        "Of the features 1 to 8, these are ours; datatype (1) has come to be two newer ones.",
        instead(1, value=bytes((0, 4, 0, 8))),
        where=("dcp_hello_features",),
    ),
    "flags of open": Difference(
        "Newer releases answer EINVAL to flags that they do not know, and notifiers (2) are among these.",
        never_opened,
        where=("dcp_notifier", "dcp_open_flags_2", "dcp_open_flags_7", "dcp_open_flags_80000001"),
    ),
    "length of a name": Difference(
        "Newer releases limit the name of a connection to 200 bytes.", never_opened, where=("dcp_open_name_250",)
    ),
    "same name": Difference(
        "Who loses its name to another connection is closed at once, not within seconds.",
        closed("first"),
        where=("dcp_open_same_name",),
    ),
}

LOOSE: dict[str, int | None] = {"dcp_two_vbuckets": 4, "dcp_stream_req_errors": 22, "tap_checkpoint_ids": None}
"""Recordings in which replies, or frames of other vbuckets, stand among those of a stream: which is first is timing.

Only the order of replies and that within a vbucket are compared. The number is that of a request for which the client
did not wait.
"""

NOT_YET: dict[str, Collection[str]] = {
    "restart": (
        *("dcp_disk_backfill_after_clean_restart", "dcp_disk_backfill_after_sigkill"),
        "tap_backfill_dump_after_restart",
    ),
    "purge": ("dcp_rollback_purged",),
    "takeover": (
        *("dcp_takeover", "dcp_takeover_no_acks", "dcp_bad_res_setvb_unknown", "stats_dcp-vbtakeover_4_statconn"),
        *("tap_takeover", "tap_takeover_noack"),
    ),
    "consumer": (
        *("crash_dcp_mutation_nmeta_gt_value", "crash_dcp_rollback_5_of_empty", "crash_dcp_rollback_nobody"),
        *("dcp_open_flags_4", "dcp_open_flags_8"),
        *(name for name in NAMES if name.startswith("dcpcons_") and name != "dcpcons_single_readback"),
    ),
    "plain cache engine": tuple(name for name in NAMES if name.startswith("defengine_")),
    "Snappy": ("tap_datatype_hello",),
    "statistics of checkpoints": ("stats_checkpoint_1",),
}
"""By capability the recordings whose replay needs it."""
