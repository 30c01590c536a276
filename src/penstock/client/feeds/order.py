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

from penstock.client.connect.dropped import Dropped, DropReason
from penstock.errors import OrderViolation
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.heads import Heads
from penstock.wire.messages.dcp import SnapshotMarker, SnapshotMarkerV2

__all__ = [
    "NONE_WANTED",
    "Opaques",
    "RunPart",
    "behind_snapshot",
    "foreign_vbucket",
    "is_flush",
    "not_above",
    "take_parts",
    "wrong_snapshot",
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
    first: int
    behind: int
    least: int
    most: int


def _parts_of(heads: Heads) -> Iterator[RunPart]:
    """Cut a run where another stream's changes follow, or a seqno that is not above the one before."""
    vbucket, opaque, seqno = heads.vbucket, heads.opaque, heads.by_seqno
    assert seqno is not None
    cuts = (vbucket[1:] != vbucket[:-1]) | (opaque[1:] != opaque[:-1]) | (seqno[1:] <= seqno[:-1])
    first = 0
    for behind in (*(np.flatnonzero(cuts) + 1).tolist(), len(seqno)):
        numbers = int(vbucket[first]), int(opaque[first])
        yield RunPart(*numbers, first, behind, int(seqno[first]), int(seqno[behind - 1]))
        first = behind


def take_parts(
    heads: Heads, take: Callable[[RunPart], tuple[int, int]], dropped: Dropped
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
    for part in _parts_of(heads):
        violation = None
        try:
            wanted = take(part)
        except OrderViolation as error:
            violation, wanted = error, NONE_WANTED
        if wanted == (part.least, part.most):
            continue
        keep = np.ones(len(heads.ends), bool) if keep is None else keep
        if violation is not None:
            keep[part.first :] = False
            dropped.add(DropReason.BEHIND_VIOLATION, len(keep) - part.first)
            return keep, violation
        assert heads.by_seqno is not None
        seqno = heads.by_seqno[part.first : part.behind]
        early, late = seqno < wanted[0], seqno > wanted[1]
        keep[part.first : part.behind] = ~(early | late)
        if wanted != NONE_WANTED:
            dropped.add(DropReason.RECEIVED_BEFORE, int(early.sum()))
            dropped.add(DropReason.BEHIND_END, int((late & ~early).sum()))
    return keep, None


class Opaques:
    """The opaques under which a producer may send messages of streams on one connection.

    A stream that was closed, ended or given up leaves messages under way: they are legal, and left out.

    Attributes:
        earlier: opaques below it may belong to streams of an earlier user of the connection.
    """

    def __init__(self, dropped: Dropped) -> None:
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


def not_above(vbucket: int, seqno: int, last: int) -> OrderViolation:
    """Return the error of a change that comes behind a later one, or a second time."""
    return OrderViolation(f"vbucket {vbucket}: by_seqno {seqno} after {last}", vbucket=vbucket, status=Status.ERANGE)


def behind_snapshot(vbucket: int, seqno: int, snap_end: int) -> OrderViolation:
    """Return the error of a change that its snapshot cannot hold."""
    return OrderViolation(f"vbucket {vbucket}: by_seqno {seqno} behind its snapshot's end {snap_end}", vbucket=vbucket)


def wrong_snapshot(
    vbucket: int, start_seqno: int, end_seqno: int, last: int, *, begins_again: bool = False
) -> OrderViolation:
    """Return the error of a snapshot that ends below its start, or at or below a change that has come."""
    about = f"vbucket {vbucket}: snapshot {start_seqno}..{end_seqno} after seqno {last}"
    return OrderViolation(about, vbucket=vbucket, status=Status.ERANGE, begins_again=begins_again)


def foreign_vbucket(vbucket: int, expected: int, name: str) -> OrderViolation:
    """Return the error of a message that carries the opaque of another vbucket's stream."""
    return OrderViolation(f"{name} of vbucket {vbucket} under the opaque of {expected}", vbucket=expected)
