"""The vbuckets of a TAP stream: their states, their counts of changes, and their rollbacks."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from penstock.client.feeds.consumer_feed import FeedState
from penstock.errors import RemoteProtocolError
from penstock.wire.columns.schema import Change, Event
from penstock.wire.protocol.stream_state import StreamEvent, StreamState, advance_state


class TapVbuckets:
    """The requested vbuckets of a TAP stream.

    Attributes:
        stored: vbucket -> received changes that store a document, since the last rollback; int64, shape (vbuckets,).
        deleted: vbucket -> received deletions and expirations since the last rollback; same shape.
        with_rows: the vbuckets with changes since their last rollback.
    """

    def __init__(self, state: FeedState) -> None:
        self.stored, self.deleted = np.zeros((2, state.vbuckets), np.int64)
        self.with_rows: set[int] = set()
        self._rolled_back: set[int] = set()
        self._states: dict[int, StreamState] = {}
        self._state = state

    def begin(self, vbuckets: Collection[int]) -> None:
        """Expect a stream of these vbuckets. TAP has no message that accepts a stream."""
        begun = advance_state(StreamState.REQUESTED, StreamEvent.ACCEPTED, 0, self._state.dialect)
        self._states = dict.fromkeys(vbuckets, begun)

    @property
    def is_backfilling(self) -> bool:
        """Whether any vbucket is in a backfill."""
        return StreamState.IN_BACKFILL in self._states.values()

    def advance(self, vbucket: int, event: StreamEvent) -> None:
        """Apply an event to the state of a vbucket.

        Raises:
            RemoteProtocolError: the vbucket was not requested.
            OrderViolation: the state does not allow the event.
        """
        state = self._states.get(vbucket)
        if state is None:
            raise RemoteProtocolError(f"{event.value} of vbucket {vbucket}, which was not requested")
        self._states[vbucket] = advance_state(state, event, vbucket, self._state.dialect)

    def receive_changes(self, vbucket: int) -> bool:
        """Return whether changes of a vbucket are outside its backfill, after recording that they arrived."""
        self.advance(vbucket, StreamEvent.DATA)
        self.with_rows.add(vbucket)
        self._rolled_back.discard(vbucket)
        return self._states[vbucket] is not StreamState.IN_BACKFILL

    def count_rows(self, changes: Collection[Change]) -> None:
        """Count changes that are objects."""
        for change in changes:
            kind = self.stored if change.event == Event.MUTATION else self.deleted
            kind[change.vbucket] += 1

    def count_columns(self, vbuckets: npt.NDArray[np.integer], is_stored: npt.NDArray[np.bool_]) -> None:
        """Count changes that are columns.

        Args:
            vbuckets: the vbucket of each change; shape (changes,).
            is_stored: whether each change stores a document; shape (changes,).
        """
        for kind, rows in ((self.stored, is_stored), (self.deleted, ~is_stored)):
            kind += np.bincount(vbuckets[rows], minlength=self._state.vbuckets)

    def roll_back(self, vbuckets: Collection[int]) -> None:
        """Make the earlier changes of the vbuckets void: emit a rollback row to 0 for each of them."""
        history = self._state.context.history
        for vbucket in sorted(vbuckets):
            history[vbucket] += 1
            row = Change(vbucket, None, 0, event=Event.ROLLBACK, history=int(history[vbucket]), requested_seqno=0)
            self._state.output.rows.append(row)
            self.stored[vbucket] = self.deleted[vbucket] = 0
        self.with_rows = self.with_rows.difference(vbuckets)
        self._rolled_back = self._rolled_back.union(vbuckets)

    def roll_back_all(self, vbuckets: Collection[int]) -> None:
        """Roll back the vbuckets, except those without changes since their last rollback."""
        self.roll_back({*vbuckets} - self._rolled_back)
