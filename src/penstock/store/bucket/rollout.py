"""The rollout of a flush, or of a new manifest, to all vbuckets of a bucket.

For a thousand vbuckets that takes too long to be one step. So vbuckets are *behind* for a while. A vbucket catches up
before its next change, before a document is read from it, or when `catch_up_some` comes to it. Its changes are the same
in all three cases.
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

_EVENTS_AT_ONCE = 256  # a millisecond of work.
_EVENTS_PER_VBUCKET = 8  # events that take as long as the notes about one vbucket.
_EVENTS_PER_VBUCKET_SEALED = 2  # events that take as long as sealing one vbucket's part of a segment.


class Rollout:
    """Flushes the active vbuckets of a bucket, and makes them write the events of its manifest, one after the other.

    Args:
        log: the log of the bucket.
        vbuckets: all vbuckets of the bucket.
        manifests: the manifest of the bucket.

    Attributes:
        on_flush: called with each vbucket as soon as a flush has emptied it.
    """

    def __init__(self, log: Log, vbuckets: Sequence[Vbucket], manifests: BucketManifest) -> None:
        self._log = log
        self._vbuckets = vbuckets
        self._manifests = manifests
        self._steps: dict[int, list[ManifestStep]] = {}  # vbucket -> missing steps, for each vbucket that is behind
        self._unflushed: set[int] = set()  # those of the vbuckets behind that a flush has yet to empty
        self.on_flush: Callable[[Vbucket], None] = lambda _: None
        for vbucket in vbuckets:
            vbucket.changes.catch_up = self.catch_up

    @property
    def is_due(self) -> bool:
        """Whether any vbucket has yet to write events of the manifest, or to be flushed."""
        return bool(self._steps)

    def set_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest, and make all active vbuckets write its events before returning.

        A vbucket stays behind if the log refuses its events. Documents of dropped collections are left to the eraser.

        Raises:
            OutOfRange, CannotApplyManifest, TemporaryFailure: as `begin_manifest` raises them.
        """
        self.begin_manifest(manifest)
        run_slices(lambda: self.catch_up_some(len(self._vbuckets)))

    def begin_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest. All active vbuckets are behind until they have written its events.

        Raises:
            OutOfRange: the uid is below the current one.
            CannotApplyManifest: the manifest contradicts the current one.
            TemporaryFailure: the disk does not accept the manifest; nothing was changed.
        """
        step = self._manifests.change_manifest(manifest)
        if step is not None:
            for vbucket in self._list_active():
                self._steps.setdefault(vbucket.id, []).append(step)
                vbucket.changes.is_behind = True

    def begin_flush(self) -> None:
        """Begin to empty all active vbuckets, as `Vbucket.reset` does. Each is behind until it is empty.

        Commands on documents find the whole bucket empty from now on, because a vbucket catches up first. All other
        readers may find the old history of a vbucket until `is_due` is false.

        Raises:
            TemporaryFailure: the log accepts no changes; nothing was changed.
        """
        self._log.room.check_fault()
        for vbucket in self._list_active():
            self._unflushed.add(vbucket.id)
            self._steps.setdefault(vbucket.id, [])
            vbucket.changes.is_behind = True

    def abandon_flush(self) -> bool:
        """End a flush: the vbuckets that it has not emptied yet keep their documents.

        Returns:
            False if there is no such vbucket.
        """
        abandoned = bool(self._unflushed)
        self._unflushed.clear()
        return abandoned

    def catch_up_some(self, events: int = _EVENTS_AT_ONCE) -> bool:
        """Make the next vbuckets that are behind catch up.

        Args:
            events: the number of events that all of them together write. Any number above 0 gets at least one vbucket
                done, or a new segment begun for its events.

        Returns:
            False if no vbucket is behind, or the log accepts no changes.
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
        """Flush a vbucket if that is due, or make it write the system events that it lacks.

        A vbucket that is not active does neither, and is no longer behind.

        Raises:
            REFUSED: TemporaryFailure or OutOfMemory; the log accepts no changes, and the vbucket stays behind.
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
        """Empty a vbucket, and make it write the events of the newest manifest.

        Above the quota the vbucket stays behind the manifest, because each attempt would measure the memory in use.

        Raises:
            REFUSED: TemporaryFailure or OutOfMemory; the log accepts no changes, and the flush stays due.
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
