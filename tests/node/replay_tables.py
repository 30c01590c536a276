"""Where our node differs from the recorded server on purpose, and what it cannot do yet."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from penstock.node.release import VERSION
from penstock.wire.constants import Magic, Opcode, SnapshotFlag, Status
from penstock.wire.frame import Frame
from tests.node.replay import (
    CLOSED,
    CLOSES,
    ENTRY,
    EXPECT,
    MARKER,
    NAMES,
    REMARK,
    SEND,
    Script,
    Step,
    header,
)
from tests.node.replay_state import changes_of, histories, seqno, streams

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
    if step.frame.opcode != Opcode.DCP_SNAPSHOT_MARKER:
        return step
    start, end, _ = MARKER.unpack(step.frame.extras)
    return step.change(extras=MARKER.pack(start, end, SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT))


def _never_referenced(step: Step) -> Step:
    if not step.live or step.frame.opcode != Opcode.DCP_MUTATION:
        return step
    return step.change(extras=step.frame.extras[:-1] + b"\0")


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


def statistics(*more: tuple[int, dict[str, str]]) -> Edit:
    """Let the server send more statistics, in front of the frames of these indices."""

    def edit(steps: Script) -> Script:
        added = dict(more)
        return [
            step
            for old in steps
            for step in (
                *(
                    old.change(key=name.encode(), value=value.encode())
                    for name, value in added.get(old.index, {}).items()
                ),
                old,
            )
        ]

    return edit


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
        "Newer releases know more of a vbucket.",
        statistics(
            (3, {"vb_1:last_persisted_seqno": "0"}),
            (
                5,
                {
                    "vb_1:last_persisted_snap_start": "0",
                    "vb_1:last_persisted_snap_end": "0",
                    "vb_1:high_prepared_seqno": "0",
                    "vb_1:high_completed_seqno": "0",
                    "vb_1:max_visible_seqno": "15",
                },
            ),
        ),
        where=("stats_vbucket-seqno_1",),
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

LOOSE = {"dcp_two_vbuckets": 4, "dcp_stream_req_errors": 22}
"""Recordings in which a reply stands among the frames of streams, and the request that the client sent without waiting.

Which of the two comes first is timing. Of these, only the order of replies and that within a vbucket are compared.
"""

NOT_YET: dict[str, Collection[str]] = {
    "restart": ("dcp_disk_backfill_after_clean_restart", "dcp_disk_backfill_after_sigkill"),
    "purge": ("dcp_rollback_purged",),
    "takeover": ("dcp_takeover", "dcp_takeover_no_acks", "dcp_bad_res_setvb_unknown"),
    "consumer": (
        *("crash_dcp_mutation_nmeta_gt_value", "crash_dcp_rollback_5_of_empty", "crash_dcp_rollback_nobody"),
        *("dcp_open_flags_4", "dcp_open_flags_8"),
        *(name for name in NAMES if name.startswith("dcpcons_")),
    ),
    "plain cache engine": tuple(name for name in NAMES if name.startswith("defengine_")),
    "tap": tuple(name for name in NAMES if name.startswith(("tap", "crash_tap", "stats_tap"))),
    "statistics of streams": ("stats_dcp", "stats_dcp-vbtakeover_4_statconn", "stats_checkpoint_1"),
    "expiry": ("dcp_expired_not_yet_deleted",),
    "values of a state": ("dcp_bad_setvb_state5",),
}
"""By capability the recordings whose replay needs it."""
