"""A dashboard as a site of a process's HTTP server: its files, its document, and the stream of documents."""

from __future__ import annotations

import secrets
import threading
from typing import Any, Final, Protocol, Self

import msgspec

from penstock.client.dashboard.shown_change import REQUEST_HEADER
from penstock.client.dashboard.static_files import ASSETS, PREFIX, SECURITY_HEADERS, find_file
from penstock.client.signals.web_listener import WebListener
from penstock.client.signals.web_server import WebAccess, WebRequest, WebResponse
from penstock.errors import AccessDenied, Error, UsageError
from penstock.names import quote_part

MAX_VIEWERS: Final = 32
"""Event streams at once. Each takes a thread."""

_RETRY_SECONDS = 2.0


class DocumentStream(Protocol):
    """The documents for one viewer."""

    def make_next(self) -> tuple[Any, float]:
        """Return the next document, and the seconds until the one after it. Raises Error or OSError."""


class DocumentSource(Protocol):
    """Makes the documents of a dashboard. Its methods are called on the threads of the server."""

    page: str
    """The name of the file that shows the documents."""

    def open_stream(self) -> DocumentStream:
        """Return the documents for a new viewer."""

    def find_detail(self, path: str) -> Any | None:
        """Return a document of another path below the page, None if there is none. Raises Error or OSError."""

    def answer_post(self, path: str, body: bytes) -> Any | None:
        """Return the answer to a POST; None if the path has none. Raises UsageError for its body, Error or OSError."""


class DashboardSite:
    """Answers the paths of a dashboard. A context manager: at its end, its event streams end.

    The files of the page are no secret. All else needs the listener's login, or without a login a random token, because
    other users of the machine reach a port on loopback too. The token is in no path and no log. The page takes it from
    the part of its address that browsers send to no server, and sends it as a header.

    Args:
        source: makes the documents.
        listener: the address with its login.

    Attributes:
        token: the token; None if there is a login.
    """

    def __init__(self, source: DocumentSource, listener: WebListener) -> None:
        self.token = secrets.token_urlsafe(24) if listener.login is None else None
        self._source = source
        self._listener = listener
        self._access = WebAccess(listener.login, self.token)
        self._ending = threading.Event()
        self._seats = threading.Semaphore(MAX_VIEWERS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()

    def make_url(self, port: int) -> str:
        """Return the address of the page, with the token."""
        url = self._listener.make_url(port, PREFIX)
        return url if self.token is None else f"{url}#token={quote_part(self.token)}"

    def __call__(self, request: WebRequest) -> WebResponse | None:
        """Answer a request; None for a path that is not the dashboard's."""
        if request.path != PREFIX and not request.path.startswith(f"{PREFIX}/"):
            return None
        refusal = self._access.refuse(request)
        if request.method != "POST" and (request.path == PREFIX or request.path.startswith(f"{ASSETS}/")):
            name = self._source.page if request.path == PREFIX else request.path.removeprefix(f"{ASSETS}/")
            # A browser can send a login with its first request, but the token only when the page has been loaded.
            return refusal if refusal is not None and self.token is None else _make_file(request, name)
        if refusal is not None:
            return refusal
        if request.method == "POST":
            return self._answer_post(request)
        if request.path == f"{PREFIX}/events":
            return self._make_event_stream()
        try:
            if request.path == f"{PREFIX}/state":
                return _make_json(self._source.open_stream().make_next()[0])
            found = self._source.find_detail(request.path.removeprefix(PREFIX))
        except (Error, OSError) as error:
            return WebResponse.from_text("503 Service Unavailable", f"no answer: {error}")
        return None if found is None else _make_json(found)

    def _answer_post(self, request: WebRequest) -> WebResponse:
        if request.get_header(REQUEST_HEADER) != "dashboard":
            return WebResponse.from_text("403 Forbidden", f"a request without the header {REQUEST_HEADER}: dashboard")
        body = request.read_body()
        if body is None:
            return WebResponse.from_text("413 Content Too Large")
        try:
            found = self._source.answer_post(request.path.removeprefix(PREFIX), body)
        except UsageError as error:
            return _make_json({"errors": {"_": str(error)}}, "400 Bad Request")
        except AccessDenied as error:
            return WebResponse.from_text("403 Forbidden", str(error))
        except (Error, OSError) as error:
            return WebResponse.from_text("503 Service Unavailable", f"no answer: {error}")
        return WebResponse.refuse_method() if found is None else _make_json(found)

    def _make_event_stream(self) -> WebResponse:
        if not self._seats.acquire(blocking=False):
            return WebResponse.from_text("503 Service Unavailable", f"{MAX_VIEWERS} pages are open already")
        events = _EventStream(self._source, self._ending, self._seats)
        return WebResponse("200 OK", "text/event-stream", events, SECURITY_HEADERS)


class _EventStream:
    """The server-sent events for one viewer. The server closes it, also if it was not iterated."""

    def __init__(self, source: DocumentSource, ending: threading.Event, seats: threading.Semaphore) -> None:
        self._stream: DocumentStream | None = None
        self._source = source
        self._ending = ending
        self._seats: threading.Semaphore | None = seats
        self._wait_seconds = 0.0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """Return the next event when it is due."""
        if self._ending.wait(self._wait_seconds):
            raise StopIteration
        try:
            if self._stream is None:
                self._stream = self._source.open_stream()
            document, self._wait_seconds = self._stream.make_next()
        except (Error, OSError) as error:
            self._wait_seconds = _RETRY_SECONDS
            document = {"problem": f"No answer: {error}", "seconds": _RETRY_SECONDS}
        return b"data: " + msgspec.json.encode(document) + b"\n\n"

    def close(self) -> None:
        """Make room for another viewer."""
        seats, self._seats = self._seats, None
        if seats is not None:
            seats.release()


def _make_json(document: Any, status: str = "200 OK") -> WebResponse:
    return WebResponse(status, "application/json", msgspec.json.encode(document), SECURITY_HEADERS)


def _make_file(request: WebRequest, name: str) -> WebResponse | None:
    found = find_file(name)
    if found is None:
        return None
    headers = found.make_headers()
    if request.get_header("if-none-match") == found.tag:
        return WebResponse("304 Not Modified", found.media_type, b"", headers)
    return WebResponse("200 OK", found.media_type, found.content, headers)
