"""Rolling out a flush, or a new manifest, to all vbuckets of a bucket.

A bucket of a thousand vbuckets cannot do that at once: its vbuckets are *behind* for a while. Each catches up before
its next change, before a document is read from it, or when `spread` comes to it. What it holds is the same in all
three cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.store.bucket.bucket_manifest import BucketManifest, ManifestStep
from penstock.store.definition.manifest import Manifest
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.event_frames import estimate_event_bytes
from penstock.store.history.vbucket_changes import REFUSED
from penstock.store.log.change_log import Log
from penstock.store.slices import run_slices
from penstock.wire.codec.constants import VbucketState

__all__ = ["Rollout"]

_EVENTS_AT_ONCE = 256  # a millisecond of work
_EVENTS_PER_VBUCKET = 8  # that take as long as what is written about a vbucket beside its events
_EVENTS_PER_VBUCKET_SEALED = 2  # that take as long as to seal a vbucket's part of a segment


class Rollout:
    """Flushes the active vbuckets of a bucket, and brings them up to its manifest, one after the other.

    Attributes:
        on_flush: called with each vbucket that a flush has emptied, at once.
    """

    def __init__(self, log: Log, vbuckets: Sequence[Vbucket], manifests: BucketManifest) -> None:
        self._log = log
        self._vbuckets = vbuckets
        self._manifests = manifests
        self._steps: dict[int, list[ManifestStep]] = {}  # of each vbucket that is behind
        self._unflushed: set[int] = set()  # vbuckets, of those that are behind
        self.on_flush: Callable[[Vbucket], None] = lambda _: None
        for vbucket in vbuckets:
            vbucket.changes.catch_up = self.catch_up

    @property
    def is_due(self) -> bool:
        """Whether a vbucket has yet to write events of the manifest, or to be flushed."""
        return bool(self._steps)

    def set_manifest(self, manifest: Manifest) -> None:
        """As `begin_manifest`, and all active vbuckets write down at once what has changed, as far as the log takes it.

        What was in a dropped collection is left to the eraser.
        """
        self.begin_manifest(manifest)
        run_slices(lambda: self.catch_up_some(len(self._vbuckets)))

    def begin_manifest(self, manifest: Manifest) -> None:
        """Let these be the scopes and collections. All active vbuckets are behind until they say so.

        Raises as BucketManifest.change does.
        """
        step = self._manifests.change_manifest(manifest)
        if step is not None:
            for vbucket in self._list_active():
                self._steps.setdefault(vbucket.id, []).append(step)
                vbucket.changes.is_behind = True

    def begin_flush(self) -> None:
        """Empty all active vbuckets, as `Vbucket.reset` does. They are behind until then.

        So commands on documents find the whole bucket empty from now on. Until `is_due` is false, all else may still
        find the old history of a vbucket. Raises TemporaryFailure, with nothing changed, while the log takes nothing.
        """
        self._log.room.check_fault()
        for vbucket in self._list_active():
            self._unflushed.add(vbucket.id)
            self._steps.setdefault(vbucket.id, [])
            vbucket.changes.is_behind = True

    def abandon_flush(self) -> bool:
        """Let the vbuckets that a flush has not emptied yet keep what they have; False: there are none."""
        abandoned = bool(self._unflushed)
        self._unflushed.clear()
        return abandoned

    def catch_up_some(self, events: int = _EVENTS_AT_ONCE) -> bool:
        """Let the next vbuckets that are behind catch up; False: none is behind, or the log takes nothing.

        events: how many they write, all vbuckets together; at least one vbucket's, or a segment is begun for them.
        """
        while events > 0 and self._steps:
            number, steps = next(iter(self._steps.items()))
            due = [event for step in steps for event in step.events]
            if number in self._unflushed:
                due = self._manifests.make_first_events()
            if due and self._log.room.begin_segment_for(estimate_event_bytes(due)):
                events -= _EVENTS_PER_VBUCKET_SEALED * len(self._vbuckets)
                continue
            events -= _EVENTS_PER_VBUCKET + len(due)
            try:
                self.catch_up(number)
            except REFUSED:
                return False
        return bool(self._steps)

    def catch_up(self, number: int) -> None:
        """Let a vbucket be flushed, if that is due, and write the system events that it lacks, if it is active.

        Raises TemporaryFailure or OutOfMemory; then the vbucket stays behind.
        """
        vbucket, steps = self._vbuckets[number], self._steps.pop(number, [])
        vbucket.changes.is_behind = False
        if vbucket.history.state is not VbucketState.ACTIVE:
            self._unflushed.discard(number)
            return
        try:
            if number in self._unflushed:
                self._flush(vbucket)
            else:
                self._manifests.update_vbucket(vbucket, steps)
        except REFUSED:
            self._leave_behind(number)
            raise

    def _flush(self, vbucket: Vbucket) -> None:
        """Empty a vbucket, which then has the newest manifest, too. Raises TemporaryFailure; then it stays due.

        Above the quota it stays behind the manifest: each try would measure how much memory is in use.
        """
        self._unflushed.discard(vbucket.id)
        vbucket.changes.catch_up = self._leave_behind
        try:
            vbucket.reset()
        except REFUSED:
            self._unflushed.add(vbucket.id)
            raise
        finally:
            vbucket.changes.catch_up = self.catch_up
        if not self._log.quota.is_exceeded:
            with suppress(*REFUSED):
                self.catch_up(vbucket.id)
        self.on_flush(vbucket)

    def _leave_behind(self, number: int) -> None:
        self._steps[number] = []
        self._vbuckets[number].changes.is_behind = True

    def _list_active(self) -> list[Vbucket]:
        return [vbucket for vbucket in self._vbuckets if vbucket.history.state is VbucketState.ACTIVE]
