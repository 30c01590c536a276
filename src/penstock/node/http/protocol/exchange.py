"""One HTTP request and its response, between a connection and the ASGI application."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Protocol

import h11
from starlette.types import ASGIApp, Message, Scope

from penstock.names import unquote_part
from penstock.node.http.protocol.request_reader import RequestRefused, split_target

logger = logging.getLogger("penstock.node")


def make_scope(request: h11.Request, transport: asyncio.BaseTransport, scheme: str) -> Scope:
    """Return the ASGI scope of a request. Raises RequestRefused for an invalid target."""
    path, query = split_target(request)
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.http_version.decode("ascii"),
        "server": _get_address(transport, "sockname"),
        "client": _get_address(transport, "peername"),
        "scheme": scheme,
        "method": request.method.decode("ascii"),
        "root_path": "",
        "path": _decode_path(path),
        "raw_path": path,
        "query_string": query,
        "headers": list(request.headers),
        "state": {"certificate": transport.get_extra_info("peercert")},
    }


def _decode_path(path: bytes) -> str:
    """Return the decoded path.

    Raises:
        RequestRefused: it is not UTF-8. Two names would become one if other bytes were replaced.
    """
    try:
        return unquote_part(path.decode("ascii"))
    except UnicodeDecodeError:
        raise RequestRefused(400, "invalid HTTP request: the path is not UTF-8") from None


def get_reason_phrase(status: int) -> bytes:
    """Return the text behind a status code: clients of HTTP/1.0 show it."""
    return HTTPStatus(status).phrase.encode("ascii")


def _get_address(transport: asyncio.BaseTransport, name: str) -> tuple[str, int] | None:
    found = transport.get_extra_info(name)
    return None if found is None else (found[0], found[1])


class ExchangeOutput(Protocol):
    """Writes the response of an exchange."""

    def write(self, data: bytes) -> None:
        """Write a part of the response."""

    async def drain(self) -> None:
        """Wait until the client reads."""


class ExchangePipeline(Protocol):
    """The pipeline that an exchange belongs to."""

    def update_reading(self) -> None:
        """Pause or resume reading: there must be room for more bytes."""

    def exchange_finished(self) -> None:
        """Continue after a complete response."""


class Exchange:
    """A request that is served by the application.

    Attributes:
        protocol: h11's state of the request and its response.
        unread: the part of the body that the application has not taken yet.
        request_complete: the whole body was received.
        response_complete: the whole response was written, or was given up.
        keep_alive: the connection may serve another request afterwards.
    """

    def __init__(
        self,
        output: ExchangeOutput,
        pipeline: ExchangePipeline,
        protocol: h11.Connection,
        scope: Scope,
        *,
        keep_alive: bool,
    ) -> None:
        self.protocol = protocol
        self.unread = bytearray()
        self.request_complete = self.response_complete = False
        self.keep_alive = keep_alive
        self._output = output
        self._pipeline = pipeline
        self._scope = scope
        self._started = False
        self._head = b""
        self._body_delivered = False
        self._disconnected = False
        self._changed = asyncio.Event()

    async def run(self, app: ASGIApp) -> None:
        """Let the application serve the request. An error of the application ends the connection."""
        try:
            await app(self._scope, self._receive, self._send)
        except Exception:  # an error in one page must not end the node
            logger.exception("HTTP: %s %s failed", self._scope["method"], self._scope["path"])
        if not self.response_complete:
            self.response_complete, self.keep_alive = True, False
            self._pipeline.exchange_finished()

    # Called by the connection

    def receive_body(self, data: bytes | bytearray) -> None:
        """Add a part of the body."""
        if not self.response_complete:  # otherwise the application does not read it
            self.unread += data
            self._changed.set()

    def receive_end(self) -> None:
        """Note the end of the body."""
        self.request_complete = True
        self._changed.set()

    def disconnect(self) -> None:
        """Report to the application that the client has left, or that the rest of its request is invalid."""
        self._disconnected, self.keep_alive = True, False
        self._changed.set()

    # Called by the application

    async def _receive(self) -> Message:
        while True:
            if self.protocol.they_are_waiting_for_100_continue and not self._started:
                event = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                self._output.write(self.protocol.send(event))
            if self.unread or (self.request_complete and not self._body_delivered):
                data = bytes(self.unread)
                self.unread.clear()
                self._body_delivered = self.request_complete
                self._pipeline.update_reading()
                return {"type": "http.request", "body": data, "more_body": not self._body_delivered}
            if self._disconnected or self.response_complete:
                return {"type": "http.disconnect"}
            self._changed.clear()
            await self._changed.wait()

    async def _send(self, message: Message) -> None:
        await self._output.drain()
        if message["type"] == "http.response.start":
            headers = [(bytes(name), bytes(value)) for name, value in message["headers"]]
            if (b"connection", b"close") in headers:
                self.keep_alive = False
                self._pipeline.update_reading()
            elif not self.keep_alive:
                headers.append((b"connection", b"close"))
            self._started = True
            status = message["status"]
            event = h11.Response(status_code=status, headers=headers, reason=get_reason_phrase(status))
            self._head = self.protocol.send(event) or b""  # it goes out with the first part of the body
            return
        pieces = [self._head]
        self._head = b""
        if message.get("body") and self._scope["method"] != "HEAD":
            pieces.append(self.protocol.send(h11.Data(data=message["body"])) or b"")
        if not message.get("more_body"):
            pieces.append(self.protocol.send(h11.EndOfMessage()) or b"")
        self._output.write(b"".join(pieces))
        if not message.get("more_body"):
            self.response_complete = True
            self._changed.set()
            self._pipeline.exchange_finished()
