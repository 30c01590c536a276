"""The vbuckets of a bucket that are copies of another node's: all that changes them. Nothing here waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import BEGINNING, Position
from penstock.errors import UsageError
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.mirror.received_change import convert_change
from penstock.store.documents.incoming_changes import LAST_SEQNO
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.failover_log import FailoverLog, find_branch, sanitise_log
from penstock.store.history.rollback import find_common_seqno
from penstock.wire.codec.constants import MAX_SEQNO, VbucketState
from penstock.wire.columns.schema import Change, Event

logger = logging.getLogger("penstock.node")

_MIRRORED = frozenset((VbucketState.REPLICA, VbucketState.PENDING))
"""The states of a vbucket that accepts changes of the upstream."""


class VbucketCopies:
    """Stores the changes of an upstream, and rolls copies back to the history that they share with it.

    Attributes:
        mirrored: numbers of the vbuckets that store received changes.
        restart: set when other vbuckets must be requested, or a vbucket from another position.
        changes: number of stored changes.
        rollbacks: number of rollbacks, including flushes.
    """

    def __init__(self, served: ServedBucket, upstream: object, *, has_positions: bool) -> None:
        """Make replicas of the vbuckets of a bucket in which nothing was ever stored.

        Args:
            served: the bucket. If it was stored on disk, its replicas are mirrored.
            upstream: the upstream's name in messages.
            has_positions: the upstream can continue from a position. Otherwise it sends everything again.

        Raises:
            UsageError: no vbucket is a replica.
        """
        self.mirrored: set[int] = set()
        self.restart = asyncio.Event()
        self.changes = self.rollbacks = 0
        self._served = served
        self._vbuckets = served.store.vbuckets
        self._upstream = upstream
        self._has_positions = has_positions
        self._incomplete: dict[int, bool] = {}
        """Vbucket inside a snapshot -> whether the snapshot skips seqnos, whose changes it may hide."""
        self._own_ends: dict[int, int] = {}
        """High seqno of each copy after the bridge's newest change. Any other high seqno shows a foreign change."""
        self._event_receivers: set[int] = set()  # vbuckets whose system events the bucket may not have
        if all(
            vbucket.history.state is VbucketState.ACTIVE and not vbucket.changes.high_seqno
            for vbucket in self._vbuckets
        ):
            for vbucket in self._vbuckets:
                vbucket.set_state(VbucketState.REPLICA)
            served.notify()
        if not any(vbucket.history.state in _MIRRORED for vbucket in self._vbuckets):
            name = served.store.name
            raise UsageError(f"bucket {name} cannot follow {upstream}: none of its vbuckets is a replica or pending")

    def select_vbuckets(self) -> list[Vbucket]:
        """Mirror all vbuckets in a suitable state, and return them. Open snapshots are forgotten.

        Returns:
            The mirrored vbuckets.
        """
        self._incomplete.clear()
        found = [vbucket for vbucket in self._vbuckets if vbucket.history.state in _MIRRORED]
        self.mirrored = {vbucket.id for vbucket in found}
        return found

    def list_seqnos(self) -> Iterator[tuple[str, int]]:
        """Yield the high seqno and the whole seqno of each mirrored vbucket, for STAT."""
        for vbucket in self._vbuckets:
            if vbucket.id in self.mirrored:
                yield f"vb_{vbucket.id}:seqno", vbucket.changes.high_seqno
                yield f"vb_{vbucket.id}:whole_seqno", vbucket.history.whole_seqno

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Adjust the mirrored vbuckets after a state change, and restart a vbucket that was emptied by others."""
        is_mirrored = vbucket.history.state in _MIRRORED
        if not is_mirrored:  # an active vbucket starts a branch, so its own changes are recognized by that
            self._own_ends.pop(vbucket.id, None)
        is_emptied = is_mirrored and event is not VbucketEvent.STATE_CHANGED
        if is_mirrored == (vbucket.id in self.mirrored) and not is_emptied:
            return
        self.mirrored.discard(vbucket.id)
        if is_mirrored or self._has_positions:
            self.restart.set()

    # Changes

    def store_change(self, change: Change, delivery: Delivery) -> None:
        """Store one change, or roll back if the change is a rollback."""
        vbucket = self._vbuckets[change.vbucket]
        if change.event == Event.ROLLBACK:
            self.roll_back(vbucket, change.seqno or 0, delivery.logs.get(vbucket.id, ()))
            if (
                vbucket.changes.high_seqno != change.seqno
            ):  # it was rolled back further, and the stream would skip changes
                self._restart_vbucket(vbucket)
            return
        event, key, value, flags, datatype, is_system_event = convert_change(change)
        seqno = change.seqno
        if seqno is not None:
            if vbucket.changes.high_seqno != self._own_ends[vbucket.id]:  # a foreign change
                self.roll_back(vbucket, 0, ())
                self._restart_vbucket(vbucket)
                return
            self.complete_snapshot(vbucket, delivery.positions[vbucket.id].snap_start, before=seqno)
            is_gap = seqno != vbucket.changes.high_seqno + 1
            self._incomplete[vbucket.id] = self._incomplete.get(vbucket.id, False) or is_gap
        vbucket.incoming.apply(
            event,
            key,
            value,
            cas=change.cas or vbucket.changes.clock.last + 1,
            rev_seqno=change.rev_seqno or 1,
            seqno=seqno,
            snapshot_end=None if seqno is None else LAST_SEQNO,
            flags=flags,
            expiry=change.expiry or 0,
            lock_time=change.lock_time or 0,
            datatype=datatype,
            delete_time=change.delete_time or 0,
        )
        if seqno is not None:
            self._own_ends[vbucket.id] = seqno
        self.changes += 1
        if is_system_event:
            self._event_receivers.add(vbucket.id)
        self._served.changed.add(vbucket.id)

    def complete_snapshot(self, vbucket: Vbucket, end: int, before: int = MAX_SEQNO) -> None:
        """End the open snapshot of a vbucket if its end is stored and the next change lies behind it."""
        if vbucket.changes.high_seqno == end < before and vbucket.id in self._incomplete:
            vbucket.history.end_snapshot(hides=self._incomplete.pop(vbucket.id))
            self._served.changed.add(vbucket.id)

    def _restart_vbucket(self, vbucket: Vbucket) -> None:
        """Ignore further changes of a vbucket, and request it again from its present position."""
        self.mirrored.discard(vbucket.id)
        self.restart.set()

    # Scopes and collections

    def take_event_receivers(self) -> list[Vbucket]:
        """Return the vbuckets that have received system events since the last call."""
        received, self._event_receivers = self._event_receivers, set()
        return [self._vbuckets[number] for number in received]

    # Histories

    def reconcile(self, vbucket: Vbucket, log: FailoverLog) -> None:
        """Roll back to the last complete snapshot that the upstream has as well.

        A copy with foreign changes starts from zero: they are on the same branch, so the failover logs do not show
        them.

        Args:
            vbucket: the copy.
            log: the upstream's failover log of the vbucket.
        """
        high_seqno = vbucket.changes.high_seqno
        if high_seqno > self._own_ends.get(vbucket.id, high_seqno):
            self.roll_back(vbucket, 0, ())
        common = find_common_seqno(vbucket.history.failover_log, vbucket.changes.high_seqno, log)
        self.roll_back(vbucket, min(common, vbucket.history.whole_seqno), log)

    def roll_back(self, vbucket: Vbucket, seqno: int, log: FailoverLog) -> None:
        """Roll a vbucket back to a seqno, and adopt the upstream's failover log if it is known.

        Consumers are notified if they could notice. A vbucket that cannot end at the seqno is rolled back further.
        """
        whole, before = vbucket.history.whole_seqno, vbucket.history.failover_log
        try:
            if seqno < vbucket.changes.high_seqno:
                vbucket.rollback(seqno)
                self._incomplete.pop(vbucket.id, None)
            if log and log[0].vbuuid and sanitise_log(log) != vbucket.history.failover_log:
                vbucket.history.set_failover_log(log)
        finally:  # the failover log may be refused after the rollback succeeded
            high_seqno = vbucket.changes.high_seqno
            self._own_ends[vbucket.id] = min(self._own_ends.get(vbucket.id, high_seqno), high_seqno)
            if vbucket.history.whole_seqno < whole:
                self.rollbacks += 1
                logger.info(
                    "vbucket %d of %s: back from %d to %d",
                    vbucket.id,
                    self._upstream,
                    whole,
                    vbucket.changes.high_seqno,
                )
                self._report_event(
                    vbucket, VbucketEvent.STATE_CHANGED if vbucket.changes.high_seqno else VbucketEvent.FLUSHED
                )
            elif vbucket.history.failover_log != before:
                self._report_event(vbucket, VbucketEvent.STATE_CHANGED)

    def _report_event(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        self._served.report_event(vbucket, event, cause=self)
        self._served.changed.add(vbucket.id)


def make_position(vbucket: Vbucket, log: FailoverLog) -> Position:
    """Return the position from which the upstream continues a vbucket that has only history of this failover log.

    The position has no older ends. A producer that refuses it has lost its history, and the vbucket starts from zero.
    """
    seqno = vbucket.changes.high_seqno
    if not seqno:
        return BEGINNING
    return Position(seqno=seqno, vbuuid=find_branch(log, seqno).vbuuid, snap_start=seqno, snap_end=seqno)
