"""The vbuckets of a TAP stream: how far each is, how many changes it has, and what is cut off."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from penstock.client.feeds.consumer_feed import FeedState
from penstock.errors import RemoteProtocolError
from penstock.wire.columns.schema import Change, Event
from penstock.wire.protocol.stream_state import StreamEvent, StreamState, advance_state

__all__ = ["TapVbuckets"]


class TapVbuckets:
    """The vbuckets that a TAP stream was asked for.

    Attributes:
        stored, deleted: by vbucket, the changes since it was cut off, of either kind.
        with_rows: the vbuckets with changes that are not cut off.
    """

    def __init__(self, state: FeedState) -> None:
        self.stored, self.deleted = np.zeros((2, state.vbuckets), np.int64)
        self.with_rows: set[int] = set()
        self._rolled_back: set[int] = set()
        self._states: dict[int, StreamState] = {}
        self._state = state

    def begin(self, vbuckets: Collection[int]) -> None:
        """Expect a stream of these vbuckets: TAP has no message that accepts it."""
        begun = advance_state(StreamState.REQUESTED, StreamEvent.ACCEPTED, 0, self._state.dialect)
        self._states = dict.fromkeys(vbuckets, begun)

    @property
    def is_backfilling(self) -> bool:
        """Is any vbucket in a backfill?"""
        return StreamState.IN_BACKFILL in self._states.values()

    def advance(self, vbucket: int, event: StreamEvent) -> None:
        """Note an event. Raises RemoteProtocolError for a vbucket that was not asked for."""
        state = self._states.get(vbucket)
        if state is None:
            raise RemoteProtocolError(f"{event.value} of vbucket {vbucket}, which was not asked for")
        self._states[vbucket] = advance_state(state, event, vbucket, self._state.dialect)

    def receive_changes(self, vbucket: int) -> bool:
        """Note that changes of a vbucket came. Return whether they were no backfill."""
        self.advance(vbucket, StreamEvent.DATA)
        self.with_rows.add(vbucket)
        self._rolled_back.discard(vbucket)
        return self._states[vbucket] is not StreamState.IN_BACKFILL

    def count_rows(self, changes: Collection[Change]) -> None:
        for change in changes:
            kind = self.stored if change.event == Event.MUTATION else self.deleted
            kind[change.vbucket] += 1

    def count_columns(self, vbuckets: npt.NDArray[np.integer], is_stored: npt.NDArray[np.bool_]) -> None:
        for kind, rows in ((self.stored, is_stored), (self.deleted, ~is_stored)):
            kind += np.bincount(vbuckets[rows], minlength=self._state.vbuckets)

    def roll_back(self, vbuckets: Collection[int]) -> None:
        """Cut off what the vbuckets had up to here, with a rollback row each."""
        history = self._state.context.history
        for vbucket in sorted(vbuckets):
            history[vbucket] += 1
            row = Change(vbucket, None, 0, event=Event.ROLLBACK, history=int(history[vbucket]), requested_seqno=0)
            self._state.output.rows.append(row)
            self.stored[vbucket] = self.deleted[vbucket] = 0
        self.with_rows = self.with_rows.difference(vbuckets)
        self._rolled_back = self._rolled_back.union(vbuckets)

    def roll_back_all(self, vbuckets: Collection[int]) -> None:
        """Cut off the vbuckets, but not twice for nothing in between."""
        self.roll_back({*vbuckets} - self._rolled_back)
