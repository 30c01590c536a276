"""The frames and rows that a consumer receives and does not hand out: each is counted, with the reason.

This is the only list of reasons. A place that leaves out a frame calls `Dropped.add`, and there is no other way to
leave one out: the tests compare the places with this list.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum

__all__ = ["ROUTINE", "DropLog", "DropReason", "Dropped", "describe_drops"]

logger = logging.getLogger("penstock.client")


class DropReason(StrEnum):
    """Why a frame or a row was not handed out. The text stands in reports, behind the number of frames."""

    CLOSED_STREAM = "of a stream that was closed, given up or had ended"
    """A producer had sent it before it knew. Legal, and nothing is lost: the stream goes on from its position."""

    EARLIER_STREAM = "of a stream that used the connection before"
    """As CLOSED_STREAM, on a connection that several streams used one after the other."""

    BEHIND_END = "behind the last seqno that was asked for"
    """A producer completes its snapshot though the stream ends inside it."""

    RECEIVED_BEFORE = "received before"
    """The stream began again at 0 because the producer has purged; these changes were handed out already."""

    BEHIND_VIOLATION = "behind a frame that broke the order"
    """The connection ends there, and the stream gets them again on the next one."""

    REPEATED_ADVANCE = "repeats of an advance to the same seqno"
    STATE = "with a state, which is for replicas"
    STREAM_START = "with the start of a stream, which holds nothing else"
    REMARK = "with a remark of a TAP producer that means nothing to a consumer"
    UNEXPECTED_REPLY = "replies to a request that nobody waits for"
    """To CLOSE_STREAM, or to a request that was given up."""

    OUTDATED_LOG = "with a failover log of a stream that has ended"
    PUSHED = "pushed by the server without a request"
    """A change of the cluster map, for instance: the client asks for the map itself."""

    NOBODY_LISTENS = "on a connection without streams"


ROUTINE = frozenset(
    (
        *(DropReason.BEHIND_END, DropReason.REPEATED_ADVANCE, DropReason.STATE, DropReason.STREAM_START),
        *(DropReason.REMARK, DropReason.UNEXPECTED_REPLY, DropReason.OUTDATED_LOG),
    )
)
"""Reasons that a good producer gives in a good stream: a report for people leaves them out."""


class Dropped:
    """Counts what is left out. frames: frames and changes by reason."""

    def __init__(self) -> None:
        self.frames: Counter[DropReason] = Counter()

    def add(self, reason: DropReason, frames: int = 1) -> None:
        if frames:
            self.frames[reason] += frames


_LOG_SECONDS = 60.0


class DropLog:
    """Logs what a stream left out: at most one line a minute, and one at its end."""

    def __init__(self, subject: object, clock: Callable[[], float]) -> None:
        self._subject = subject
        self._clock = clock
        self._logged: dict[DropReason, int] = {}
        self._next_at = clock() + _LOG_SECONDS

    def note(self, frames: Callable[[], Mapping[DropReason, int]], *, at_once: bool = False) -> None:
        """Log the counts if they have changed, and a line is due."""
        if self._clock() < self._next_at and not at_once:
            return
        self._next_at = self._clock() + _LOG_SECONDS
        counted = dict(frames())
        if counted != self._logged:
            self._logged = counted
            logger.info("%s: frames and changes not handed out: %s", self._subject, describe_drops(counted))


def describe_drops(frames: Mapping[DropReason, int]) -> str:
    """Return the counts as text: `3 frames of a stream that was closed, 1 received before`."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(frames.items()) if count)
