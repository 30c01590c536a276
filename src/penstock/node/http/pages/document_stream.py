"""Documents that are sent again whenever they change, on a connection that stays open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.http.pages.http_authentication import Visit

__all__ = ["SEPARATOR", "MapStream"]

SEPARATOR = b"\n\n\n\n"
"""Behind each document."""


class MapStream(Response):
    """Sends a bucket's document now and after each change of its map, until the peer has enough, the bucket is gone, or
    the user has other roles.

    make: returns the document. A peer that reads slowly gets the newest, not all.
    """

    def __init__(self, visit: Visit, served: ServedBucket, make: Callable[[], bytes]) -> None:
        # No request behind it will be served, and the connection is read on, to see the client leave.
        super().__init__(media_type="application/json", headers={"connection": "close"})
        del self.headers["content-length"]
        self._visit, self._http = visit, visit.http
        self._served = served
        self._make = make
        self._changed = asyncio.Event()
        self._left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        leaving = asyncio.get_running_loop().create_task(self._wait_until_left(receive))
        unwatch = self._served.map.watch(self._changed.set)
        self._http.streams.add(self._changed)
        try:
            if scope["method"] != "HEAD":
                await self._stream(send)
        finally:
            self._http.streams.discard(self._changed)
            unwatch()
            leaving.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stream(self, send: Send) -> None:
        sent = 0
        while not (self._left or self._http.stopping or self._served.deleted):
            self._changed.clear()
            if self._served.map.revision != sent:
                if not self._visit.is_current():
                    return
                sent = self._served.map.revision
                await send({"type": "http.response.body", "body": self._make() + SEPARATOR, "more_body": True})
            await self._changed.wait()

    async def _wait_until_left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._left = True
        self._changed.set()
