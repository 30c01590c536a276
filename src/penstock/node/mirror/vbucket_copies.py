"""The vbuckets of a bucket that are copies of another node's: what changes them, and nothing that waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import BEGINNING, Position
from penstock.errors import CannotApplyManifest, OutOfRange, UsageError
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.mirror.arrived_row import arrived
from penstock.store.documents.incoming_changes import LAST_SEQNO
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.failover_log import FailoverLog, branch_at, sanitised
from penstock.store.history.rollback import common_seqno
from penstock.wire.codec.constants import MAX_SEQNO, VbucketState
from penstock.wire.columns.schema import Change, Event

__all__ = ["VbucketCopies", "position_of"]

logger = logging.getLogger("penstock.node")

_MIRRORED = frozenset((VbucketState.REPLICA, VbucketState.PENDING))
"""The states of a vbucket that takes changes from elsewhere."""


class VbucketCopies:
    """Stores the changes of an upstream, and rolls copies back to what the upstream has as well.

    Attributes:
        mirrored: the vbuckets that take what arrives.
        restart: set when other vbuckets are to be asked for, or a vbucket from another position.
        changes: how many changes were stored.
        rollbacks: how many rollbacks there were. A flush counts as one.
    """

    def __init__(self, served: ServedBucket, upstream: object, *, has_positions: bool) -> None:
        """Make replicas of the vbuckets of a bucket in which nothing was ever stored.

        Args:
            served: the bucket. One that was kept on disk is mirrored where it was a mirror.
            upstream: its name in messages.
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
        """Vbuckets inside a snapshot, and whether it leaves seqnos out, whose changes it may hide."""
        self._with_events: set[int] = set()  # vbuckets with system events of which the bucket may not know
        self._is_own_event = False
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

    def begin(self) -> list[Vbucket]:
        """Mirror all vbuckets that are in the state for it, and return them. No snapshot of theirs is open any more."""
        self._incomplete.clear()
        found = [vbucket for vbucket in self._vbuckets if vbucket.history.state in _MIRRORED]
        self.mirrored = {vbucket.id for vbucket in found}
        return found

    def seqnos(self) -> Iterator[tuple[str, int]]:
        """Return how far each mirrored vbucket is, for STAT."""
        for vbucket in self._vbuckets:
            if vbucket.id in self.mirrored:
                yield f"vb_{vbucket.id}:seqno", vbucket.changes.high_seqno
                yield f"vb_{vbucket.id}:whole_seqno", vbucket.history.whole_seqno

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Mirror other vbuckets than before, or a vbucket again that others have emptied."""
        if self._is_own_event:
            return
        is_mirrored = vbucket.history.state in _MIRRORED
        is_emptied = is_mirrored and event is not VbucketEvent.STATE_CHANGED
        if is_mirrored == (vbucket.id in self.mirrored) and not is_emptied:
            return
        self.mirrored.discard(vbucket.id)
        if is_mirrored or self._has_positions:
            self.restart.set()

    # Changes

    def store(self, change: Change, delivery: Delivery) -> None:
        """Store one change, or roll back where it is a rollback."""
        vbucket = self._vbuckets[change.vbucket]
        if change.event == Event.ROLLBACK:
            self.move(vbucket, change.seqno or 0, delivery.logs.get(vbucket.id, ()))
            if (
                vbucket.changes.high_seqno != change.seqno
            ):  # it went back further, and the stream would leave out changes
                self._mirror_again(vbucket)
            return
        event, key, value, flags, datatype, is_told = arrived(change)
        seqno = change.seqno
        if seqno is not None:
            if seqno <= vbucket.changes.high_seqno:  # others have written here
                self.move(vbucket, 0, ())
                self._mirror_again(vbucket)
                return
            self.complete(vbucket, delivery.positions[vbucket.id].snap_start, before=seqno)
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
        self.changes += 1
        if is_told:
            self._with_events.add(vbucket.id)
        self._served.changed.add(vbucket.id)

    def complete(self, vbucket: Vbucket, end: int, before: int = MAX_SEQNO) -> None:
        """End the snapshot that a vbucket is in if it has come to its end, and if the next change lies behind that."""
        if vbucket.changes.high_seqno == end < before and vbucket.id in self._incomplete:
            vbucket.history.end_snapshot(hides=self._incomplete.pop(vbucket.id))
            self._served.changed.add(vbucket.id)

    def _mirror_again(self, vbucket: Vbucket) -> None:
        """Take nothing more of what arrives for a vbucket, and ask for it again from what it has now."""
        self.mirrored.discard(vbucket.id)
        self.restart.set()

    # Scopes and collections

    def take_event_receivers(self) -> list[Vbucket]:
        """Return the vbuckets that have received system events since the last call."""
        received, self._with_events = self._with_events, set()
        return [self._vbuckets[number] for number in received]

    def take_manifest(self, vbucket: Vbucket) -> None:
        """Give the bucket the scopes and collections of a vbucket, if they are newer.

        The events of a change of the manifest all name the uid before, but for the last. So it is there as a whole.
        """
        if (vbucket.collections.manifest_uid or 0) <= self._served.store.manifests.current.uid:
            return
        self._served.changed.add(vbucket.id)
        try:
            self._served.change_manifest(vbucket.collections.manifest())
        except (OutOfRange, CannotApplyManifest) as error:
            logger.warning("bucket %s keeps its own collections: %s", self._served.store.name, error)

    # Histories

    def reconcile(self, vbucket: Vbucket, log: FailoverLog) -> None:
        """Go back to the last complete snapshot that the upstream of this failover log has as well."""
        common = common_seqno(vbucket.history.failover_log, vbucket.changes.high_seqno, log)
        self.move(vbucket, min(common, vbucket.history.whole_seqno), log)

    def move(self, vbucket: Vbucket, seqno: int, log: FailoverLog) -> None:
        """Go back to a seqno, and take over the upstream's failover log if it is known.

        Consumers are told if they could notice. Where a vbucket cannot end at the seqno, it goes back further.
        """
        whole, before = vbucket.history.whole_seqno, vbucket.history.failover_log
        try:
            if seqno < vbucket.changes.high_seqno:
                vbucket.rollback(seqno)
                self._incomplete.pop(vbucket.id, None)
            if log and log[0].vbuuid and sanitised(log) != vbucket.history.failover_log:
                vbucket.history.set_failover_log(log)
        finally:  # the second may be refused after the first was not
            if vbucket.history.whole_seqno < whole:
                self.rollbacks += 1
                logger.info(
                    "vbucket %d of %s: back from %d to %d",
                    vbucket.id,
                    self._upstream,
                    whole,
                    vbucket.changes.high_seqno,
                )
                self._report(
                    vbucket, VbucketEvent.STATE_CHANGED if vbucket.changes.high_seqno else VbucketEvent.FLUSHED
                )
            elif vbucket.history.failover_log != before:
                self._report(vbucket, VbucketEvent.STATE_CHANGED)

    def _report(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        self._is_own_event = True
        try:
            self._served.tell(vbucket, event)
        finally:
            self._is_own_event = False
        self._served.changed.add(vbucket.id)


def position_of(vbucket: Vbucket, log: FailoverLog) -> Position:
    """Return where to go on with a vbucket that has nothing but what the upstream of this failover log has.

    It knows no older end: a producer that refuses even this one has lost its history, and the vbucket starts from zero.
    """
    seqno = vbucket.changes.high_seqno
    if not seqno:
        return BEGINNING
    return Position(seqno=seqno, vbuuid=branch_at(log, seqno).vbuuid, snap_start=seqno, snap_end=seqno)
