"""Deliberate differences of our node from the recorded 7.2.8, as edits of scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from struct import Struct

from penstock.node.cluster.release import VERSION
from penstock.node.session.hello_features import negotiate_features
from penstock.wire.codec.flags import Datatype, SnapshotFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import pack_features
from penstock.wire.messages.system_event import CreatedScope, DroppedScope, pack_system_event, unpack_system_event
from tests.node.modern_replay import NAMES, PREPARE, inflate_value, read_snapshot
from tests.node.modern_state import ON_DISK, is_same_stream, make_modern_script
from tests.node.replay import DELETION, DO, ENTRY, EXPECT, MARKER, MUTATION, SEND, Script, Step
from tests.node.replay_edits import Edit, chain_edits, edit_each, remove_frames, replace_fields
from tests.node.replay_state import CHANGES, get_seqno, list_streams
from tests.node.replay_tables import Difference

MEMORY = SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT
DOCUMENTS = tuple(name for name in NAMES if name.startswith("dcp_docs_"))


def is_marker(step: Step) -> bool:
    return step.kind == EXPECT and step.frame[:2] == (Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER)


def merge_backfills(steps: Script) -> Script:
    """Make snapshots that follow each other at once one snapshot in memory, with each document once."""
    found: Script = []
    marker: int | None = None  # place of the open snapshot's marker
    for step in steps:
        if marker is not None and (step.kind in (SEND, DO) or step.at - found[marker].at > _AT_ONCE):
            marker = None
        if not is_marker(step):
            found.append(step)
        elif marker is not None and is_same_stream(found[marker], step):
            found[marker] = set_marker(found[marker], end=read_snapshot(step.frame)[1])
            found = [old for old in found if not (is_same_stream(step, old) and is_advance(old))]
            found = drop_superseded(found, marker, steps, step)
        else:
            marker = len(found)
            found.append(set_marker(step))
    return found


_AT_ONCE = 0.3


def set_marker(step: Step, end: int | None = None) -> Step:
    """Return a marker of a snapshot in memory, with another end."""
    frame = step.frame
    if len(frame.extras) == MARKER.size:
        start, last, _ = MARKER.unpack(frame.extras)
        return step.change(extras=MARKER.pack(start, end or last, MEMORY))
    start, last, _ = MARKER.unpack_from(frame.value)
    rest = frame.value[MARKER.size :]
    if end is not None and int.from_bytes(rest[:8], "big") == last:
        rest = end.to_bytes(8, "big") + rest[8:]
    return step.change(value=MARKER.pack(start, end or last, MEMORY) + rest)


def drop_superseded(found: Script, marker: int, steps: Script, later: Step) -> Script:
    """Return the script without versions of documents that the joined snapshot has again."""
    end = read_snapshot(later.frame)[1]
    keys = {
        identify_document(step.frame): get_seqno(step.frame)
        for step in steps
        if is_same_stream(later, step) and is_change(step.frame) and get_seqno(step.frame) <= end
    }
    return [
        step
        for place, step in enumerate(found)
        if place <= marker
        or not is_same_stream(later, step)
        or not is_change(step.frame)
        or keys[identify_document(step.frame)] == get_seqno(step.frame)
    ]


def is_change(frame: Frame) -> bool:
    return frame.opcode in (*CHANGES, Opcode.DCP_SYSTEM_EVENT)


def is_advance(step: Step) -> bool:
    return step.kind == EXPECT and step.frame[:2] == (Magic.REQUEST, Opcode.DCP_SEQNO_ADVANCED)


def identify_document(frame: Frame) -> tuple[int, bytes]:
    """Return the identity that all versions share: the key of a document, the id of a collection or a scope."""
    if frame.opcode != Opcode.DCP_SYSTEM_EVENT:
        return -1, frame.key
    subject = unpack_system_event(frame.extras[11], frame.extras[12], frame.key, frame.value)
    number = getattr(subject, "collection_id", subject.scope_id)
    return int(isinstance(subject, CreatedScope | DroppedScope)), number.to_bytes(4, "big")


def inflate_frame(step: Step) -> Step:
    frame = step.frame
    if (
        frame.opcode not in (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_PREPARE)
        or not frame.datatype & Datatype.SNAPPY
    ):
        return step
    value = inflate_value(frame)
    if "force_comp" in step.connection and len(frame.value) < len(value):  # the consumer has asked for it
        return step
    return step.change(value=value, datatype=frame.datatype & ~Datatype.SNAPPY)


def set_hotness(step: Step) -> Step:
    """Reset the frequency of use to the recency of a fresh document."""
    frame = step.frame
    if step.kind == EXPECT and frame[:2] == (Magic.REQUEST, Opcode.DCP_MUTATION):
        return step.change(extras=frame.extras[:-1] + b"\2")
    return step


def accept_setting(steps: Script) -> Script:
    return [set_first_status(step, Status.SUCCESS, steps) for step in steps]


def refuse_setting(steps: Script) -> Script:
    return [set_first_status(step, Status.EINVAL, steps) for step in steps]


def set_first_status(step: Step, status: Status, steps: Script) -> Step:
    """Return a step with another status if it is the reply to the first request."""
    return step.change(specific=status, value=b"", datatype=0) if step is steps[1] else step


def cut_at(index: int, steps: Script) -> Script:
    """Return the steps before an index. The later steps depend on a difference there."""
    return [step for step in steps if step.index < index]


def answer_at(index: int, opcode: Opcode) -> Edit:
    """Return an edit: the server answers with EINVAL where it closed the connection."""
    reply = Frame(Magic.RESPONSE, opcode, Status.EINVAL)
    return lambda steps: [replace(step, kind=EXPECT, frame=reply) if step.index == index else step for step in steps]


def reset_nru(steps: Script) -> Script:
    """Give documents that were written here the NRU value 0."""
    all_live = any("sync" in step.text for step in steps)
    return [reset_live_nru(step, all_live=all_live) for step in steps]


def reset_live_nru(step: Step, *, all_live: bool) -> Step:
    frame = step.frame
    if not is_live(step, all_live=all_live):
        return step
    if frame.opcode == Opcode.DCP_MUTATION:
        return step.change(extras=frame.extras[:-1] + b"\0")
    if frame.opcode == Opcode.DCP_PREPARE:
        return step.change(extras=frame.extras[:-3] + b"\0" + frame.extras[-2:])
    return step


def count_commit(step: Step) -> Step:
    """Name the commit in the token of a durable write, which follows its prepare."""
    frame = step.frame
    if frame.magic != Magic.RESPONSE or len(frame.extras) != TOKEN.size:
        return step
    vbuuid, seqno = TOKEN.unpack(frame.extras)
    return step.change(
        extras=TOKEN.pack(vbuuid, seqno + (seqno in _PREPARES or (seqno == 6 and "single" in step.text)))
    )


_PREPARES = (2, 4, 8, 10)
"""Prepares in both recordings. Seqno 6 is one in dcp_sync_writes_single only."""
TOKEN = Struct(">QQ")
_EVENT_PLACES = {1: 2, 2: 1, 3: 5, 4: 3}
"""By recorded seqno of a new scope or collection: ours. Those of one manifest have no order in the recorded server."""


def move_event(step: Step, seqno: int) -> Step:
    """Return a system event with another seqno. Only the last event of a manifest has its uid."""
    _, event, version = EVENT.unpack(step.frame.extras)
    subject = unpack_system_event(event, version, step.frame.key, step.frame.value)
    packed = pack_system_event(
        event, subject._replace(manifest_uid=int(seqno == max(_EVENT_PLACES.values()))), as_table=version == _TABLE
    )
    return step.change(extras=EVENT.pack(seqno, event, version), value=packed.value)


EVENT = Struct(">QIB")
_TABLE = 2


def reset_revisions(steps: Script) -> Script:
    """Make the revisions of documents that are new here start at 1."""
    all_live = any("sync" in step.text for step in steps)
    return [reset_revision(step, all_live=all_live) for step in steps]


def reset_revision(step: Step, *, all_live: bool) -> Step:
    frame = step.frame
    is_new = is_live(step, all_live=all_live) and frame.opcode in (Opcode.DCP_MUTATION, Opcode.DCP_PREPARE)
    if not is_new or frame.key in _CHANGED_KEYS:
        return step
    return step.change(extras=frame.extras[:8] + (1).to_bytes(8, "big") + frame.extras[16:])


_CHANGED_KEYS = (b"\0a", b"\0b", b"\0d1")
"""Documents with several versions, none of them deleted before."""


def is_live(step: Step, *, all_live: bool) -> bool:
    if step.kind != EXPECT or step.frame.magic != Magic.REQUEST:
        return False
    return all_live or b"live-" in step.frame.key or b"lv-" in step.frame.key


def show_commits_alone(steps: Script) -> Script:
    """Make each commit a mutation or a deletion, and leave its prepare out."""
    prepares = {get_seqno(step.frame): step.frame for step in steps if step.frame.opcode == Opcode.DCP_PREPARE}
    return [make_committed(step, prepares) for step in steps if step.frame.opcode != Opcode.DCP_PREPARE]


def make_committed(step: Step, prepares: Mapping[int, Frame]) -> Step:
    """Return the mutation or deletion of a commit, from its prepare."""
    if step.frame.opcode != Opcode.DCP_COMMIT:
        return step
    prepared, seqno = TOKEN.unpack(step.frame.extras)
    frame = prepares[prepared]
    _, *fields, nru, deleted, _ = PREPARE.unpack(frame.extras)
    extras = DELETION.pack(seqno, fields[0], 0) if deleted else MUTATION.pack(seqno, *fields, 0, nru)
    opcode = Opcode.DCP_DELETION if deleted else Opcode.DCP_MUTATION
    return replace(step, frame=frame._replace(opcode=opcode, extras=extras, opaque=step.frame.opaque))


def order_events(steps: Script) -> Script:
    """Put the new scopes and collections of a manifest in the order of their ids."""
    found: Script = []
    for step in steps:
        seqno = get_seqno(step.frame)
        if step.kind == EXPECT and step.frame.opcode == Opcode.DCP_SYSTEM_EVENT and seqno in _EVENT_PLACES:
            step = move_event(step, _EVENT_PLACES[seqno])
            place = len(found)
            while found[place - 1].frame.opcode == Opcode.DCP_SYSTEM_EVENT and get_seqno(
                found[place - 1].frame
            ) > get_seqno(step.frame):
                place -= 1
            found.insert(place, step)
        else:
            found.append(step)
    return found


def accept_stream(steps: Script) -> Script:
    """Make the last stream request a success, for a vbucket without documents."""
    steps = replace_fields(5, specific=Status.SUCCESS, value=ENTRY.pack(1, 0), datatype=0)(steps)
    if "100" not in steps[0].text:
        return steps
    end = Frame(Magic.REQUEST, Opcode.DCP_CACHE_TRANSFER_END, opaque=0x2001)
    return [*steps[:6], Step(EXPECT, steps[0].connection, frame=end, text="ours"), *steps[6:]]


def end_at_exact_seqno(steps: Script) -> Script:
    """Make each stream end at its end seqno, where the recorded one completes its checkpoint."""
    for stream in list_streams(steps):
        found: Script = []
        for step in steps:
            same = (step.connection, step.frame.opaque) == (stream.connection, stream.opaque) and step.kind == EXPECT
            if same and is_marker(step):
                step = set_marker(step, end=min(stream.end, read_snapshot(step.frame)[1]))
            if not (same and step.frame.opcode in CHANGES and get_seqno(step.frame) > stream.end):
                found.append(step)
        steps = found
    return steps


def select(file: str, *connections: str) -> tuple[str, ...]:
    return tuple(f"{file}/{connection}" for connection in connections)


FREELY_CUT = ("dcp_sync_writes_replica", "dcp_sync_writes_single", "disk_sync")
"""Recordings in which timing decides where live changes are cut into snapshots."""

REPLIES_ONLY = ("dcp_failover_rollback_matrix2",)
"""Recordings in which timing decides how many messages of a stream precede its close."""

MODERN_DIFFERENCES: dict[str, Difference] = {
    "backfills": Difference(
        merge_backfills,
        where=tuple(
            name
            for name in NAMES
            if name not in (*ON_DISK, *FREELY_CUT, *REPLIES_ONLY, "dcp_flow_control")
            and merge_backfills(make_modern_script(name)) != make_modern_script(name)
        ),
    ),
    "compression on disk": Difference(
        edit_each(inflate_frame),
        where=(
            *("dcp_docs_nvdt", "dcp_docs_nvdt_xattrs", "dcp_docs_repl", "dcp_docs_xattrs_del_user"),
            "dcp_sync_writes_replica",
            *("disk_collections", "disk_restart", "disk_sigkill", "disk_sync"),
        ),
    ),
    "frequency of use": Difference(edit_each(set_hotness), where=("dcp_docs_repl",)),
    "settings of newer releases": Difference(
        accept_setting,
        where=select(
            "dcp_controls",
            "set_noop_interval=0.5",
            "change_streams=true",
            "max_marker_version=2.2",
            "cache_transfer=true",
        ),
    ),
    "settings of older releases": Difference(
        accept_setting, where=select("dcp_controls", "enable_ext_metadata=true", "enable_value_compression=true")
    ),
    "odd settings": Difference(
        lambda steps: [step for step in refuse_setting(steps) if step.frame.opcode != Opcode.DCP_NOOP],
        where=select("dcp_controls", "set_noop_interval=0", "connection_buffer_size=4294967296", "e=true"),
    ),
    "flags of newer releases": Difference(
        accept_stream, where=("dcp_flag_from_latest_uuid", "dcp_sreq_flag_40", "dcp_sreq_flag_100")
    ),
    "requests of newer releases": Difference(
        replace_fields(12, specific=Status.EINVAL), where=select("dcp_frames_bad", "op66")
    ),
    "window": Difference(
        chain_edits(replace_fields(8, extras=MARKER.pack(0, 8, MEMORY)), remove_frames(15)), where=("dcp_flow_control",)
    ),
    "changes of a collection": Difference(lambda steps: cut_at(44, steps), where=("coll_modify",)),
    "order of events": Difference(order_events, where=("disk_collections",)),
    "nru": Difference(
        reset_nru,
        where=(
            *("dcp_sync_writes_replica", "dcp_sync_writes_single"),
            *("disk_collections", "disk_restart", "disk_sync"),
        ),
    ),
    "documents out of order": Difference(
        lambda steps: [step for step in steps if step.connection not in ("oso_c1", "oso_adv_c1")],
        where=("disk_collections",),
    ),
    "decided prepares": Difference(show_commits_alone, where=("dcp_sync_writes_single", "disk_sync")),
    "deleted revisions": Difference(
        reset_revisions,
        where=("dcp_sync_writes_single", "disk_collections", "disk_restart", "disk_sync"),
    ),
    "tokens of durable writes": Difference(
        edit_each(count_commit), where=("dcp_sync_writes_replica", "dcp_sync_writes_single")
    ),
    "vbuckets without a chain": Difference(
        chain_edits(
            replace_fields(7, specific=Status.SUCCESS, extras=TOKEN.pack(1, 2), cas=1),
            answer_at(9, Opcode.SET_VBUCKET),
            answer_at(11, Opcode.SET_VBUCKET),
            lambda steps: cut_at(12, steps),
        ),
        where=("dcp_sync_impossible",),
    ),
    "two extended attributes": Difference(
        chain_edits(
            replace_fields(1, specific=Status.SUCCESS, extras=TOKEN.pack(0xCA2E1575C555, 1), cas=1),
            replace_fields(11, extras=TOKEN.pack(0xCA2E1575C555, 2)),
            replace_fields(15, extras=TOKEN.pack(0xCA2E1575C555, 3)),
            replace_fields(17, value=b'\0\0\0\0\0\x14"0x0000000000000003"'),
        ),
        where=("kv_subdoc_two_xattr_keys",),
    ),
    "commands before login": Difference(
        edit_each(lambda step: step.change(specific=Status.SUCCESS) if step.frame.opcode == Opcode.NOOP else step),
        where=("setup_bad_auth", "setup_no_auth"),
    ),
    "contradicting features": Difference(
        replace_fields(1, specific=Status.SUCCESS, value=pack_features(negotiate_features(range(0x25)))),
        where=("setup_hello",),
    ),
    "version": Difference(
        replace_fields(9, value=VERSION.encode()),
        where=("setup_hello",),
    ),
    "exact end": Difference(end_at_exact_seqno, where=("dcp_mem_end_inside", "dcp_sreq_without_noop")),
}
"""By name of a row of docs/differences.md."""

PENDING: dict[str, str] = {}
"""By recording: the reason why its replay fails. The replay must fail."""
