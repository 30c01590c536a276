"""Events of whole vbuckets, and those who wait for them."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from penstock.store.documents.vbucket import Vbucket

__all__ = ["VbucketEvent", "VbucketListener", "Waiting"]


class VbucketEvent(Enum):
    """What happened to a whole vbucket. It has happened when listeners are told."""

    STATE_CHANGED = "state changed"
    DELETED = "deleted"
    FLUSHED = "flushed"


class VbucketListener(Protocol):
    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Take note; nothing may be awaited, and nothing sent but by a turn of its own."""


class Waiting(Protocol):
    """What waits for changes of one vbucket: a stream."""

    @property
    def vbucket(self) -> Vbucket: ...

    def wake(self) -> None:
        """There is something to send. Comes once; then the stream has to wait anew."""
