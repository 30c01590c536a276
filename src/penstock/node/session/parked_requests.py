"""The parked requests of one connection: they wait for the disk, a thread or a delay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.errors import RemoteProtocolError, StatusError
from penstock.node.answers import EXCLUSIVE_BYTES, Answer, CancelWait, FinishedWork, Parked, WaitForParked

MAX_PARKED: Final = 256
"""Parked requests of a connection that accepts unordered replies. Any other connection has at most one."""

MAX_PARKED_BYTES: Final = EXCLUSIVE_BYTES
"""Bytes of the parked requests' values, and of the documents that threads work on.

Above this limit, no other request is served before one of them is answered.
"""


class ParkedRequests:
    """The parked requests of a connection, and their limits.

    Attributes:
        any_order: whether the client accepts unordered replies, so that several requests may be parked.
        is_draining: whether the next request waits until no request is parked.
    """

    def __init__(self) -> None:
        self.any_order = False
        self.is_draining = False
        self._nbytes = 0
        self._waits: dict[object, CancelWait] = {}

    def check_empty(self) -> None:
        """Raise WaitForParked if a request is parked."""
        if self._waits:
            raise WaitForParked

    def is_full(self, *, logged_in: bool) -> bool:
        """Return whether a parked request must be answered before any other request is served.

        Args:
            logged_in: whether the client has logged in. Before that, one request may be parked.
        """
        parked = len(self._waits)
        if not parked:
            self.is_draining = False
            return False
        most = MAX_PARKED if self.any_order and logged_in else 1
        return self.is_draining or parked >= most or self._nbytes >= MAX_PARKED_BYTES

    def park(
        self,
        parked: Parked,
        value_bytes: int,
        answer_request: Callable[[Answer | StatusError | RemoteProtocolError | FinishedWork], None],
    ) -> None:
        """Park a request.

        Args:
            parked: starts the wait.
            value_bytes: bytes of the request's value.
            answer_request: called once, with the outcome of the wait.
        """
        which, nbytes = object(), value_bytes + parked.nbytes

        def resume(answer: Answer | StatusError | RemoteProtocolError | FinishedWork) -> None:
            del self._waits[which]
            self._nbytes -= nbytes
            answer_request(answer)

        self._waits[which] = parked.start_wait(resume)
        self._nbytes += nbytes

    def cancel_all(self) -> None:
        """Cancel all waits, since the client has disconnected."""
        for end in self._waits.values():
            end()
        self._waits.clear()
