"""The differences between two manifests, and the system events that report them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.store.definition.manifest import Collection, Manifest, Scope
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.messages import system_event


class ManifestChange(NamedTuple):
    """One difference of a later manifest from an earlier one.

    Attributes:
        subject: the collection or scope as it is in the later manifest. If it was dropped: as in the earlier manifest.
    """

    kind: SystemEventKind
    subject: Collection | Scope


def compare_manifests(old: Manifest, new: Manifest) -> list[ManifestChange]:
    """Return the changes from one manifest to another, in the order in which vbuckets report them.

    First drops: collections before their scopes. Then creations: scopes before their collections. Then modifications.
    Changes of one kind are in the order of ids.
    """
    return [
        *_select_changes(SystemEventKind.COLLECTION_END, old.collections, lambda n: n not in new.collections),
        *_select_changes(SystemEventKind.SCOPE_DROP, old.scopes_by_id, lambda n: n not in new.scopes_by_id),
        *_select_changes(SystemEventKind.SCOPE_CREATE, new.scopes_by_id, lambda n: n not in old.scopes_by_id),
        *_select_changes(SystemEventKind.COLLECTION_BEGIN, new.collections, lambda n: n not in old.collections),
        *_select_changes(
            SystemEventKind.COLLECTION_MODIFY,
            new.collections,
            lambda n: n in old.collections and old.collections[n] != new.collections[n],
        ),
    ]


def _select_changes(
    kind: SystemEventKind, subjects: Mapping[int, Collection] | Mapping[int, Scope], wanted: Callable[[int], bool]
) -> Iterator[ManifestChange]:
    return (ManifestChange(kind, subjects[number]) for number in sorted(subjects) if wanted(number))


def make_event_subjects(
    changes: Iterable[ManifestChange], before: int, uid: int
) -> list[tuple[SystemEventKind, system_event.Subject]]:
    """Return the contents of the system events for the changes between two manifests.

    Only the last event has the new uid. A consumer that has not received it does not have the new manifest yet.

    Args:
        changes: all changes between the manifests.
        before: the uid of the earlier manifest.
        uid: the uid of the later manifest.

    Returns:
        The kind and content of each event, in the order of the changes.
    """
    found = list(changes)
    uids = [before] * (len(found) - 1) + [uid]
    return [(change.kind, _make_subject(change, of)) for change, of in zip(found, uids, strict=False)]


def _make_subject(change: ManifestChange, uid: int) -> system_event.Subject:
    subject = change.subject
    if isinstance(subject, Scope):
        if change.kind is SystemEventKind.SCOPE_DROP:
            return system_event.DroppedScope(uid, subject.id)
        return system_event.CreatedScope(uid, subject.id, subject.name)
    if change.kind is SystemEventKind.COLLECTION_END:
        return system_event.DroppedCollection(uid, subject.scope_id, subject.id)
    return system_event.CreatedCollection(
        uid, subject.scope_id, subject.id, subject.name, max_ttl=subject.max_ttl, history=subject.history
    )
