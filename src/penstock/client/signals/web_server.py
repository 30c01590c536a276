"""The HTTP server of a process that serves pages beside its work: metrics, the dashboard. Each site has some paths."""

from __future__ import annotations

import base64
import hmac
import io
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from penstock.client.login.credentials import Credentials
from penstock.client.signals.web_listener import WebListener
from penstock.digits import read_digits
from penstock.errors import UsageError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_MOST_BODY_BYTES = 64 * 1024

_REQUEST_SECONDS = 20.0
"""Within which a client must send its request, and take each part of the response."""


class WebRequest(NamedTuple):
    """A request with the method GET, HEAD or POST.

    Attributes:
        path: the path, decoded.
        headers: headers by their names in WSGI, such as HTTP_ACCEPT.
        method: the method.
    """

    path: str
    headers: Mapping[str, Any]
    method: str = "GET"

    def get_header(self, name: str) -> str:
        """Return a header, empty if the request does not have it."""
        return str(self.headers.get(f"HTTP_{name.upper().replace('-', '_')}", ""))

    def read_body(self) -> bytes | None:
        """Return the body; None if it is too long, or its length is not given. A site checks the login first."""
        length = read_digits(str(self.headers.get("CONTENT_LENGTH") or ""), _MOST_BODY_BYTES)
        if length is None:
            return None
        body: bytes = self.headers["wsgi.input"].read(length)
        return body


@dataclass(frozen=True, slots=True)
class WebResponse:
    """A response.

    Attributes:
        status: status code and reason.
        media_type: for the header Content-Type.
        body: the bytes, or parts that are sent one by one.
        headers: further headers.
    """

    status: str
    media_type: str
    body: bytes | Iterable[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_text(cls, status: str, text: str = "", **headers: str) -> WebResponse:
        """Return a response with a line of text; default: the reason."""
        return cls(status, "text/plain; charset=utf-8", f"{text or status[4:]}\n".encode(), headers)

    @classmethod
    def refuse_method(cls) -> WebResponse:
        """Return the response to a method that a path does not have."""
        return cls.from_text("405 Method Not Allowed", allow="GET, HEAD")


Site = Callable[[WebRequest], WebResponse | None]
"""Answers the requests for its paths; None for any other path."""


class WebAccess:
    """The login or the token that requests must have.

    Args:
        login: user name and password, as in HTTP's Basic scheme.
        token: a token as in its Bearer scheme, instead of a login.
    """

    def __init__(self, login: Credentials | None = None, token: str | None = None) -> None:
        self._authorization: bytes | None = None
        self._challenge = 'Basic realm="Penstock"'
        if login is not None:
            pair = f"{login.username}:{login.password}".encode()
            self._authorization = b"Basic " + base64.b64encode(pair)
        elif token is not None:
            # Browsers ask their users for no password because of this scheme.
            self._authorization, self._challenge = f"Bearer {token}".encode(), 'Bearer realm="Penstock"'

    def refuse(self, request: WebRequest) -> WebResponse | None:
        """Return the answer to a request without the login; None for a request that has it."""
        given = request.get_header("authorization").encode("latin-1", "replace")
        if self._authorization is None or hmac.compare_digest(given, self._authorization):
            return None
        return WebResponse.from_text("401 Unauthorized", **{"www-authenticate": self._challenge})


@contextmanager
def serve_sites(sites: Sequence[Site], listener: WebListener) -> Iterator[int]:
    """Serve sites while the block runs, in threads.

    Args:
        sites: the first one that has a path answers it.
        listener: the address.

    Yields:
        The port.

    Raises:
        UsageError: the port cannot be used.
    """
    try:
        server = _SiteServer(listener, sites)
    except OSError as error:
        where = f"port {listener.port} of {listener.host}"
        raise UsageError(f"cannot serve {listener.purpose} on {where}: {error.strerror or error}") from None
    thread = Thread(target=server.serve_forever, name="penstock-http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _SiteServer(ThreadingMixIn, WSGIServer):
    """Serves each connection in a thread."""

    daemon_threads = True
    block_on_close = False  # a slow client must not delay the end of the process

    def __init__(self, listener: WebListener, sites: Sequence[Site]) -> None:
        found = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__((listener.host, listener.port), _RequestHandler)
        self.set_app(_make_application(sites))

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name in DNS, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has left."""


class _RequestHandler(WSGIRequestHandler):
    """Reads requests, and logs none of them."""

    timeout = _REQUEST_SECONDS

    def get_stderr(self) -> Any:
        """Return a place for the traceback of a client that has left: standard error belongs to the process's work."""
        return io.StringIO()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Log nothing."""


def _make_application(sites: Sequence[Site]) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """Return the WSGI application."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        response = _answer_request(sites, environ)
        headers = {"content-type": response.media_type, "cache-control": "no-store", **response.headers}
        if isinstance(response.body, bytes):
            headers["content-length"] = str(len(response.body))
        start_response(response.status, [*headers.items()])
        if environ["REQUEST_METHOD"] == "HEAD":
            _close_body(response.body)
            return [b""]
        return [response.body] if isinstance(response.body, bytes) else response.body

    return answer


def _close_body(body: object) -> None:
    """Close a body that is sent in parts, as WSGI does after the last part."""
    close = getattr(body, "close", None)
    if close is not None:
        close()


def _answer_request(sites: Sequence[Site], environ: WSGIEnvironment) -> WebResponse:
    request = WebRequest(environ.get("PATH_INFO", ""), environ, environ["REQUEST_METHOD"])
    if request.method not in ("GET", "HEAD", "POST"):
        return WebResponse.refuse_method()
    found = (response for site in sites if (response := site(request)) is not None)
    return next(found, None) or WebResponse.from_text("404 Not Found")
