"""The order that a producer must keep in the streams of one connection, and the errors for violations.

After a violation the streams need a new connection, and each resumes from its position. Changes before the violation
are valid. Three violations in a row without a change in between are an error (penstock.client.connect.retry). A frame
that cannot be decoded does not violate the order: it is an error at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.client.connect.dropped_frames import DropCounter, DropReason
from penstock.errors import OrderViolation
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.heads import Heads
from penstock.wire.messages.dcp import SnapshotMarker, SnapshotMarkerV2

NONE_WANTED = (1, 0)
"""The first and the last seqno to deliver, if no change is delivered."""


class RunPart(NamedTuple):
    """Consecutive changes of one stream within a run, with ascending seqnos.

    Attributes:
        vbucket: the vbucket in the changes.
        opaque: the opaque in the changes.
        start_row: row of the first change.
        end_row: row after the last change.
        first_seqno: by_seqno of the first change.
        last_seqno: by_seqno of the last change.
    """

    vbucket: int
    opaque: int
    start_row: int
    end_row: int
    first_seqno: int
    last_seqno: int


def _split_run(heads: Heads) -> Iterator[RunPart]:
    """Split a run before the changes of another stream, and before a seqno that is not above the previous seqno.

    Yields:
        The parts in their order.
    """
    vbucket, opaque, seqno = heads.vbucket, heads.opaque, heads.by_seqno
    assert seqno is not None
    cuts = (vbucket[1:] != vbucket[:-1]) | (opaque[1:] != opaque[:-1]) | (seqno[1:] <= seqno[:-1])
    first = 0
    for behind in (*(np.flatnonzero(cuts) + 1).tolist(), len(seqno)):
        numbers = int(vbucket[first]), int(opaque[first])
        yield RunPart(*numbers, first, behind, int(seqno[first]), int(seqno[behind - 1]))
        first = behind


def check_run_order(
    heads: Heads, accept_part: Callable[[RunPart], tuple[int, int]], dropped: DropCounter
) -> tuple[npt.NDArray[np.bool_] | None, OrderViolation | None]:
    """Check the order of a run, stream by stream.

    Args:
        heads: the numbers of the run's frames.
        accept_part: receives consecutive changes of one stream. It returns the first and the last seqno to deliver, or
            NONE_WANTED if it has counted the changes as dropped. It may raise OrderViolation.
        dropped: counts the other changes that are not delivered.

    Returns:
        Whether to deliver each row (None: deliver all), and the first violation, or None. No row of the part with the
        violation, and no later row, is delivered.
    """
    keep: npt.NDArray[np.bool_] | None = None
    for part in _split_run(heads):
        violation = None
        try:
            wanted = accept_part(part)
        except OrderViolation as error:
            violation, wanted = error, NONE_WANTED
        if wanted == (part.first_seqno, part.last_seqno):
            continue
        keep = np.ones(len(heads.ends), bool) if keep is None else keep
        if violation is not None:
            keep[part.start_row :] = False
            dropped.add(DropReason.AFTER_VIOLATION, len(keep) - part.start_row)
            return keep, violation
        assert heads.by_seqno is not None
        seqno = heads.by_seqno[part.start_row : part.end_row]
        early, late = seqno < wanted[0], seqno > wanted[1]
        keep[part.start_row : part.end_row] = ~(early | late)
        if wanted != NONE_WANTED:
            dropped.add(DropReason.RECEIVED_BEFORE, int(early.sum()))
            dropped.add(DropReason.AFTER_END, int((late & ~early).sum()))
    return keep, None


class StreamOpaques:
    """The opaques that a producer may use for messages of streams on one connection.

    Messages of a stream that was closed, ended or given up may still arrive. They are valid, and are dropped.

    Attributes:
        earlier: opaques below it may belong to streams of an earlier user of the connection.
    """

    def __init__(self, dropped: DropCounter) -> None:
        self.earlier = 0
        self._streams: set[int] = set()
        self._dropped = dropped

    def add(self, opaque: int) -> None:
        """Add the opaque of a stream."""
        self._streams.add(opaque)

    def check(self, opaque: int, vbucket: int, name: str, frames: int = 1) -> None:
        """Count messages of a stream that is not open as dropped.

        Args:
            opaque: the opaque in the messages.
            vbucket: the vbucket in the messages, for the error.
            name: the kind of message, for the error.
            frames: the number of messages.

        Raises:
            OrderViolation: no stream of the connection has had this opaque.
        """
        if opaque in self._streams:
            self._dropped.add(DropReason.CLOSED_STREAM, frames)
        elif opaque < self.earlier:
            self._dropped.add(DropReason.EARLIER_STREAM, frames)
        else:
            raise OrderViolation(
                f"vbucket {vbucket}: {name} under opaque {opaque}, which no stream of this connection has had",
                vbucket=vbucket,
            )


def is_flush(marker: SnapshotMarker | SnapshotMarkerV2, last: int, least_start: int) -> bool:
    """Return whether a snapshot shows that the seqnos of its stream start at 1 again.

    A snapshot from disk that continues after `last` does not show this. Couchbase 4.5.1 to 4.6 reads from disk again
    for a slow consumer. The start of each such snapshot is then the start of the stream.
    Source: ep-engine 4.6.5, dcp/stream.cc (markDiskSnapshot, handleSlowStream).

    Args:
        marker: the marker of the snapshot.
        last: the seqno of the last change.
        least_start: the lowest expected start of the snapshot.
    """
    if not marker.start_seqno <= 1 <= last:
        return False
    return marker.end_seqno < last or (marker.start_seqno < least_start and not marker.flags & SnapshotFlag.DISK)


def make_seqno_order_error(vbucket: int, seqno: int, last: int) -> OrderViolation:
    """Return the error for a change that arrives after a later change, or a second time."""
    return OrderViolation(f"vbucket {vbucket}: by_seqno {seqno} after {last}", vbucket=vbucket, status=Status.ERANGE)


def make_beyond_snapshot_error(vbucket: int, seqno: int, snap_end: int) -> OrderViolation:
    """Return the error for a change above the end of its snapshot."""
    return OrderViolation(f"vbucket {vbucket}: by_seqno {seqno} behind its snapshot's end {snap_end}", vbucket=vbucket)


def make_snapshot_error(
    vbucket: int, start_seqno: int, end_seqno: int, last: int, *, is_flushed: bool = False
) -> OrderViolation:
    """Return the error for a snapshot that ends below its start or its stream's position, or that shows a flush."""
    about = f"vbucket {vbucket}: snapshot {start_seqno}..{end_seqno} after seqno {last}"
    return OrderViolation(about, vbucket=vbucket, status=Status.ERANGE, seqnos_restarted=is_flushed)


def make_foreign_vbucket_error(vbucket: int, expected: int, name: str) -> OrderViolation:
    """Return the error for a message with the opaque of another vbucket's stream."""
    return OrderViolation(f"{name} of vbucket {vbucket} under the opaque of {expected}", vbucket=expected)
