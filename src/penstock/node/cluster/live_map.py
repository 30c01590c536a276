"""A cluster map that changes while others look at it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from penstock.node.cluster.topology import EPOCH, dump, revised

__all__ = ["LiveMap", "Unwatch"]

_TOLD_AT_ONCE = 64  # a millisecond: each is a message to a client

Unwatch = Callable[[], None]
"""Ends what `watch` began. May be called again."""


class LiveMap:
    """The newest text of a map, made once for each revision, and who is told of the next.

    build: returns the map but for its revision. To be used on the event loop's thread alone.
    """

    def __init__(self, build: Callable[[], Mapping[str, Any]]) -> None:
        self._build = build
        self._said: Mapping[str, Any] = {}
        self._body = b""
        self._revision = 0
        self._text = b""
        self._stale = True
        self._watchers: dict[object, Callable[[], None]] = {}
        self._told = 0  # the revision that watchers know, or are about to
        self._untold: dict[object, None] = {}  # of the watchers, first those that have waited longest
        self._telling = False

    @property
    def revision(self) -> int:
        """Of the newest map. It is higher than any before where, and only where, the map is another."""
        self._refresh()
        return self._revision

    @property
    def text(self) -> bytes:
        """The newest map as JSON, without spaces; `rev` and `revEpoch` come first."""
        self._refresh()
        return self._text

    @property
    def said(self) -> Mapping[str, Any]:
        """The newest map but for its revision."""
        self._refresh()
        return self._said

    def is_known(self, epoch: int, revision: int) -> bool:
        """Whether somebody who has this revision has nothing to learn. epoch, revision: as the peer sent them."""
        return (epoch, revision) >= (EPOCH, self.revision)

    def change(self) -> None:
        """Look whether the map is another now, when somebody asks for it; watchers are told in a turn of their own.

        So any number of changes in one turn of the event loop is one revision, unless it is asked for in between.
        """
        self._stale = True
        if self._watchers:
            self._tell_soon()

    def _tell_soon(self) -> None:
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def watch(self, callback: Callable[[], None]) -> Unwatch:
        """Have a function called, on the event loop, after each change of the map. It must not raise, or take long."""
        if not self._watchers:
            self._told = self.revision
        key = object()
        self._watchers[key] = callback

        def unwatch() -> None:
            self._watchers.pop(key, None)

        return unwatch

    def _tell(self) -> None:
        """Tell the next watchers; the others in further turns, of what is the newest map then."""
        self._telling = False
        if self.revision != self._told:
            self._told = self._revision
            self._untold |= dict.fromkeys(self._watchers)
        for key in tuple(islice(self._untold, _TOLD_AT_ONCE)):
            del self._untold[key]
            callback = self._watchers.get(key)
            if callback is not None:
                callback()
        if self._untold:
            self._tell_soon()

    def _refresh(self) -> None:
        if not self._stale:
            return
        self._stale = False
        said = self._build()
        body = dump(said)
        if body != self._body:
            self._said, self._body = said, body
            self._revision = revised(self._revision, time.time_ns())
            self._text = b'{"rev":%d,"revEpoch":%d,%s' % (self._revision, EPOCH, body[1:])
