"""HTTP client for tests: each request has its own connection, and a reader for document streams."""

import base64
import http.client
import json
import socket
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.patience import PATIENCE

SEPARATOR = b"\n\n\n\n"


class WebResponse(NamedTuple):
    """Response to an HTTP request, with its whole body."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class WebClient:
    """HTTP client of one node.

    Attributes:
        node: the node that gets the requests.
        port: the node's HTTP port, unless given.
        login: user name and password, or None to send no Authorization header.
        context: TLS context for HTTPS, or None for plain HTTP.
    """

    def __init__(self, node, login=None, *, port=None, context=None):
        self.node = node
        self.port = node.http_port if port is None else port
        self.login = login
        self.context = context

    def connect(self):
        if self.context is not None:
            return http.client.HTTPSConnection(self.node.host, self.port, timeout=PATIENCE, context=self.context)
        return http.client.HTTPConnection(self.node.host, self.port, timeout=PATIENCE)

    def make_headers(self, more=()):
        found = dict(more)
        if self.login is not None:
            found["Authorization"] = "Basic " + base64.b64encode(":".join(self.login).encode()).decode()
        return found

    def ask(self, method, path, form=None, *, body=None, headers=()):
        """Send a request and return the response.

        Args:
            method: HTTP method.
            path: target of the request line.
            form: fields of a form, which become the body.
            body: any bytes as the body, in place of a form.
            headers: more headers.
        """
        connection = self.connect()
        try:
            if form is not None:
                body = urlencode(form)
                headers = {"Content-Type": "application/x-www-form-urlencoded", **dict(headers)}
            connection.request(method, path, body, self.make_headers(headers))
            answer = connection.getresponse()
            return WebResponse(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def get_json(self, path):
        answer = self.get(path)
        assert answer.status == 200, answer
        return answer.json

    def post(self, path, **form):
        return self.ask("POST", path, form)

    def delete(self, path):
        return self.ask("DELETE", path)

    @contextmanager
    def stream(self, path):
        connection = self.connect()
        connection.request("GET", path, headers=self.make_headers())
        answer = connection.getresponse()
        try:
            assert answer.status == 200
            yield DocumentStream(answer)
        finally:
            connection.close()
            answer.close()  # it holds the socket: by the response headers, the connection ends with the stream


def as_user(node, name, **options):
    """Return the client of a user of the fixture `guarded`."""
    return WebClient(node, (name, f"{name}'s"), **options)


class DocumentStream:
    """Reads the documents of a streaming response, one by one."""

    def __init__(self, answer):
        self.answer = answer
        self.data = b""

    def next(self):
        """Return the next document.

        Raises:
            EOFError: the stream has ended.
        """
        while SEPARATOR not in self.data:
            more = self.answer.read1(1 << 16)
            if not more:
                raise EOFError
            self.data += more
        text, _, self.data = self.data.partition(SEPARATOR)
        return json.loads(text)


@contextmanager
def open_connection(node, data=b""):
    """Connect to the HTTP port and send these bytes."""
    with socket.create_connection((node.host, node.http_port), timeout=PATIENCE) as connection:
        connection.sendall(data)
        yield connection


def read_to_end(connection):
    """Return all bytes that the node sends before it ends the connection."""
    data = b""
    try:
        while piece := connection.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        pass
    return data
