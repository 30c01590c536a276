"""Functions of recovery and compaction on columns of rows, compared with loops over lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.store.log import records as record
from penstock.store.log import rewrite, row_lookup
from penstock.store.log.rewrite import PurgedTombstone, RewriteLimits
from penstock.store.log.segment import CUT, Rows, Segment
from penstock.store.recovery import log_replay
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from tests.store.model import Tombstone, decode_changes, make_tombstone

VBUCKETS = 4
LIMIT = 2**47  # a seqno from here on does not fit into one number with a vbucket


@dataclass(frozen=True)
class LoggedRow:
    """A change in the log.

    Attributes:
        change: the message.
        supersedes: seqno of the change that it superseded, 0 for none.
        is_cut: whether a rollback has cut it off.
    """

    change: Mutation | Tombstone
    supersedes: int = 0
    is_cut: bool = False

    @property
    def place(self) -> tuple[int, int]:
        return self.change.vbucket, self.change.by_seqno


step = st.tuples(
    st.integers(0, VBUCKETS - 1),
    st.sampled_from([b"a", b"bb", b"ccc"]),
    st.sampled_from([1, 1, 1, 2, 9]),  # distance from the seqno before
    st.sampled_from([0, 0, 0, 50, 150]),  # time of the deletion, 0 for a document
    st.integers(0, 3),  # 0: the log no longer holds the change
    st.integers(0, 5),  # 0: the change starts a segment
)
steps = st.sampled_from([0, 20]).flatmap(lambda least: st.lists(step, min_size=least, max_size=60))


@st.composite
def logs(draw: st.DrawFn) -> list[list[LoggedRow]]:
    """Draw the rows of some segments in commit order; some rows are dropped, and some vbuckets have cut-off ends."""
    seqnos = draw(st.lists(st.sampled_from([0, 7, 10**12]), min_size=VBUCKETS, max_size=VBUCKETS))
    cut_above = draw(st.lists(st.sampled_from([10**18, 20, 9]), min_size=VBUCKETS, max_size=VBUCKETS))
    newest: dict[tuple[int, bytes], int] = {}
    segments: list[list[LoggedRow]] = [[]]
    for vbucket, key, gap, delete_time, is_there, new in draw(steps):
        seqno = seqnos[vbucket] = seqnos[vbucket] + gap
        same = {"vbucket": vbucket, "key": key, "cas": seqno, "by_seqno": seqno, "rev_seqno": seqno + 1}
        change: Mutation | Tombstone = Mutation(value=b"." * (seqno % 7), **same)
        if delete_time:
            change = make_tombstone(Event.EXPIRATION if seqno % 2 else Event.DELETION, delete_time=delete_time, **same)
        if not new:
            segments.append([])
        is_cut = seqno > cut_above[vbucket]
        if is_there:
            segments[-1].append(LoggedRow(change, newest.get((vbucket, key), 0), is_cut))
        if not is_cut:
            newest[vbucket, key] = seqno
    return segments


def make_segment(rows: Sequence[LoggedRow], *, clustered: bool = True) -> Segment:
    """Return a segment with these rows; if it is not clustered, its frames are in records of a log file."""
    ordered = sorted(rows, key=lambda row: row.place)
    buffer = bytearray()
    offsets = {}
    for row in ordered if clustered else rows:
        frame = row.change.encode()
        if not clustered:
            header = record.pack_record(frame, row.supersedes, 0, 0)[: record.RECORD_BYTES]
            buffer += header
        offsets[row.place] = len(buffer)
        buffer += frame
    numbers = np.array([row.place[0] for row in ordered], np.uint16)
    segment = Segment(
        memoryview(buffer),
        np.searchsorted(numbers, np.arange(VBUCKETS + 1)).astype(np.int32),
        Rows(
            np.array([row.place[1] for row in ordered], np.int64),
            np.array([offsets[row.place] for row in ordered], np.uint32),
            np.array([len(row.change.encode()) for row in ordered], np.uint32),
            np.zeros(len(ordered), np.int64),
            np.array([row.supersedes for row in ordered], np.int64) if clustered else None,
        ),
        clustered=clustered,
    )
    for vbucket in range(VBUCKETS):
        kept = [row.place[1] for row in ordered if row.place[0] == vbucket and not row.is_cut]
        segment.cut(vbucket, max(kept, default=0))
    return segment


def find_fates(segments: Sequence[Sequence[LoggedRow]]) -> dict[tuple[int, int], int]:
    """Return the fate of each row: the seqno that superseded it, 0 if none did, CUT if it was cut off."""
    rows = [row for segment in segments for row in segment]
    fates = {row.place: CUT if row.is_cut else 0 for row in rows}
    for row in rows:
        target = row.place[0], row.supersedes
        if not row.is_cut and target in fates:
            fates[target] = row.place[1]
    return fates


@given(logs(), st.booleans())
def test_recovery_finds_the_superseding_changes(log: list[list[LoggedRow]], clustered: bool) -> None:
    segments = [make_segment(rows, clustered=clustered) for rows in log]
    log_replay.mark_superseded(segments)
    fates = find_fates(log)
    for segment, rows in zip(segments, log, strict=True):
        ordered = sorted(rows, key=lambda row: row.place)
        assert segment.fates.tolist() == [fates[row.place] for row in ordered]
        assert segment.dead_bytes == sum(len(row.change.encode()) for row in rows if fates[row.place])


rows_of_any_seqnos = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 7, 2**16 - 1]),
        st.one_of(
            st.integers(1, 9),
            st.integers(LIMIT - 5, LIMIT - 1),
            st.integers(LIMIT, LIMIT + 9),
            st.integers(2**63 - 9, 2**63 - 1),
        ),
    ),
    min_size=1,
    max_size=40,
    unique=True,
).map(sorted)


@given(rows_of_any_seqnos, st.booleans())
def test_row_of_a_change_is_found(there: list[tuple[int, int]], small: bool) -> None:
    if small:
        there = [(vbucket, seqno) for vbucket, seqno in there if seqno < LIMIT] or [(3, 3)]
    wanted = list(product(*map(set, zip(*there, strict=True))))  # with the seqnos of other vbuckets, which are missing
    numbers, seqnos = (
        np.array(column, kind) for column, kind in zip(zip(*there, strict=True), ("u2", "i8"), strict=True)
    )
    of, sought = (np.array(column, kind) for column, kind in zip(zip(*wanted, strict=True), ("u2", "i8"), strict=True))
    expected = [there.index(place) if place in there else -1 for place in wanted]
    for find in (row_lookup.find_rows, row_lookup.find_rows_slowly):
        assert find(numbers, seqnos, of, sought).tolist() == expected


def find_expendable(
    rows: Sequence[LoggedRow], fates: dict[tuple[int, int], int], limits: RewriteLimits, held: set[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Return the rows that a rewrite should drop, besides the cut-off ones: as many as possible.

    Args:
        rows: rows of the rewritten segments.
        fates: fate of each row.
        limits: limits of the rewrite.
        held: changes that superseded rows of other segments, and so must stay.
    """
    going = set()
    for row in rows:
        vbucket, seqno = row.place
        fate = fates[row.place]
        if fate > 0:
            expendable = fate <= limits.floors[vbucket]
        else:
            is_old = not isinstance(row.change, Mutation) and row.change.delete_time < limits.purge_before
            is_recent = seqno > limits.floors[vbucket] or seqno == limits.last_seqnos[vbucket]
            expendable = not fate and is_old and not is_recent
        if expendable:
            going.add(row.place)
    while True:
        kept = {row.place for row in rows} - going
        blocked = held | {(place[0], fates[place]) for place in kept if fates[place] > 0}
        if not going & blocked:
            return going
        going -= blocked


@st.composite
def logs_and_limits(draw: st.DrawFn) -> tuple[list[list[LoggedRow]], RewriteLimits]:
    log = draw(logs())
    places = [row.place for segment in log for row in segment if not row.is_cut]
    last = [max((seqno for vbucket, seqno in places if vbucket == one), default=0) for one in range(VBUCKETS)]
    floors = [draw(st.sampled_from([seqno for vbucket, seqno in places if vbucket == one] or [0])) for one in range(4)]
    return log, RewriteLimits(
        np.array(floors, np.int64), np.array(last, np.int64), draw(st.sampled_from([0, 51, 150, 200]))
    )


def make_log_with_a_recent_deletion() -> tuple[list[list[LoggedRow]], RewriteLimits]:
    """Return a log whose tombstone is old enough for the purge, but above the floor of its vbucket."""
    changes: list[Mutation | Tombstone] = [
        Mutation(vbucket=1, key=b"a", value=b".", cas=1, by_seqno=1, rev_seqno=1),
        make_tombstone(Event.DELETION, vbucket=1, key=b"bb", delete_time=50, cas=2, by_seqno=2, rev_seqno=1),
        Mutation(vbucket=1, key=b"a", value=b"...", cas=3, by_seqno=3, rev_seqno=2),
    ]
    log = [[LoggedRow(change, supersedes)] for change, supersedes in zip(changes, [0, 0, 1], strict=True)]
    return log, RewriteLimits(np.array([0, 1, 0, 0]), np.array([0, 3, 0, 0]), purge_before=51)


@given(logs_and_limits(), st.integers(0, 3), st.booleans())
@example(make_log_with_a_recent_deletion(), 0, False)
def test_rewrite_keeps_the_needed_rows(
    log_and_limits: tuple[list[list[LoggedRow]], RewriteLimits], older: int, clustered: bool
) -> None:
    """The first `older` segments are not rewritten, so the changes that superseded their rows must stay."""
    log, limits = log_and_limits
    segments = [make_segment(rows, clustered=clustered) for rows in log]
    log_replay.mark_superseded(segments)
    older = min(older, len(log) - 1)
    fates = find_fates(log)
    held = {(row.place[0], fates[row.place]) for rows in log[:older] for row in rows if fates[row.place] > 0}
    rows = [row for segment in log[older:] for row in segment]
    going = find_expendable(rows, fates, limits, held)
    kept = sorted((row for row in rows if row.place not in going and not row.is_cut), key=lambda row: row.place)

    sources = segments[older:]
    rewritten = rewrite.rewrite_segments(
        sources, [source.fates for source in sources], limits, rewrite.find_superseding_changes(segments[:older])
    )
    segment = rewritten.segment
    assert decode_changes(bytes(segment.buffer)) == [row.change for row in kept]
    assert [(vbucket, seqno) for vbucket, seqno in zip(segment.vbuckets, segment.seqnos, strict=True)] == [
        row.place for row in kept
    ]
    assert segment.supersedes is not None
    assert segment.supersedes.tolist() == [row.supersedes for row in kept]
    assert [bytes(segment.buffer[at : at + n]) for at, n in zip(segment.offsets, segment.lengths, strict=True)] == [
        row.change.encode() for row in kept
    ]
    dropped = [row for row in rows if row.place in going]
    purged = [row for row in dropped if not fates[row.place]]
    assert sorted(rewritten.purged) == sorted(
        PurgedTombstone(row.place[0], row.change.key, row.place[1], row.change.rev_seqno) for row in purged
    )
    for vbucket in range(VBUCKETS):
        assert rewritten.choice.passed[vbucket] == max(
            (fates[row.place] for row in dropped if row.place[0] == vbucket), default=0
        )
    if limits.purge_before:
        left = [row.change for row in kept if not fates[row.place] and not isinstance(row.change, Mutation)]
        assert segment.tombstone_bytes == sum(len(change.encode()) for change in left)
        assert segment.purge_at == max((change.delete_time for change in left), default=0)


@given(logs_and_limits(), st.integers(0, 3))
def test_rewrite_changes_nothing_for_readers_of_the_log(
    log_and_limits: tuple[list[list[LoggedRow]], RewriteLimits], older: int
) -> None:
    """The same rows are live after a rewrite, except purged tombstones, in any order of rewrites."""
    log, limits = log_and_limits
    segments = [make_segment(rows) for rows in log]
    log_replay.mark_superseded(segments)
    older = min(older, len(log) - 1)
    live = {
        (vbucket, seqno)
        for segment in segments
        for vbucket, seqno, fate in zip(segment.vbuckets, segment.seqnos, segment.fates, strict=True)
        if not fate
    }
    sources = segments[older:]
    rewritten = rewrite.rewrite_segments(
        sources, [source.fates for source in sources], limits, rewrite.find_superseding_changes(segments[:older])
    )
    again = [make_segment(rows) for rows in log[:older]] + [rewritten.segment]
    log_replay.mark_superseded(again)
    left = {
        (vbucket, seqno)
        for segment in again
        for vbucket, seqno, fate in zip(segment.vbuckets, segment.seqnos, segment.fates, strict=True)
        if not fate
    }
    assert left == live - {(purged.vbucket, purged.seqno) for purged in rewritten.purged}


def test_versions_behind_a_kept_version_stay() -> None:
    """Each version supersedes the one before, so if a version stays, all later ones must stay."""
    count = 100_000
    seqnos = np.arange(1, count + 1)
    rows = rewrite.JoinedRows(
        np.zeros(count, np.uint16), seqnos, np.full(count, 60, np.uint32), np.append(seqnos[1:], 0).astype(np.int64)
    )
    limits = RewriteLimits(np.array([count]), np.array([count]))
    assert rewrite.choose_rows(rows, limits, held=np.zeros(0, np.int64)).rows.tolist() == [count - 1]
    held = rewrite.make_change_ids(np.zeros(1, np.uint16), np.array([2]))
    assert rewrite.choose_rows(rows, limits, held=held).rows.tolist() == list(range(1, count))


# Records


@st.composite
def log_files(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int, int, bytes]]]:
    """Draw a log file, and for each record its offset, the superseded seqno, the synced size, and the body."""
    header = record.pack_file_header(b"u" * 16, 3)
    data, synced = bytearray(header), 0
    records = []
    for size, is_frame, commit in draw(
        st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.booleans()), min_size=3, max_size=12)
    ):
        body = (b"\x80" if is_frame else b"{") + b"x" * (size - 1)
        records.append((len(data), size, synced, body))
        data += record.pack_record(body, size, synced, record.read_seed(header) ^ len(data))
        synced = len(data) if commit else synced
    return bytes(data), records


@given(log_files(), st.data())
def test_records_are_read_up_to_the_first_bad_one(
    log_file: tuple[bytes, list[tuple[int, int, int, bytes]]], draw: st.DataObject
) -> None:
    whole, records = log_file
    seed = record.read_seed(whole[: record.FILE_HEADER.size])
    cut = draw.draw(st.just(len(whole)) | st.integers(record.FILE_HEADER.size, len(whole)), "offset of the cut")
    damaged = draw.draw(st.none() | st.integers(record.FILE_HEADER.size, len(whole)), "offset of the changed byte")
    data = bytearray(whole[:cut])
    if damaged is not None and damaged < cut:
        data[damaged] ^= 0x40
    ends = [start + record.RECORD_BYTES + len(body) for start, _, _, body in records]
    good = [
        end <= cut and not (damaged is not None and start <= damaged < end)
        for (start, _, _, _), end in zip(records, ends, strict=True)
    ]
    count = good.index(False) if False in good else len(good)
    bad = records[count][0] if count < len(records) else len(whole)
    later = [
        start for (start, _, synced, _), is_good in zip(records, good, strict=True) if is_good and start > bad < synced
    ]
    scanned = record.scan_records(memoryview(bytes(data)), seed)
    assert scanned.end == bad
    assert scanned.later_offset == (later[0] if later else None)
    frames = [(start, size, body) for start, size, _, body in records[:count] if body[0] == 0x80]
    assert scanned.offsets.tolist() == [start + record.RECORD_BYTES for start, _, _ in frames]
    assert scanned.lengths.tolist() == [len(body) for _, _, body in frames]
    assert scanned.supersedes.tolist() == [size for _, size, _ in frames]
    assert scanned.notes == [(start, body) for start, _, _, body in records[:count] if body[0] != 0x80]
