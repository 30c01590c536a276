"""The node's part of a takeover: its vbucket becomes dead, and writers may not delay that for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from penstock.errors import NotSupported
from penstock.node.answers import CloseConnection
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.session import Session
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.vbucket_changes import REFUSED
from penstock.wire.codec.constants import VbucketState


def check_completeness(vbucket: Vbucket, *, sees_all: bool) -> None:
    """Check that the consumer of a takeover gets the whole vbucket.

    Args:
        vbucket: the vbucket.
        sees_all: whether the consumer gets all collections. Otherwise it gets the default collection only.

    Raises:
        NotSupported: it would lack some collections.
    """
    if not sees_all and vbucket.changes.collection_state is not None:
        raise NotSupported(f"takeover of vbucket {vbucket.id} without all of its collections")


class VbucketHandover:
    """Hands the vbucket of this node over to the consumer of one connection.

    If the connection ends after `end_service`, no node owns the vbucket. The program that has ordered the takeover then
    has to choose an owner.
    """

    def __init__(self, session: Session, bucket: ServedBucket, vbucket: Vbucket, *, sees_all: bool) -> None:
        """Create a handover at its start.

        Args:
            session: the session of the connection.
            bucket: the bucket.
            vbucket: the vbucket.
            sees_all: whether the consumer gets all collections.
        """
        self._sees_all = sees_all
        self._session = session
        self._bucket = bucket
        self._vbucket = vbucket
        self._timer: asyncio.TimerHandle | None = None
        self._flush: asyncio.Task[None] | None = None

    def limit_writes(self) -> None:
        """Refuse writes once the takeover has lasted too long. Source: kv_engine, dcp_takeover_max_time."""
        if self._timer is None:
            seconds = self._session.node.options.takeover_seconds
            self._timer = self._session.node.loop.call_later(seconds, self._refuse_writes, seconds)

    def end_service(self, on_stored: Callable[[], None]) -> None:
        """Make the vbucket dead. Other streams of the vbucket continue.

        Args:
            on_stored: called once the state is on disk: after a crash, this node must not own the vbucket again.

        Raises:
            CloseConnection: the bucket accepts no changes, or the consumer lacks a new collection.
        """
        vbucket, flusher = self._vbucket, self._bucket.flusher
        try:
            check_completeness(vbucket, sees_all=self._sees_all)
            vbucket.set_state(VbucketState.DEAD)
        except (*REFUSED, NotSupported) as error:
            raise CloseConnection(f"vbucket {vbucket.id} cannot become dead: {error}") from None
        self._accept_writes()
        self._bucket.report_event(vbucket, VbucketEvent.HANDED_OVER)
        if flusher is None:
            on_stored()
            return
        self._flush = self._session.node.loop.create_task(flusher.flush())
        self._flush.add_done_callback(partial(self._finish_flush, on_stored))

    def stop(self) -> None:
        """End the takeover, complete or not. The vbucket keeps its state, and an active one accepts writes again."""
        self._accept_writes()
        if self._flush is not None:
            self._flush.cancel()

    def _refuse_writes(self, seconds: float) -> None:
        self._vbucket.changes.refusal = f"its takeover has lasted {seconds:g} s"

    def _accept_writes(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._vbucket.changes.refusal = ""

    def _finish_flush(self, on_stored: Callable[[], None], flush: asyncio.Task[None]) -> None:
        if flush.cancelled():
            return
        if (error := flush.exception()) is not None:
            self._session.output.abort(f"vbucket {self._vbucket.id} is dead, but that is not on disk: {error}")
        else:
            self._session.output.run_guarded(on_stored)
