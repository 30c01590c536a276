"""The stream of documents to a page of the dashboard, as server-sent events."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.client.dashboard.static_files import SECURITY_HEADERS
from penstock.node.auth.roles import Privilege
from penstock.node.http.dashboard.bucket_sampler import BucketSampler
from penstock.node.http.dashboard.viewer_documents import ViewerDocuments
from penstock.node.http.pages.http_authentication import PageRequest


class EventStream(Response):
    """Sends a document now and after each sample, as events.

    The stream ends when the client leaves, the bucket is deleted, the node stops, or the user's roles change. A client
    that reads slowly delays its own documents only: each has the newest sample.
    """

    def __init__(self, request: PageRequest, sampler: BucketSampler) -> None:
        """Make a stream."""
        # "close" lets the connection discard further requests, and still notice when the client leaves.
        headers = {**SECURITY_HEADERS, "cache-control": "no-store", "connection": "close"}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._request, self._sampler = request, sampler
        self._wake = asyncio.Event()
        self._left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream until it ends."""
        streams = self._request.state.streams
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        leaving = asyncio.get_running_loop().create_task(self._wait_until_left(receive))
        streams.add(self._wake)
        try:
            if scope["method"] != "HEAD":
                await self._send_documents(send)
        finally:
            streams.discard(self._wake)
            leaving.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    @property
    def _is_over(self) -> bool:
        return self._left or self._request.state.stopping or self._sampler.bucket.is_deleted

    async def _send_documents(self, send: Send) -> None:
        document = ViewerDocuments(self._request, self._sampler)
        name = self._sampler.bucket.store.name
        while not self._is_over:
            if not (self._request.is_user_current() and self._request.user.has_privilege(Privilege.SIMPLE_STATS, name)):
                return
            body = b"data: " + msgspec.json.encode(await document.make_next()) + b"\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._sampler.seconds)
            self._wake.clear()

    async def _wait_until_left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._left = True
        self._wake.set()
