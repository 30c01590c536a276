"""What a bucket needs done by itself: loading its keys after a start, and ending documents whose time is over.

All of it runs on the event loop, in slices of a few milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.store.bucket import Bucket

__all__ = ["PAGER_SECONDS", "Upkeep"]

PAGER_SECONDS = 600.0
"""From the end of one round of the expiry pager to the next. Source: kv_engine exp_pager_stime."""

_LOOK_SECONDS = 5.0


class Upkeep:
    """Of one bucket. To be made, and used, on the event loop's thread.

    pages: rounds of the expiry pager. keys_loaded: whether the start has left nothing to load. look: called every few
    seconds, and where documents have expired.
    """

    def __init__(self, store: Bucket, *, pager_seconds: float, look: Callable[[], None]) -> None:
        self.store = store
        self.pages = 0
        self.keys_loaded = False
        self._pager_seconds = pager_seconds
        self._pager_enabled = True
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._loader: asyncio.Handle = self._loop.call_soon(self._load)
        self._pager = self._loop.call_later(pager_seconds, self.page)
        self._looker = self._loop.call_later(_LOOK_SECONDS, self._look_around)

    def _load(self) -> None:
        began = self._loop.time()
        if self.store.load_keys():
            # As long again for the others: whoever asks for a document meanwhile waits for one slice at most.
            self._loader = self._loop.call_later(self._loop.time() - began, self._load)
        else:
            self.keys_loaded = True

    def set_pager(self, *, seconds: float | None = None, enabled: bool | None = None) -> None:
        """Change how often the expiry pager runs, and whether it does; None: as before."""
        self._pager.cancel()
        self._pager_seconds = self._pager_seconds if seconds is None else seconds
        self._pager_enabled = self._pager_enabled if enabled is None else enabled
        self._call_pager(self._pager_seconds)

    def _call_pager(self, seconds: float) -> None:
        if self._pager_enabled:
            self._pager = self._loop.call_later(seconds, self.page)

    def page(self) -> None:
        """Go on with a round of the expiry pager, or begin one now."""
        self._pager.cancel()
        began = self._loop.time()
        more = self.store.expire()
        self._look()
        self.pages += not more
        self._call_pager(self._loop.time() - began if more else self._pager_seconds)

    def _look_around(self) -> None:
        self._look()
        self._looker = self._loop.call_later(_LOOK_SECONDS, self._look_around)

    def close(self) -> None:
        for timer in (self._loader, self._pager, self._looker):
            timer.cancel()
