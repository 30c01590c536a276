"""The takeover of vbuckets by a TAP consumer: each becomes dead here before it becomes active there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from struct import Struct

from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.session import Session
from penstock.node.streams.takeover_steps import FEW_CHANGES
from penstock.node.streams.vbucket_handover import VbucketHandover
from penstock.node.tap.tap_backlog import TapBacklog
from penstock.node.tap.tap_stream import TapStream
from penstock.node.tap_state.tap_clients import TapPhase
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.messages.tap import TapVbucketSet
from penstock.wire.protocol.takeover_state import TakeoverEvent, TakeoverState, advance_takeover

_STATE = Struct(">I")


class TapTakeover:
    """The takeover of all vbuckets of one connection.

    Source: ep-engine 2.5 tapconnection.cc.

    Attributes:
        states: the state of the takeover by vbucket.
    """

    def __init__(
        self,
        session: Session,
        bucket: ServedBucket,
        vbuckets: Iterable[int],
        backlog: TapBacklog,
        resume: Callable[[], None],
    ) -> None:
        """Begin the takeover: the vbuckets of the consumer become pending.

        Args:
            session: the session of the connection.
            bucket: the bucket.
            vbuckets: numbers of active vbuckets.
            backlog: gets the messages about states.
            resume: schedules a turn.
        """
        self.states = dict.fromkeys(sorted(vbuckets), TakeoverState.COPYING)
        self._backlog = backlog
        self._resume = resume
        self._handovers = {
            number: VbucketHandover(session, bucket, bucket.store.vbuckets[number], sees_all=False)
            for number in self.states
        }
        for number in self.states:
            self._announce(number, VbucketState.PENDING)

    @property
    def is_complete(self) -> bool:
        """Whether the consumer owns all vbuckets."""
        return all(state is TakeoverState.COMPLETE for state in self.states.values())

    def advance(self, streams: Mapping[int, TapStream], unacked: int) -> None:
        """Take the next step of each vbucket, as far as it is due.

        Args:
            streams: the streams by vbucket.
            unacked: number of messages of the connection that the consumer has not acknowledged.
        """
        if self._backlog.has_old_changes:
            return
        for number, state in tuple(self.states.items()):
            stream = streams[number]
            if state is TakeoverState.COPYING and stream.position.phase is TapPhase.LIVE:
                self._finish_copy(number, stream.remaining + unacked)
            elif state is TakeoverState.FINISHING and not stream.remaining and not unacked:
                self._record(number, TakeoverEvent.STATE)
                self._announce(number, VbucketState.ACTIVE)
            elif state is TakeoverState.ACTIVATING and not unacked:
                self._record(number, TakeoverEvent.STATE_ANSWER)

    def is_broken_by(self, vbucket: Vbucket, event: VbucketEvent) -> bool:
        """Return whether an event of a vbucket ends the takeover: another client has changed its state."""
        state = self.states.get(vbucket.id, TakeoverState.COMPLETE)
        if event is VbucketEvent.HANDED_OVER:
            return state is TakeoverState.COPYING
        return state is not TakeoverState.COMPLETE and event is not VbucketEvent.FLUSHED

    def stop(self) -> None:
        """End the takeover, complete or not."""
        for handover in self._handovers.values():
            handover.stop()

    def _finish_copy(self, number: int, remaining: int) -> None:
        """Make the vbucket dead, if few changes are left to send or to acknowledge."""
        if remaining > FEW_CHANGES:
            self._handovers[number].limit_writes()
            return
        self._record(number, TakeoverEvent.CAUGHT_UP)
        self._handovers[number].end_service(partial(self._record_stored, number))

    def _record_stored(self, number: int) -> None:
        self._record(number, TakeoverEvent.STORED)
        self._resume()

    def _record(self, number: int, event: TakeoverEvent) -> None:
        self.states[number] = advance_takeover(self.states[number], event, number, Dialect.TAP)

    def _announce(self, number: int, state: VbucketState) -> None:
        self._backlog.notices.add(TapVbucketSet(vbucket=number, engine_private=_STATE.pack(state)))
        self._resume()
