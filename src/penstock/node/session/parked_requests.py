"""The parked requests of one connection: requests that wait for a disk, a thread or a delay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.errors import RemoteProtocolError, StatusError
from penstock.node.answers import ALONE, Answer, Barrier, Finished, GiveUp, Parked

__all__ = ["MOST_PARKED", "PARKED_BYTES", "ParkedRequests"]

MOST_PARKED: Final = 256
"""Requests of one connection that may wait at once, where it takes replies in any order."""

PARKED_BYTES: Final = ALONE
"""Bytes of values that they may hold, with those of the documents that threads work on. Once there are more, nothing
else is served before one of them is answered."""


class ParkedRequests:
    """Parked requests, and how many a connection may have.

    Attributes:
        any_order: the client takes replies in any order, so several requests may be parked.
        barrier: the next request is served once none is parked.
    """

    def __init__(self) -> None:
        self.any_order = False
        self.barrier = False
        self._nbytes = 0
        self._ends: dict[object, GiveUp] = {}

    def check_empty(self) -> None:
        """Raise Barrier while a request is parked."""
        if self._ends:
            raise Barrier

    def is_full(self, *, logged_in: bool) -> bool:
        """Tell whether a parked request must be answered before anything else is served."""
        parked = len(self._ends)
        if not parked:
            self.barrier = False
            return False
        most = MOST_PARKED if self.any_order and logged_in else 1
        return self.barrier or parked >= most or self._nbytes >= PARKED_BYTES

    def park(
        self,
        parked: Parked,
        value_bytes: int,
        answer_request: Callable[[Answer | StatusError | RemoteProtocolError | Finished], None],
    ) -> None:
        """Park a request. value_bytes: of the request itself. answer_request: takes its answer, once."""
        which, nbytes = object(), value_bytes + parked.nbytes

        def resume(answer: Answer | StatusError | RemoteProtocolError | Finished) -> None:
            del self._ends[which]
            self._nbytes -= nbytes
            answer_request(answer)

        self._ends[which] = parked.begin(resume)
        self._nbytes += nbytes

    def give_up(self) -> None:
        """End all waits: the client is gone."""
        for end in self._ends.values():
            end()
        self._ends.clear()
