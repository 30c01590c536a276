"""A client for HTTP: one request at a time, each on a connection of its own, and a reader of streams."""

import base64
import http.client
import json
import socket
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.patience import PATIENCE

SEPARATOR = b"\n\n\n\n"


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def said(self) -> Any:
        return json.loads(self.body)


class WebClient:
    """login: name and password, None to send none."""

    def __init__(self, node, login=None, *, port=None, context=None):
        self.node = node
        self.port = node.http_port if port is None else port
        self.login = login
        self.context = context

    def connect(self):
        if self.context is not None:
            return http.client.HTTPSConnection(self.node.host, self.port, timeout=PATIENCE, context=self.context)
        return http.client.HTTPConnection(self.node.host, self.port, timeout=PATIENCE)

    def headers(self, more=()):
        found = dict(more)
        if self.login is not None:
            found["Authorization"] = "Basic " + base64.b64encode(":".join(self.login).encode()).decode()
        return found

    def ask(self, method, path, form=None, *, body=None, headers=()):
        """Send a request, with the fields of a form or with any bytes."""
        connection = self.connect()
        try:
            if form is not None:
                body = urlencode(form)
                headers = {"Content-Type": "application/x-www-form-urlencoded", **dict(headers)}
            connection.request(method, path, body, self.headers(headers))
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def said(self, path):
        answer = self.get(path)
        assert answer.status == 200, answer
        return answer.said

    def post(self, path, **form):
        return self.ask("POST", path, form)

    def delete(self, path):
        return self.ask("DELETE", path)

    @contextmanager
    def stream(self, path):
        connection = self.connect()
        connection.request("GET", path, headers=self.headers())
        answer = connection.getresponse()
        try:
            assert answer.status == 200
            yield Documents(answer)
        finally:
            connection.close()
            answer.close()  # holds the socket, since the node says that the connection ends with the stream


class Documents:
    """What comes on a stream, one document after the other."""

    def __init__(self, answer):
        self.answer = answer
        self.data = b""

    def next(self):
        """Return the next document. Raises EOFError at the end."""
        while SEPARATOR not in self.data:
            more = self.answer.read1(1 << 16)
            if not more:
                raise EOFError
            self.data += more
        text, _, self.data = self.data.partition(SEPARATOR)
        return json.loads(text)


@contextmanager
def raw(node, data=b""):
    """A connection on which these bytes have been sent."""
    with socket.create_connection((node.host, node.http_port), timeout=PATIENCE) as connection:
        connection.sendall(data)
        yield connection


def all_of(connection):
    """Return what the node sends until it ends the connection."""
    data = b""
    try:
        while piece := connection.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        pass
    return data
