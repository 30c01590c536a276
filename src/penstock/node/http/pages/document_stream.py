"""Streams: documents that are sent again after each change, on a connection that stays open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.http.pages.http_authentication import PageRequest

SEPARATOR = b"\n\n\n\n"
"""Separates the documents of a stream, as in ns_server."""


class MapStream(Response):
    """Sends a bucket's document now and after each change of its map.

    The stream ends when the client leaves, the bucket is deleted, or the user's roles change. A client that reads
    slowly
    receives the newest document, and skips older ones.

    Args:
        request: the request.
        served: the bucket.
        make_document: returns the document as JSON.
    """

    def __init__(self, request: PageRequest, served: ServedBucket, make_document: Callable[[], bytes]) -> None:
        """Make a stream."""
        # "close" lets the connection discard further requests, and still notice when the client leaves.
        super().__init__(media_type="application/json", headers={"connection": "close"})
        del self.headers["content-length"]
        self._request, self._http = request, request.state
        self._served = served
        self._make_document = make_document
        self._changed = asyncio.Event()
        self._left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream until it ends."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        leaving = asyncio.get_running_loop().create_task(self._wait_until_left(receive))
        unwatch = self._served.cluster_map.watch(self._changed.set)
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
        sent: tuple[int, int] | None = None
        while not (self._left or self._http.stopping or self._served.is_deleted):
            self._changed.clear()
            if self._served.cluster_map.version != sent:
                if not self._request.is_user_current():
                    return
                sent = self._served.cluster_map.version
                await send({"type": "http.response.body", "body": self._make_document() + SEPARATOR, "more_body": True})
            await self._changed.wait()

    async def _wait_until_left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._left = True
        self._changed.set()
