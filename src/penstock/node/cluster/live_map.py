"""A cluster map that changes while clients use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from penstock.errors import KeyExists
from penstock.node.cluster.own_map import EPOCH, dump_json, next_revision
from penstock.node.cluster.pushed_map import PushedMap

_NOTIFIED_AT_ONCE = 64  # takes a millisecond: each watcher sends a message to a client

Unwatch = Callable[[], None]
"""Ends a `watch`. Further calls have no effect."""


class LiveMap:
    """The newest text of a map, made once for each revision, and the watchers of its changes.

    A map that an orchestrator has pushed replaces the own map for good. It must be used on the event loop's thread.

    Args:
        build: returns the map without its revision.
        time_ns: returns nanoseconds since the epoch.
        pushed: the map that was pushed last; None: the own map.
        store: stores a pushed map for the next start.
    """

    def __init__(
        self,
        build: Callable[[], Mapping[str, Any]],
        time_ns: Callable[[], int],
        pushed: PushedMap | None = None,
        store: Callable[[PushedMap], None] = lambda pushed: None,
    ) -> None:
        self._store = store
        self._build = build
        self._time_ns = time_ns
        self._pushed = pushed
        self._content: Mapping[str, Any] = {}
        self._body = b""
        self._epoch, self._revision = EPOCH, 0
        self._text = b""
        self._stale = True
        self._watchers: dict[object, Callable[[], None]] = {}
        self._notified_version = (0, 0)  # the newest version of which watchers were or will be notified
        self._unnotified: dict[object, None] = {}  # watchers, those that wait longest first
        self._is_scheduled = False

    @property
    def revision(self) -> int:
        """Revision of the newest map. It increases if and only if the map changes."""
        self._refresh()
        return self._revision

    @property
    def version(self) -> tuple[int, int]:
        """Epoch and revision of the newest map. Clients compare both, the epoch first."""
        self._refresh()
        return self._epoch, self._revision

    @property
    def pushed(self) -> PushedMap | None:
        """The map that an orchestrator has pushed; None if the node serves its own map."""
        return self._pushed

    @property
    def text(self) -> bytes:
        """The newest map as JSON without spaces; `rev` and `revEpoch` come first."""
        self._refresh()
        return self._text

    @property
    def content(self) -> Mapping[str, Any]:
        """The newest map without its revision."""
        self._refresh()
        return self._content

    def is_known(self, epoch: int, revision: int) -> bool:
        """Return whether a client with this revision has the newest map.

        Args:
            epoch: as the client sent it.
            revision: as the client sent it.
        """
        return (epoch, revision) >= self.version

    def replace(self, pushed: PushedMap) -> bool:
        """Serve a pushed map from now on, and notify watchers. The same map once more changes nothing.

        Clients never go back, so the map does not either.

        Returns:
            Whether the map differs from the one before.

        Raises:
            KeyExists: the map is older than the newest one, or has its version and another text.
            TemporaryFailure: the map cannot be stored. Nothing has changed.
        """
        if pushed == self._pushed:
            return False
        if (pushed.epoch, pushed.revision) <= self.version:
            found, newest = f"{pushed.epoch}:{pushed.revision}", f"{self._epoch}:{self._revision}"
            raise KeyExists(f"cluster map with revision {found}, expected one above {newest}")
        self._store(pushed)
        self._pushed = pushed
        self.invalidate()
        return True

    def invalidate(self) -> None:
        """Build the map again when it is needed next; notify watchers in a turn of their own.

        Several changes in one turn of the event loop are one revision, unless the map is read in between.
        """
        self._stale = True
        if self._watchers:
            self._notify_soon()

    def _notify_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._notify_some)

    def watch(self, callback: Callable[[], None]) -> Unwatch:
        """Call a function on the event loop after each change of the map. It must be fast and raise nothing.

        Returns:
            A function that ends the calls.
        """
        if not self._watchers:
            self._notified_version = self.version
        key = object()
        self._watchers[key] = callback

        def unwatch() -> None:
            self._watchers.pop(key, None)

        return unwatch

    def _notify_some(self) -> None:
        """Notify the next watchers. The others follow in further turns, and see the newest map of that time."""
        self._is_scheduled = False
        if self.version != self._notified_version:
            self._notified_version = self.version
            self._unnotified |= dict.fromkeys(self._watchers)
        for key in tuple(islice(self._unnotified, _NOTIFIED_AT_ONCE)):
            del self._unnotified[key]
            callback = self._watchers.get(key)
            if callback is not None:
                callback()
        if self._unnotified:
            self._notify_soon()

    def _refresh(self) -> None:
        if not self._stale:
            return
        self._stale = False
        if self._pushed is not None:
            self._content, self._text = self._pushed.content, self._pushed.text
            self._epoch, self._revision = self._pushed.epoch, self._pushed.revision
            return
        content = self._build()
        body = dump_json(content)
        if body == self._body and self._epoch == EPOCH:
            return
        self._epoch, self._revision = EPOCH, next_revision(self._revision, self._time_ns())
        self._content, self._body = content, body
        self._text = b'{"rev":%d,"revEpoch":%d,%s' % (self._revision, self._epoch, body[1:])
