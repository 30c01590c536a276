"""Answers STAT without blocking the event loop, for any number of statistics.

The replies are made in slices of a few milliseconds. Until the last one, the request is parked, and the bucket may
change. So the values of one vbucket belong to one moment, but those of two vbuckets may not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice

from penstock.errors import StatusError
from penstock.node.answers import EXCLUSIVE_BYTES, CancelWait, Parked, Resume
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Session
from penstock.node.stats.stat_group import Stats
from penstock.node.stats.stat_groups import read_stats
from penstock.node.timing.histogram import Histogram
from penstock.wire.messages.kv import Stat

_SLICE_SECONDS = 0.004
_LINES_AT_ONCE = 64  # between two readings of the clock


def answer_stat(session: Session, request: Stat) -> bytes:
    """Return all replies to a STAT. Raises the same errors as `read_stats`.

    Raises:
        Parked: the replies take longer than one slice.
    """
    answer = _StatAnswer(session, request, read_stats(session, request))
    if answer.make_replies():
        return answer.join_replies()
    # No request overtakes it, as in kv_engine. Otherwise a client could send many STATs, which would take all turns.
    raise Parked(answer.park, EXCLUSIVE_BYTES)


class _StatAnswer:
    """The replies to one STAT that were made so far."""

    _resume: Resume
    _turn: asyncio.Handle

    def __init__(self, session: Session, request: Stat, stats: Stats) -> None:
        self._session = session
        self._lines: Iterator[bytes] = (
            encode_reply(request, key=name.encode(), value=str(value).encode()) for name, value in stats
        )
        self._end = encode_reply(request)
        self._clock = session.node.loop.time
        self._seconds = 0.0
        self._times: Histogram = session.require_bucket().stat_times[
            request.key.decode("utf-8", "replace").split(" ")[0]
        ]
        self._made: list[bytes] = []

    def make_replies(self) -> bool:
        """Make more replies for the time of a slice. Return whether all are made.

        Returns:
            Whether all replies are made.
        """
        began = self._clock()
        while True:
            wanted = len(self._made) + _LINES_AT_ONCE
            self._made += islice(self._lines, _LINES_AT_ONCE)
            is_over, seconds = len(self._made) < wanted, self._clock() - began
            if is_over or seconds >= _SLICE_SECONDS:
                self._seconds += seconds
                return is_over

    def join_replies(self) -> bytes:
        """Return all replies, and record the time that they took."""
        self._times.record(self._seconds)
        return b"".join((*self._made, self._end))

    def park(self, resume: Resume) -> CancelWait:
        """Make the other replies in turns of the event loop. Return the function that cancels them.

        Returns:
            A function that cancels the replies.
        """
        self._resume = resume
        self._schedule_turn()
        return self._give_up

    def _schedule_turn(self) -> None:
        session = self._session
        self._turn = session.node.loop.call_soon(session.output.run_guarded, self._take_turn)

    def _take_turn(self) -> None:
        try:
            is_over = self.make_replies()
        except StatusError as error:
            self._resume(error)
            return
        if is_over:
            self._resume(self.join_replies())
        else:
            self._schedule_turn()

    def _give_up(self) -> None:
        self._turn.cancel()
