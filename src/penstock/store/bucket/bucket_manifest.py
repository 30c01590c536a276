"""The manifest of a bucket, and the system events with which a vbucket comes up to it."""

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

__all__ = ["BucketManifest", "ManifestStep"]


class ManifestStep(NamedTuple):
    """A change of the manifest.

    Attributes:
        before: uid of the manifest that it changed.
        uid: of the manifest that it made.
        events: what each active vbucket writes about it.
    """

    before: int
    uid: int
    events: Sequence[EventFrame]


class BucketManifest:
    """Which scopes and collections a bucket has, and what vbuckets write about that.

    Attributes:
        current: the newest manifest.
    """

    def __init__(self, log: Log, record: BucketRecord, writer: DocumentWriter) -> None:
        said = record.content
        self.current = manifest_from_dict(said["manifest"]) if "manifest" in said else DEFAULT_MANIFEST
        self._log = log
        self._record = record
        self._writer = writer
        self._first = 0, pack_events(())  # a manifest's uid, and what a vbucket without a history writes of it

    def change_manifest(self, manifest: Manifest) -> ManifestStep | None:
        """Let these be the scopes and collections, on disk first. Returns None if they are so already.

        Raises as Manifest.followed_by does, and TemporaryFailure, with nothing changed, where the disk does not take
        it.
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
        """Let documents that are stored from now on live as long as the manifest and the bucket's settings allow."""
        self._writer.time_limits = make_time_limits(self.current, self._log.compactions.settings.max_ttl)

    def update_vbucket(self, vbucket: Vbucket, steps: Sequence[ManifestStep]) -> None:
        """Let a vbucket write the system events that it lacks. steps: those of which it may lack some.

        A vbucket that has a newer manifest, from where it is a copy of, keeps that. Raises TemporaryFailure or
        OutOfMemory.
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
        """Let a vbucket write events of which it has to be found out first whether it lacks them."""
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
                collections.rebuild_state()  # what is in collections whose beginning was lost counts, too
        collections.set_manifest_uid(manifest.uid)

    def make_first_events(self) -> list[EventFrame]:
        """Return what a vbucket without a history writes of the manifest."""
        manifest = self.current
        if self._first[0] != manifest.uid:
            changes = compare_manifests(DEFAULT_MANIFEST, manifest)
            self._first = manifest.uid, pack_events(make_event_subjects(changes, 0, manifest.uid))
        return self._first[1]
