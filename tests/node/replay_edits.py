"""Edits of a script: they turn a conversation with the recorded server into one with our node.

An edit takes a script and returns a new one, which may be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.wire.codec.flags import SnapshotFlag, TapFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.tap import TapMessage
from tests.node.replay import (
    CLOSED,
    CLOSES,
    DO,
    ENTRY,
    EXPECT,
    MARKER,
    MUTATION,
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

_STREAMING = range(Opcode.TAP_CONNECT, Opcode.DCP_CONTROL + 1)

Edit = Callable[[Script], Script]


def each(change: Callable[[Step], Step]) -> Edit:
    """Change every frame that the server sends."""
    return lambda steps: [change(step) if step.kind == EXPECT else step for step in steps]


def without_text(step: Step) -> Step:
    frame = step.frame
    refused = frame.magic == Magic.RESPONSE and frame.specific not in (Status.SUCCESS, Status.ROLLBACK)
    return step.change(value=b"") if refused else step


def with_map(step: Step) -> Step:
    frame = step.frame
    refused = frame.magic == Magic.RESPONSE and frame.specific == Status.NOT_MY_VBUCKET
    return step.change(value=b"a map") if refused and frame.opcode not in _STREAMING else step


def without_cas(step: Step) -> Step:
    frame = step.frame
    deleted = frame[:3] == (Magic.RESPONSE, Opcode.DELETE, Status.SUCCESS)
    return step.change(cas=0) if deleted else step


def of_memory(step: Step) -> Step:
    return _flagged(step, SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT)


def of_disk(*indexes: int) -> Edit:
    """Let the markers at these indexes begin a backfill."""
    flags = SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT
    return each(lambda step: _flagged(step, flags) if step.index in indexes else step)


def _flagged(step: Step, flags: SnapshotFlag) -> Step:
    if step.frame[:2] != (Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER):
        return step
    start, end, _ = MARKER.unpack(step.frame.extras)
    return step.change(extras=MARKER.pack(start, end, flags))


def never_referenced(step: Step) -> Step:
    frame = step.frame
    if step.live and frame.opcode == Opcode.TAP_MUTATION:
        return step.change(framing=frame.framing[:-1] + b"\0")
    if step.live and frame.opcode == Opcode.DCP_MUTATION:
        return step.change(extras=frame.extras[:-1] + b"\0")
    return step


def with_nrus(nrus: Mapping[int, int]) -> Edit:
    """Let mutations at these indexes have the recency that the client has sent."""
    return each(
        lambda step: (
            step.change(extras=step.frame.extras[:-1] + bytes((nrus[step.index],))) if step.index in nrus else step
        )
    )


def no_floor(steps: Script) -> Script:
    """Let the highest rev_seqno of deleted documents matter to no one."""
    known = {step.frame.key for step in steps if step.kind == EXPECT and is_item(step.frame) and not step.live}
    branches = [histories().get(stream.log[0].vbuuid, {}) for stream in streams(steps)]
    changed = []
    for step in steps:
        frame = step.frame
        if step.kind == EXPECT and is_tap(frame) and frame.opcode == Opcode.TAP_CHECKPOINT_START:
            step = step.change(framing=bytes(8))
        if step.live and frame.opcode == Opcode.TAP_MUTATION and frame.key not in known:
            step = step.change(framing=(1).to_bytes(8, "big") + frame.framing[8:])
            known.add(frame.key)
        if step.live and frame.opcode == Opcode.DCP_MUTATION:
            by_seqno, _, *rest = MUTATION.unpack(frame.extras)
            if not any(old.key == frame.key and seqno(old) < by_seqno for of in branches for old in of.values()):
                step = step.change(extras=MUTATION.pack(by_seqno, 1, *rest))
        changed.append(step)
    return changed


def once(steps: Script) -> Script:
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
    """Return whether the client of a recording answers messages that ask for it."""
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
    """Leave out changes from before the conversation."""
    return [step for step in steps if step.live or not (step.kind == EXPECT and is_item(step.frame))]


def more(index: int, *messages: TapMessage) -> Edit:
    """Let the server send messages in front of the frame of an index."""

    def edit(steps: Script) -> Script:
        place = next(place for place, step in enumerate(steps) if step.index == index)
        while steps[place - 1].kind == DO:
            place -= 1
        added = [Step(EXPECT, frame=cut(message.encode()), text="ours") for message in messages]
        return [*steps[:place], *added, *steps[place:]]

    return edit


def goes_on(steps: Script) -> Script:
    """Let nothing more be said of vbucket 0 once the filter has changed."""
    place = next(place for place, step in enumerate(steps) if step.index == 38) + 1
    rest = [step for step in steps[place:] if step.kind != EXPECT or step.frame.specific]
    return [*steps[:place], *rest]


def second_like_first(steps: Script) -> Script:
    """Let the second connection of a name be served at once like the first one, which is closed."""
    place = next(place for place, step in enumerate(steps) if step.kind == CLOSED)
    again = [replace(step, connection="second") for step in steps if step.kind == EXPECT]
    return [*steps[: place + 1], *again, *steps[place + 1 :]]


def to_the_end(steps: Script) -> Script:
    """Let a stream end at the first change at or above its end seqno, with the bytes that count for it."""
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
    """Let the server answer with this status where it closed the connection, and drop all that follows."""

    def edit(steps: Script) -> Script:
        end = next(index for index, step in enumerate(steps) if step.kind == CLOSED)
        kept: Script = []
        for index, step in enumerate(steps):
            if step.kind not in (CLOSED, REMARK):
                kept.append(step)
            if step.kind == SEND and (index > end or index == end - 1):
                kept.append(_refusal(step, status))
        return kept

    return edit


def _refusal(step: Step, status: Status) -> Step:
    """Return the refusal of a request. The failover log needs no OPEN."""
    request = header(step.data)
    reply = Frame(Magic.RESPONSE, request.opcode, status, opaque=request.opaque)
    if request.opcode == Opcode.DCP_GET_FAILOVER_LOG:
        reply = reply._replace(specific=Status.SUCCESS, value=ENTRY.pack(1, 0))
    return Step(EXPECT, step.connection, frame=reply, index=step.index, text="the refusal of it")


def without(*indexes: int) -> Edit:
    """Leave out the frames of these indexes."""
    return lambda steps: [step for step in steps if step.index not in indexes]


def instead(index: int, **fields: Any) -> Edit:
    """Change fields of the frame at an index."""
    return each(lambda step: step.change(**fields) if step.index == index else step)


def statistics(ours: Mapping[str, str | None]) -> Edit:
    """Let the server send more statistics, in another order, and other values of some kinds.

    ours: by kind, the value that our node sends; None: no value; "": any value.
    """

    def edit(steps: Script) -> Script:
        recorded = {step.frame.key.decode(): step.frame.value.decode() for step in steps if step.kind == EXPECT}
        del recorded[""]

        def check(player: Player) -> None:
            found = player.statistics()
            for name, value in recorded.items():
                kind = name.rpartition(":")[2]
                expected = ours.get(kind, ours.get(kind.removeprefix("stream_4_"), value))
                if found.get(name) != expected and not (expected == "" and name in found):
                    raise Mismatch(f"{name} {expected!r}, found {found.get(name)!r}")

        first = next(place for place, step in enumerate(steps) if step.kind == EXPECT)
        return [*steps[:first], Step(DO, action=check), *(step for step in steps[first:] if step.kind != EXPECT)]

    return edit


def both(*edits: Edit) -> Edit:
    """Apply several edits, one after the other."""

    def edit(steps: Script) -> Script:
        for each_of_them in edits:
            steps = each_of_them(steps)
        return steps

    return edit


def refused(status: Status) -> Edit:
    """Let the server refuse everything."""

    def edit(steps: Script) -> Script:
        kept: Script = []
        for step in steps:
            if step.kind == SEND:
                kept += [step, _refusal(step, status)]
            elif step.kind == CLOSES:
                kept.append(step)
        return kept

    return edit


def replies(index: int, status: Status) -> Edit:
    """Let the server reply to the client's frame at an index, which it did not answer."""

    def edit(steps: Script) -> Script:
        place = next(place for place, step in enumerate(steps) if step.index == index) + 1
        return [*steps[:place], _refusal(steps[place - 1], status), *steps[place:]]

    return edit


def closes_after(index: int) -> Edit:
    """Let the server close the connection after the client's frame at an index, and drop all that follows."""

    def edit(steps: Script) -> Script:
        place = next(place for place, step in enumerate(steps) if step.index == index) + 1
        return [*steps[:place], Step(CLOSED, steps[place - 1].connection, index=index, text="the end")]

    return edit


def closed(connection: str) -> Edit:
    """Let the server close a connection that it would have closed later."""

    def edit(steps: Script) -> Script:
        return [
            replace(step, kind=CLOSED) if step.kind == CLOSES and step.connection == connection else step
            for step in steps
        ]

    return edit


def at_once(index: int) -> Edit:
    """Let the client send a request before it has read the previous frames."""

    def edit(steps: Script) -> Script:
        place = next(place for place, step in enumerate(steps) if step.index == index)
        return [*steps[: place - 1], steps[place], steps[place - 1], *steps[place + 1 :]]

    return edit
