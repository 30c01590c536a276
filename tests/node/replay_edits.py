"""Edits of a script: they turn the behaviour of the recorded server into the behaviour of our node.

An edit takes a script and returns a script, which is equal if the edit does not apply.
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
    parse_frame,
    parse_header,
)
from tests.node.replay_state import collect_histories, get_seqno, is_item, is_tap, list_changes, list_streams

_STREAMING = range(Opcode.TAP_CONNECT, Opcode.DCP_CONTROL + 1)

Edit = Callable[[Script], Script]


def edit_each(change: Callable[[Step], Step]) -> Edit:
    """Return an edit of each frame that the server sends."""
    return lambda steps: [change(step) if step.kind == EXPECT else step for step in steps]


def remove_error_text(step: Step) -> Step:
    frame = step.frame
    refused = frame.magic == Magic.RESPONSE and frame.specific not in (Status.SUCCESS, Status.ROLLBACK)
    return step.change(value=b"") if refused else step


def add_map(step: Step) -> Step:
    frame = step.frame
    refused = frame.magic == Magic.RESPONSE and frame.specific == Status.NOT_MY_VBUCKET
    return step.change(value=b"a map") if refused and frame.opcode not in _STREAMING else step


def remove_cas(step: Step) -> Step:
    frame = step.frame
    deleted = frame[:3] == (Magic.RESPONSE, Opcode.DELETE, Status.SUCCESS)
    return step.change(cas=0) if deleted else step


def mark_memory(step: Step) -> Step:
    return _set_marker_flags(step, SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT)


def mark_disk(*indexes: int) -> Edit:
    """Return an edit: the markers at these indexes announce snapshots from disk."""
    flags = SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT
    return edit_each(lambda step: _set_marker_flags(step, flags) if step.index in indexes else step)


def _set_marker_flags(step: Step, flags: SnapshotFlag) -> Step:
    if step.frame[:2] != (Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER):
        return step
    start, end, recorded = MARKER.unpack(step.frame.extras)
    return step.change(extras=MARKER.pack(start, end, flags | recorded & SnapshotFlag.ACK))


def reset_nru(step: Step) -> Step:
    frame = step.frame
    if step.live and frame.opcode == Opcode.TAP_MUTATION:
        return step.change(framing=frame.framing[:-1] + b"\0")
    if step.live and frame.opcode == Opcode.DCP_MUTATION:
        return step.change(extras=frame.extras[:-1] + b"\0")
    return step


def set_nrus(nrus: Mapping[int, int]) -> Edit:
    """Return an edit: the mutations at these indexes have the NRU values that the client has sent."""
    return edit_each(
        lambda step: (
            step.change(extras=step.frame.extras[:-1] + bytes((nrus[step.index],))) if step.index in nrus else step
        )
    )


def ignore_deleted_revisions(steps: Script) -> Script:
    """Make the revisions of new documents start at 1, without regard to the highest rev_seqno of deleted documents."""
    known = {step.frame.key for step in steps if step.kind == EXPECT and is_item(step.frame) and not step.live}
    branches = [collect_histories().get(stream.log[0].vbuuid, {}) for stream in list_streams(steps)]
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
            if not any(old.key == frame.key and get_seqno(old) < by_seqno for of in branches for old in of.values()):
                step = step.change(extras=MUTATION.pack(by_seqno, 1, *rest))
        changed.append(step)
    return changed


def remove_repeats(steps: Script) -> Script:
    """Remove the second and later copies of a change on a connection."""
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


def remove_acknowledgements(steps: Script) -> Script:
    """Remove the answers of a TAP consumer: the player sends them itself when the node requests them."""
    return [step for step in steps if step.kind != SEND or step.data[0] != Magic.RESPONSE]


def has_acknowledgements(steps: Sequence[Step]) -> bool:
    """Return whether the client of a recording answers TAP messages that request an answer."""
    asked = {step.frame.opaque for step in steps if step.kind == EXPECT and is_tap(step.frame)}
    responses = (step for step in steps if step.kind == SEND and step.data[0] == Magic.RESPONSE)
    return any(parse_header(step.data).opaque in asked for step in responses)


def remove_values(steps: Script) -> Script:
    """Remove the values of TAP mutations, and set the flag NO_VALUE."""
    changed = []
    for step in steps:
        if step.kind == EXPECT and is_tap(step.frame) and step.frame.opcode == Opcode.TAP_MUTATION:
            private, flags, *rest = TAP_ITEM.unpack(step.frame.extras)
            step = step.change(extras=TAP_ITEM.pack(private, flags | TapFlag.NO_VALUE, *rest), value=b"")
        changed.append(step)
    return changed


def add_after_last_action(message: TapMessage) -> Edit:
    """Return an edit: the server sends a change after the last action of other clients.

    The revision of the change is two above the previous one of its key.
    """

    def edit(steps: Script) -> Script:
        place = max(place for place, step in enumerate(steps) if step.kind == DO)
        old = next(step.frame for step in steps if step.kind == EXPECT and step.frame.key == message.key)
        revision = int.from_bytes(old.framing, "big") + 2
        frame = parse_frame(message.encode())._replace(framing=revision.to_bytes(8, "big"), cas=1)
        return [*steps[: place + 1], Step(EXPECT, frame=frame, text="ours"), *steps[place + 1 :]]

    return edit


def keep_new_changes(steps: Script) -> Script:
    """Remove changes from before the conversation."""
    return [step for step in steps if step.live or not (step.kind == EXPECT and is_item(step.frame))]


def insert_messages(index: int, *messages: TapMessage) -> Edit:
    """Return an edit: the server sends these messages in front of the frame at an index."""

    def edit(steps: Script) -> Script:
        place = next(place for place, step in enumerate(steps) if step.index == index)
        while steps[place - 1].kind == DO:
            place -= 1
        added = [Step(EXPECT, frame=parse_frame(message.encode()), text="ours") for message in messages]
        return [*steps[:place], *added, *steps[place:]]

    return edit


def remove_vbucket_0(steps: Script) -> Script:
    """Remove the frames of vbucket 0 after the change of the filter, at index 38."""
    place = next(place for place, step in enumerate(steps) if step.index == 38) + 1
    rest = [step for step in steps[place:] if step.kind != EXPECT or step.frame.specific]
    return [*steps[:place], *rest]


def serve_second_connection(steps: Script) -> Script:
    """Make the second connection of a name get the same frames as the first connection, as soon as that is closed."""
    place = next(place for place, step in enumerate(steps) if step.kind == CLOSED)
    again = [replace(step, connection="second") for step in steps if step.kind == EXPECT]
    return [*steps[: place + 1], *again, *steps[place + 1 :]]


def end_at_exact_seqno(steps: Script) -> Script:
    """Make each stream end at the first change at or above its end seqno, with the versions that are newest there."""
    for stream in list_streams(steps):
        shown = list(list_changes(steps, stream))
        over = [step for step in shown[1:] if stream.start < stream.end <= get_seqno(step.frame)]
        if not over:
            continue
        marker, last = shown[0], get_seqno(over[0].frame)
        start, _, flags = MARKER.unpack(marker.frame.extras)
        branch = collect_histories()[stream.log[0].vbuuid]
        counts = {branch[number].key: number for number in sorted(branch) if stream.start < number <= last}
        rest = [
            replace(marker, frame=branch[number]._replace(opaque=stream.opaque), text=f"newest version at {last}")
            for number in sorted(counts.values())
        ]
        place = steps.index(marker)
        marker = marker.change(extras=MARKER.pack(start, last, flags))
        removed = {step.index for step in shown}
        steps = [*steps[:place], marker, *rest, *(step for step in steps[place:] if step.index not in removed)]
    return steps


def answer_with(status: Status) -> Edit:
    """Return an edit: the server answers with this status where it closed the connection, and to later requests."""

    def edit(steps: Script) -> Script:
        end = next(index for index, step in enumerate(steps) if step.kind == CLOSED)
        kept: Script = []
        for index, step in enumerate(steps):
            if step.kind not in (CLOSED, REMARK):
                kept.append(step)
            if step.kind == SEND and (index > end or index == end - 1):
                kept.append(_make_refusal(step, status))
        return kept

    return edit


def _make_refusal(step: Step, status: Status) -> Step:
    """Return the step with the error reply to a request; the failover log needs no OPEN, so its reply is a success."""
    request = parse_header(step.data)
    reply = Frame(Magic.RESPONSE, request.opcode, status, opaque=request.opaque)
    if request.opcode == Opcode.DCP_GET_FAILOVER_LOG:
        reply = reply._replace(specific=Status.SUCCESS, value=ENTRY.pack(1, 0))
    return Step(EXPECT, step.connection, frame=reply, index=step.index, text="its refusal")


def move_frames(*indexes: int, behind: int) -> Edit:
    """Return the edit that moves these frames behind the frame at `behind`."""

    def edit(steps: Script) -> Script:
        moved = [step for step in steps if step.index in indexes]
        rest = [step for step in steps if step.index not in indexes]
        place = 1 + max(place for place, step in enumerate(rest) if step.index == behind)
        return [*rest[:place], *moved, *rest[place:]]

    return edit


def remove_frames(*indexes: int) -> Edit:
    """Return an edit that removes the frames at these indexes."""
    return lambda steps: [step for step in steps if step.index not in indexes]


def replace_fields(index: int, **fields: Any) -> Edit:
    """Return an edit that changes fields of the frame at an index."""
    return edit_each(lambda step: step.change(**fields) if step.index == index else step)


def check_statistics(ours: Mapping[str, str | None]) -> Edit:
    """Return an edit: the server may send more statistics, in any order, and sends other values of some kinds.

    Args:
        ours: by kind, the value that our node sends; None for no value, "" for any value.
    """

    def edit(steps: Script) -> Script:
        recorded = {step.frame.key.decode(): step.frame.value.decode() for step in steps if step.kind == EXPECT}
        del recorded[""]

        def check(player: Player) -> None:
            found = player.read_statistics()
            for name, value in recorded.items():
                kind = name.rpartition(":")[2]
                expected = ours.get(kind, ours.get(kind.removeprefix("stream_4_"), value))
                if found.get(name) != expected and not (expected == "" and name in found):
                    raise Mismatch(f"{name} {expected!r}, found {found.get(name)!r}")

        first = next(place for place, step in enumerate(steps) if step.kind == EXPECT)
        return [*steps[:first], Step(DO, action=check), *(step for step in steps[first:] if step.kind != EXPECT)]

    return edit


def chain_edits(*edits: Edit) -> Edit:
    """Return an edit that applies several edits in order."""

    def edit(steps: Script) -> Script:
        for edit_step in edits:
            steps = edit_step(steps)
        return steps

    return edit


def refuse_all(status: Status) -> Edit:
    """Return an edit: the server refuses all requests with this status."""

    def edit(steps: Script) -> Script:
        kept: Script = []
        for step in steps:
            if step.kind == SEND:
                kept += [step, _make_refusal(step, status)]
            elif step.kind == CLOSES:
                kept.append(step)
        return kept

    return edit


def add_reply(index: int, status: Status) -> Edit:
    """Return an edit: the server replies to the client's frame at an index, which it did not answer."""

    def edit(steps: Script) -> Script:
        place = next(place for place, step in enumerate(steps) if step.index == index) + 1
        return [*steps[:place], _make_refusal(steps[place - 1], status), *steps[place:]]

    return edit


def close_after(index: int) -> Edit:
    """Return an edit: the server closes the connection after the client's frame at an index, and no step follows."""

    def edit(steps: Script) -> Script:
        place = next(place for place, step in enumerate(steps) if step.index == index) + 1
        return [*steps[:place], Step(CLOSED, steps[place - 1].connection, index=index, text="the end")]

    return edit


def close_connection(connection: str) -> Edit:
    """Return an edit: the server closes a connection that the client closed in the recording."""

    def edit(steps: Script) -> Script:
        return [
            replace(step, kind=CLOSED) if step.kind == CLOSES and step.connection == connection else step
            for step in steps
        ]

    return edit


def keep_connection(steps: Script) -> Script:
    """Make the server keep the connections that it closed in the recording."""
    return [replace(step, kind=CLOSES) if step.kind == CLOSED else step for step in steps]


def send_early(index: int) -> Edit:
    """Return an edit: the client sends the request at an index before it has read the previous frame."""

    def edit(steps: Script) -> Script:
        place = next(place for place, step in enumerate(steps) if step.index == index)
        return [*steps[: place - 1], steps[place], steps[place - 1], *steps[place + 1 :]]

    return edit
