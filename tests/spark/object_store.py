"""An S3 endpoint on loopback, and a proxy before it that refuses, delays and tears requests."""

import http.client
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import obstore
from obstore.store import from_url

SECRET = "a-very-secret-access-key-0123456789"
"""The secret key of all tests; no output of Penstock may show it."""
BUCKET = "lakes"

Fault = Literal["refuse", "fail", "throttle", "tear", "forget", "delay", "cut", "reset", "drip"] | None
"""The effect on a request, or on its answer.

refuse, fail, throttle: the answer is 503, 500 or 429. tear: the connection ends in the middle of the body. forget: the
store obeys, and the answer is lost. delay: the second half of the body waits for a later request, or for half a second.
cut, reset: the answer ends in the middle of its body, with the end or the reset of the connection. drip: the answer
comes in small pieces."""

_STATUSES = {"refuse": 503, "fail": 500, "throttle": 429}


def make_environment(port: int) -> dict[str, str]:
    """Return the variables with which clients find the endpoint."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test-key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


@contextmanager
def serve_objects() -> Iterator[int]:
    """Run moto's server in a process of its own, with the bucket BUCKET, and yield its port."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        port = next(
            int(found[1]) for line in process.stderr if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line))
        )
        reader = threading.Thread(target=process.stderr.read)  # else the server would block once the pipe is full
        reader.start()
        _create_bucket(port)
        yield port
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()


def _create_bucket(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    # Moto distinguishes its services by the scope of the signature, which it does not check.
    scope = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
    connection.request("PUT", f"/{BUCKET}", headers={"Authorization": scope})
    assert connection.getresponse().status == 200
    connection.close()


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, *given: Any) -> None:
        """Say nothing: clients end connections whose requests were spoilt."""


class FaultyProxy:
    """An HTTP proxy before the endpoint.

    Attributes:
        port: the port that clients connect to.
        choose: returns the fault of a request with this method, path and body.
        faults: the faults that were made.
    """

    def __init__(self, target: int) -> None:
        self.choose: Callable[[str, str, bytes], Fault] = lambda method, path, body: None
        self.faults: list[tuple[str, str, str]] = []
        self.arrived = threading.Condition()
        self.requests = 0
        self.target = target
        self._server = _QuietServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self.port = self._server.server_address[1]

    def count_request(self, method: str, path: str, body: bytes) -> tuple[int, Fault]:
        """Return the number of a request, and its fault."""
        with self.arrived:
            self.requests += 1
            self.arrived.notify_all()
            fault = self.choose(method, path, body)
            if fault is not None:
                self.faults.append((fault, method, path))
            return self.requests, fault

    def await_request(self, number: int) -> None:
        """Wait for a while until a request with a higher number comes."""
        with self.arrived:
            self.arrived.wait_for(lambda: self.requests > number, 0.5)

    @classmethod
    @contextmanager
    def before(cls, target: int) -> Iterator["FaultyProxy"]:
        """Run a proxy before the endpoint at this port."""
        proxy = cls(target)
        thread = threading.Thread(target=proxy._server.serve_forever)
        thread.start()
        try:
            yield proxy
        finally:
            proxy._server.shutdown()
            thread.join()
            proxy._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyProxy
    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        number, fault = self.proxy.count_request(self.command, self.path, body)
        if fault in _STATUSES:
            self.send_response(_STATUSES[fault])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        try:
            self._pass_on(fault, body, number)
        except OSError:
            self.close_connection = True

    def _pass_on(self, fault: Fault, body: bytes, number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.target)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        half = len(body) // 2
        connection.send(body[:half])
        if fault == "tear":
            connection.close()
            self._hang_up()
            return
        if fault == "delay":
            self.proxy.await_request(number)
        connection.send(body[half:])
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if fault == "forget":
            self._hang_up()
            return
        self._answer(answer.status, answer.getheaders(), content, fault)

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, fault: Fault) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.end_headers()
        if fault in ("cut", "reset") and content:
            self.wfile.write(content[: len(content) // 2])
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._hang_up()
            return
        for start in range(0, len(content), 1000 if fault == "drip" else len(content) or 1):
            self.wfile.write(content[start : start + 1000] if fault == "drip" else content)
            self.wfile.flush()

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request

    def log_message(self, *given: Any) -> None:
        """Log nothing."""


def list_objects(prefix: str) -> dict[str, bytes]:
    """Return the content of each object below a prefix, by key."""
    store: Any = from_url(f"s3://{BUCKET}")
    return {
        found["path"]: bytes(obstore.get(store, found["path"]).bytes())
        for some in obstore.list(store, prefix)
        for found in some
    }
