"""The manifest of a bucket, and the system events that bring its vbuckets up to date with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.store.bucket.bucket_record import BucketRecord
from penstock.store.definition.manifest import DEFAULT_MANIFEST, Manifest
from penstock.store.definition.manifest_changes import compare_manifests, make_event_subjects
from penstock.store.definition.manifest_json import manifest_from_dict, manifest_to_dict
from penstock.store.documents.document_writer import DocumentWriter
from penstock.store.documents.time_to_live import make_time_limits
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.event_frames import EventFrame, pack_events
from penstock.store.log.change_log import Log


class ManifestStep(NamedTuple):
    """A change of the manifest.

    Attributes:
        before: the uid of the manifest before the change.
        uid: the uid of the manifest after the change.
        events: the events that each active vbucket writes for the change.
    """

    before: int
    uid: int
    events: Sequence[EventFrame]


class BucketManifest:
    """The scopes and collections of a bucket, and the system events that its vbuckets write about them.

    Args:
        log: the log of the bucket.
        record: stores the manifest.
        writer: the writer of all vbuckets, which applies the time limits.

    Attributes:
        current: the newest manifest.
    """

    def __init__(self, log: Log, record: BucketRecord, writer: DocumentWriter) -> None:
        content = record.content
        self.current = manifest_from_dict(content["manifest"]) if "manifest" in content else DEFAULT_MANIFEST
        self._log = log
        self._record = record
        self._writer = writer
        self._first = 0, pack_events(())  # a manifest's uid, and the events of a vbucket without a history for it

    def change_manifest(self, manifest: Manifest) -> ManifestStep | None:
        """Replace the manifest, on disk first.

        Args:
            manifest: a manifest that this bucket or another node made from an earlier one.

        Returns:
            The change, whose events the vbuckets have yet to write. None if the bucket has this manifest already.

        Raises:
            OutOfRange: the uid is below the current one.
            CannotApplyManifest: the manifest contradicts the current one, as Manifest.accept_successor states.
            TemporaryFailure: the disk does not accept the manifest; nothing was changed.
        """
        old, new = self.current, self.current.accept_successor(manifest)
        if new.uid == old.uid:
            return None
        self._log.room.check_fault()
        self._record.write("manifest", manifest_to_dict(new))
        self.current = new
        self.update_time_limits()
        return ManifestStep(
            old.uid, new.uid, pack_events(make_event_subjects(compare_manifests(old, new), old.uid, new.uid))
        )

    def update_time_limits(self) -> None:
        """Apply the time limits of the manifest and of the bucket's settings to documents that are stored later."""
        self._writer.time_limits = make_time_limits(self.current, self._log.compactions.settings.max_ttl)

    def update_vbucket(self, vbucket: Vbucket, steps: Sequence[ManifestStep]) -> None:
        """Make a vbucket write the system events that it lacks.

        A vbucket keeps a newer manifest that it received from the node whose copy it is.

        Args:
            vbucket: an active vbucket.
            steps: changes of which the vbucket may lack some, oldest first.

        Raises:
            REFUSED: TemporaryFailure or OutOfMemory; the log accepts no changes.
        """
        collections = vbucket.collections
        if collections.manifest_uid == self.current.uid:
            return
        for step in steps:
            if collections.manifest_uid == step.before:
                collections.write_events(step.events)
                collections.set_manifest_uid(step.uid)
        if collections.manifest_uid != self.current.uid:
            self._write_missing_events(vbucket)

    def _write_missing_events(self, vbucket: Vbucket) -> None:
        """Compare a vbucket's events with the manifest, and make the vbucket write those that it lacks."""
        collections = vbucket.collections
        doubtful = collections.manifest_uid is None
        if doubtful:
            collections.rebuild_state()
        before, manifest = collections.manifest_uid or 0, self.current
        if before > manifest.uid:
            return
        if vbucket.changes.collection_state is None:
            events = self.make_first_events()
        else:
            changes = compare_manifests(collections.read_manifest(), manifest)
            events = pack_events(make_event_subjects(changes, before, manifest.uid))
        if events:
            collections.write_events(events)
            if doubtful:
                collections.rebuild_state()  # counts also the documents of collections whose first event was lost
        collections.set_manifest_uid(manifest.uid)

    def make_first_events(self) -> list[EventFrame]:
        """Return the events that a vbucket without a history writes for the current manifest."""
        manifest = self.current
        if self._first[0] != manifest.uid:
            changes = compare_manifests(DEFAULT_MANIFEST, manifest)
            self._first = manifest.uid, pack_events(make_event_subjects(changes, 0, manifest.uid))
        return self._first[1]
