"""The order that a producer must keep in the streams of one connection, and the errors of one that does not.

Every violation costs the streams a new connection, each resumed from its position; what came before it holds. Three
in a row without a change in between are an error (penstock.client.connect.retry). A frame that cannot be decoded is
no matter of order: it is an error at once.
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

__all__ = [
    "NONE_WANTED",
    "RunPart",
    "StreamOpaques",
    "check_run_order",
    "is_flush",
    "make_beyond_snapshot_error",
    "make_foreign_vbucket_error",
    "make_seqno_order_error",
    "make_snapshot_error",
]


NONE_WANTED = (1, 0)
"""The first and the last seqno to hand out, where none is."""


class RunPart(NamedTuple):
    """Consecutive changes of one stream within a run, their seqnos ascending.

    Attributes:
        first: row of the first change.
        behind: row after the last change.
        least: by_seqno of the first change.
        most: by_seqno of the last change.
    """

    vbucket: int
    opaque: int
    start_row: int
    end_row: int
    first_seqno: int
    last_seqno: int


def _split_run(heads: Heads) -> Iterator[RunPart]:
    """Cut a run where another stream's changes follow, or a seqno that is not above the one before."""
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
        take: takes consecutive changes of one stream. Returns the first and the last seqno to hand out, NONE_WANTED if
            it has counted them as dropped. Raises OrderViolation.
        dropped: counts the other changes that are not to be handed out.

    Returns:
        Which rows to hand out (None: all), and the violation of the first row that breaks the order, if one does.
        No row behind it is handed out.
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
    """The opaques under which a producer may send messages of streams on one connection.

    A stream that was closed, ended or given up leaves messages under way: they are legal, and left out.

    Attributes:
        earlier: opaques below it may belong to streams of an earlier user of the connection.
    """

    def __init__(self, dropped: DropCounter) -> None:
        self.earlier = 0
        self._streams: set[int] = set()
        self._dropped = dropped

    def add(self, opaque: int) -> None:
        self._streams.add(opaque)

    def check(self, opaque: int, vbucket: int, name: str, frames: int = 1) -> None:
        """Count messages of a stream that is not open.

        Raises OrderViolation for messages under an opaque that no stream of the connection ever had.
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
    """Tell whether a snapshot shows that the seqnos of its stream begin at 1 again.

    A snapshot from disk that goes on behind `last` does not: Couchbase 4.5.1 to 4.6 reads from disk again for a slow
    consumer, and names the start of the stream as the start of each such snapshot.
    Source: ep-engine 4.6.5, dcp/stream.cc (markDiskSnapshot, handleSlowStream).

    Args:
        last: the seqno of the last change.
        least_start: where the snapshot should begin, or above.
    """
    if not marker.start_seqno <= 1 <= last:
        return False
    return marker.end_seqno < last or (marker.start_seqno < least_start and not marker.flags & SnapshotFlag.DISK)


def make_seqno_order_error(vbucket: int, seqno: int, last: int) -> OrderViolation:
    """Return the error of a change that comes behind a later one, or a second time."""
    return OrderViolation(f"vbucket {vbucket}: by_seqno {seqno} after {last}", vbucket=vbucket, status=Status.ERANGE)


def make_beyond_snapshot_error(vbucket: int, seqno: int, snap_end: int) -> OrderViolation:
    """Return the error of a change that its snapshot cannot hold."""
    return OrderViolation(f"vbucket {vbucket}: by_seqno {seqno} behind its snapshot's end {snap_end}", vbucket=vbucket)


def make_snapshot_error(
    vbucket: int, start_seqno: int, end_seqno: int, last: int, *, is_flushed: bool = False
) -> OrderViolation:
    """Return the error of a snapshot that ends below its start, or at or below a change that has come."""
    about = f"vbucket {vbucket}: snapshot {start_seqno}..{end_seqno} after seqno {last}"
    return OrderViolation(about, vbucket=vbucket, status=Status.ERANGE, seqnos_restarted=is_flushed)


def make_foreign_vbucket_error(vbucket: int, expected: int, name: str) -> OrderViolation:
    """Return the error of a message that carries the opaque of another vbucket's stream."""
    return OrderViolation(f"{name} of vbucket {vbucket} under the opaque of {expected}", vbucket=expected)
