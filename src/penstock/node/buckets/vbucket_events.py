"""Events of whole vbuckets, and the objects that are notified of them."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from penstock.store.documents.vbucket import Vbucket


class VbucketEvent(Enum):
    """What happened to a whole vbucket. Listeners are notified after the event."""

    STATE_CHANGED = "state changed"
    DELETED = "deleted"
    FLUSHED = "flushed"
    HANDED_OVER = "handed over to another node"


class VbucketListener(Protocol):
    """Is notified of events of whole vbuckets."""

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Handle an event. The method may not await, and may send messages only in a turn of their own."""


class WaitingStream(Protocol):
    """A stream that waits for changes of one vbucket."""

    @property
    def vbucket(self) -> Vbucket:
        """The stream's vbucket."""

    def wake(self) -> None:
        """Send the new changes. The bucket calls this once; then the stream has to wait again."""
