"""Positions inside a delivery: those of a caller that has processed only some of its changes.

A feed reports the positions after a whole delivery. The same rules, applied to the changes one by one, give the
positions between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.client.feeds.stream_position import BEGINNING, UNKNOWN_END, Position, adopt_log, advance_position
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.columns.schema import Change, Event, unsigned64


def find_positions_within(
    before: Mapping[int, Position],
    changes: Sequence[Change],
    taken: int,
    logs: Mapping[int, FailoverLog],
    new_logs: Mapping[int, FailoverLog],
) -> dict[int, Position]:
    """Return the positions after some changes of a delivery: vbucket -> position, of the vbuckets that have moved.

    Args:
        before: vbucket -> position before the delivery.
        changes: the changes of the delivery.
        taken: the number of processed changes, from the first.
        logs: vbucket -> failover log before the delivery, newest entry first.
        new_logs: vbucket -> failover log of the streams that began with this delivery.
    """
    rolled_back_later = {each.vbucket for each in changes[taken:] if each.event == Event.ROLLBACK}
    found: dict[int, Position] = {}
    for change in changes[:taken]:
        vbucket = change.vbucket
        position = found.get(vbucket, before.get(vbucket, BEGINNING))
        # Before a rollback row, changes are in the old history, whose branches the new log may not have.
        older = logs.get(vbucket)
        log = older if vbucket in rolled_back_later and older else new_logs.get(vbucket) or older
        if log is None:
            continue
        found[vbucket] = _move_position(position, change, log)
    return found


def _move_position(position: Position, change: Change, log: FailoverLog) -> Position:
    seqno = unsigned64(change.seqno or 0)
    if change.event == Event.ROLLBACK:
        ends = tuple(end for end in position.ends if end.seqno <= seqno)
        back = Position(seqno=seqno, snap_start=seqno, snap_end=seqno, history=change.history or 0, ends=ends)
        return adopt_log(back, log) if seqno else replace(back, ends=())
    marked = UNKNOWN_END if change.snapshot_end is None else unsigned64(change.snapshot_end)
    if marked < seqno:
        return position  # in a snapshot out of order, which only its end completes
    return advance_position(position, seqno, max(marked, position.snap_end), log)
