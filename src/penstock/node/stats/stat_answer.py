"""Answering STAT without holding up the event loop, however many statistics there are.

The replies are made in slices of a few milliseconds; until the last one, the request is parked. So a group is read
while the bucket changes: what it says of one vbucket is of one moment, what it says of two need not be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice

from penstock.errors import StatusError
from penstock.node.answers import ALONE, GiveUp, Parked, Resume
from penstock.node.buckets.histogram import Histogram
from penstock.node.session.replies import reply
from penstock.node.session.session import Session
from penstock.node.stats.stat_group import Stats
from penstock.node.stats.stat_groups import read_stats
from penstock.wire.messages.kv import Stat

__all__ = ["answer_stat"]

_SLICE_SECONDS = 0.004
_LINES_AT_ONCE = 64  # between two looks at the clock


def answer_stat(session: Session, request: Stat) -> bytes:
    """Return all replies to a STAT. Raises Parked if that takes longer than a slice, and as read_stats does."""
    answer = _StatAnswer(session, request, read_stats(session, request))
    if answer.go_on():
        return answer.replies()
    # Nothing overtakes it, as in kv_engine: each STAT has turns of its own, and many would leave others none.
    raise Parked(answer.park, ALONE)


class _StatAnswer:
    """The replies to one STAT, as far as they were made."""

    _resume: Resume
    _turn: asyncio.Handle

    def __init__(self, session: Session, request: Stat, stats: Stats) -> None:
        self._session = session
        self._lines: Iterator[bytes] = (
            reply(request, key=name.encode(), value=str(value).encode()) for name, value in stats
        )
        self._end = reply(request)
        self._clock = session.node.loop.time
        self._seconds = 0.0
        self._times: Histogram = session.selected().stat_times[request.key.decode("utf-8", "replace").split(" ")[0]]
        self._made: list[bytes] = []

    def go_on(self) -> bool:
        """Make more replies, for the time of a slice; True: those were all."""
        began = self._clock()
        while True:
            wanted = len(self._made) + _LINES_AT_ONCE
            self._made += islice(self._lines, _LINES_AT_ONCE)
            is_over, seconds = len(self._made) < wanted, self._clock() - began
            if is_over or seconds >= _SLICE_SECONDS:
                self._seconds += seconds
                return is_over

    def replies(self) -> bytes:
        self._times.record(self._seconds)
        return b"".join((*self._made, self._end))

    def park(self, resume: Resume) -> GiveUp:
        """Make the rest by turns of the event loop's own."""
        self._resume = resume
        self._ask_turn()
        return self._give_up

    def _ask_turn(self) -> None:
        session = self._session
        self._turn = session.node.loop.call_soon(session.output.guarded, self._take_turn)

    def _take_turn(self) -> None:
        try:
            is_over = self.go_on()
        except StatusError as error:
            self._resume(error)
            return
        if is_over:
            self._resume(self.replies())
        else:
            self._ask_turn()

    def _give_up(self) -> None:
        self._turn.cancel()
