"""Counts of the frames and changes that a consumer receives and does not deliver, by reason.

This is the only list of reasons. All code that drops a frame calls DropCounter.add; tests compare the calls with the
list.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum

logger = logging.getLogger("penstock.client")


class DropReason(StrEnum):
    """The reason why a frame or a change was not delivered. Reports print its text after the number of frames."""

    CLOSED_STREAM = "of a stream that was closed, given up or had ended"
    """The producer sent it before it received the request to close. Nothing is lost: the stream resumes later."""

    EARLIER_STREAM = "of a stream that used the connection before"
    """Like CLOSED_STREAM, on a connection that several streams used one after the other."""

    AFTER_END = "after the last requested seqno"
    """A producer completes its snapshot even if the stream ends inside the snapshot."""

    RECEIVED_BEFORE = "received before"
    """The stream restarted from 0 because the producer has purged tombstones; these changes were delivered before."""

    OTHER_COLLECTION = "of a collection that is not selected"
    """A selected collection does not exist. The stream reads its scope or the bucket, to see its creation."""

    AFTER_VIOLATION = "after a frame that violated the order"
    """The connection is closed, and the stream receives them again on the next connection."""

    AFTER_ERROR = "after an answer that ended the streams"
    """The stream raises the error. A later stream from its positions receives them again."""

    REPEATED_ADVANCE = "repeats of an advance to the same seqno"
    VBUCKET_STATE = "with a vbucket state, which only replicas use"
    STREAM_START = "with the start of a stream"
    TAP_OPAQUE = "with a TAP_OPAQUE command that consumers ignore"
    UNEXPECTED_REPLY = "replies without a pending request"
    """Replies to CLOSE_STREAM, or to a request after its timeout."""

    OUTDATED_LOG = "with a failover log of a stream that has ended"
    PUSHED = "pushed by the server without a request"
    """Requests of the server that the client cannot use, for example a cluster map that is malformed or not the
    bucket's."""

    NO_STREAM = "on a connection without streams"


EXPECTED_REASONS = frozenset(
    (
        *(DropReason.AFTER_END, DropReason.AFTER_ERROR, DropReason.REPEATED_ADVANCE, DropReason.VBUCKET_STATE),
        *(DropReason.STREAM_START, DropReason.TAP_OPAQUE, DropReason.UNEXPECTED_REPLY, DropReason.OUTDATED_LOG),
        DropReason.OTHER_COLLECTION,
    )
)
"""Reasons that also occur in a stream without errors: `penstock tail` does not report them."""


class DropCounter:
    """Counts dropped frames.

    Attributes:
        frames: reason -> number of frames and changes.
    """

    def __init__(self) -> None:
        self.frames: Counter[DropReason] = Counter()

    def add(self, reason: DropReason, frames: int = 1) -> None:
        """Add a number of dropped frames or changes."""
        if frames:
            self.frames[reason] += frames


_LOG_SECONDS = 60.0


class DropLog:
    """Logs the dropped frames of a stream: at most one line a minute, and one line at its end."""

    def __init__(self, subject: object, clock: Callable[[], float]) -> None:
        self._subject = subject
        self._clock = clock
        self._logged: dict[DropReason, int] = {}
        self._next_at = clock() + _LOG_SECONDS

    def log_changes(self, frames: Callable[[], Mapping[DropReason, int]], *, at_once: bool = False) -> None:
        """Log the counts if they have changed and a minute has passed since the last line, or if `at_once` is set."""
        if self._clock() < self._next_at and not at_once:
            return
        self._next_at = self._clock() + _LOG_SECONDS
        counted = dict(frames())
        if counted != self._logged:
            self._logged = counted
            logger.info("%s: frames and changes not delivered: %s", self._subject, describe_drops(counted))


def describe_drops(frames: Mapping[DropReason, int]) -> str:
    """Return the counts as text: `3 frames of a stream that was closed, 1 received before`."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(frames.items()) if count)
