"""One try against the HTTP port of a node: a client sends it, and checks the answers.

Each answer must be a whole HTTP response to a request that was made, without status 500. The node must log no error of
its own. The connection must end when the client has ended its side, and another client must be answered meanwhile.
Tries are requests of all routes; they change request by request, line by line and field by field.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

from fuzz.corpus import AT_ONCE
from fuzz.frames import CUTS, split_reads
from fuzz.node import WITNESS, ServedNode
from penstock.node.auth import LoginAttempts
from penstock.node.http.http_app import PAGES
from penstock.node.http.pages import collection_pages
from penstock.node.http.protocol.request_reader import MAX_HEAD_BYTES
from penstock.wire.codec.constants import Dialect

answered: Counter[str] = Counter()
"""How often each method was answered with each status."""

_END = b"\r\n\r\n"
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2}) [ -~]*\r\n")
_LENGTH = re.compile(rb"(?im)^content-length: ([0-9]+)\r$")
_CHUNKED = re.compile(rb"(?im)^transfer-encoding: chunked\r$")
_CHUNK = re.compile(rb"([0-9a-fA-F]+)\r\n")
_REQUEST = re.compile(rb"(?m)^[A-Z]+ [^\r\n]* HTTP/1\.[01]\r\n")

_PARTS = {
    "bucket": b"default",
    "scope": b"beers",
    "collection": b"ales",
    "uid": b"1",
    "name": b"curr_items",
    "node": b"127.0.0.1",
    "user": b"alice",
}
_FORMS = (
    b"",
    b"name=default",
    b"name=wine&ramQuotaMB=100&bucketType=ephemeral&replicaNumber=0",
    b"name=beers",
    b"name=ales&maxTTL=10&history=true",
    b"maxTTL=-1&history=false",
    b"ramQuota=104857600&flushEnabled=1&historyRetentionSeconds=60",
    b"password=secret12&roles=data_reader[default:beers:ales],admin",
    b'{"name": "beers", "uid": "1", "deep": [[[[]]]]}',
)
_WORDS = (
    *(
        b"",
        b"0",
        b"-1",
        b"+1",
        b"1e9",
        b"true",
        b"null",
        b"_default",
        b"%",
        b"%00",
        b"%2f",
        b"%ff",
        b"..",
        b"*",
        b"[]",
        b"{}",
    ),
    *(b"4294967296", b"18446744073709551616", b"9" * 40, b"x" * 300, b"\xc3\xbc", b"\xff", b"a" * 101, b"default"),
)
_LINES = (
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding : chunked",
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"Content-Length: -1",
    b"Content-Length: 1048577",
    b"Host: 127.0.0.1",
    b"Host: elsewhere",
    b"Host: [::1]:8091",
    b"Origin: http://elsewhere",
    b"Connection: close",
    b"Connection: keep-alive, Upgrade",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"Authorization: Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==",
    b"Authorization: Basic YTpi",
    b"Authorization: Bearer x",
    b"Content-Type: application/json",
    b"Range: bytes=0-5",
    b"Accept-Encoding: gzip",
    b" folded",
    b"X: " + b"x" * 3000,
)
_METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"get", b"")


def list_tries(dialect: Dialect | None) -> Iterator[bytes]:
    """Yield a conversation for each route, and some that first create a resource for later requests."""
    begin = [_make_request(b"POST", b"/pools/default/buckets/default/scopes", b"name=beers")]
    begin.append(_make_request(b"POST", b"/pools/default/buckets/default/scopes/beers/collections", b"name=ales"))
    for page in PAGES:
        path = re.sub(r"\{(\w+)\}", lambda found: _PARTS[found[1]].decode(), page.path).encode()
        for form in _FORMS if page.method in ("POST", "PATCH", "PUT") else (b"",):
            request = _make_request(page.method.encode(), path, form)
            yield AT_ONCE + request
            yield AT_ONCE + b"".join(begin) + request
    yield AT_ONCE + _make_request(b"GET", b"/whoami") * 20
    yield AT_ONCE + _divide_into_chunks(_make_request(b"POST", b"/pools/default/buckets", b"name=wine&ramQuotaMB=100"))


def _make_request(method: bytes, path: bytes, body: bytes = b"") -> bytes:
    head = b"%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\n" % (method, path)
    if body or method not in (b"GET", b"HEAD"):
        head += b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n" % len(body)
    return head + b"\r\n" + body


def _divide_into_chunks(request: bytes) -> bytes:
    """Return a request with the body in chunks."""
    head, _, body = request.partition(_END)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:5], body[5:]) if piece)
    return b"\r\n".join((*lines, b"Transfer-Encoding: chunked")) + _END + chunks + b"0\r\n\r\n"


@cache
def _list_routes() -> tuple[bytes, ...]:
    return tuple(data[CUTS:] for data in list_tries(None))


# Changes


def mutate(data: bytes, longest: int, chance: random.Random) -> bytes:
    """Change a try: one of its requests, the list of requests, or the cuts between reads."""
    cuts, requests = data[:CUTS].ljust(CUTS, b"\0"), _split(data[CUTS:])
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if chance.random() < 0.1:
            cuts = chance.randbytes(CUTS)
        at = chance.randrange(len(requests))
        change = chance.choice(_CHANGES)
        requests[at : at + 1] = change(requests[at], chance)
    return (cuts + b"".join(requests))[:longest]


def _split(data: bytes) -> list[bytes]:
    """Return the requests of a try. Bytes that are no request belong to the request before them."""
    starts = [found.start() for found in _REQUEST.finditer(data)]
    edges = sorted({0, *starts, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(edges)] or [data]


def _change_line(request: bytes, chance: random.Random) -> list[bytes]:
    """Add, drop, double or replace a header line."""
    head, end, body = request.partition(_END)
    lines = head.split(b"\r\n")
    at = chance.randrange(len(lines))
    line = chance.choice((*_LINES, lines[at]))
    lines[at : at + chance.randrange(2)] = chance.choice(([], [line], [line], [lines[at], line]))
    return [b"\r\n".join(lines) + end + body]


def _change_target(request: bytes, chance: random.Random) -> list[bytes]:
    """Replace a word of the path, or add one."""
    method, _, rest = request.partition(b" ")
    target, space, rest = rest.partition(b" ")
    words = target.split(b"/")
    at = chance.randrange(len(words))
    words[at : at + chance.randrange(2)] = [chance.choice((*_WORDS, *_PARTS.values()))]
    target = b"/".join(words) + chance.choice((b"", b"", b"", b"/", b"?", b"?bucket_uuid=1", b"?a=%", b"#"))
    return [method + b" " + target + space + rest]


def _change_method(request: bytes, chance: random.Random) -> list[bytes]:
    return [chance.choice(_METHODS) + b" " + request.partition(b" ")[2]]


def _change_body(request: bytes, chance: random.Random) -> list[bytes]:
    """Change a field of the form, or use another form. The length is right in most cases."""
    head, _, body = request.partition(_END)
    fields = chance.choice((body, *_FORMS)).split(b"&")
    at = chance.randrange(len(fields))
    name, equals, value = fields[at].partition(b"=")
    fields[at] = chance.choice((name, *_WORDS)) + equals + chance.choice((value, *_WORDS))
    body = b"&".join(fields)
    length = len(body) + chance.choice((0, 0, 0, 0, 0, -1, 1, 1000))
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    return [b"\r\n".join((*lines, b"Content-Length: %d" % length)) + _END + body]


def _change_bytes(request: bytes, chance: random.Random) -> list[bytes]:
    at = chance.randrange(len(request) + 1)
    word = chance.choice((b"\n", b"\r", b"\r\n", b" ", b"\t", b"\0", b":", b"\x80", b"\x7f", b"", chance.randbytes(2)))
    return [request[:at] + word + request[at + chance.randrange(3) :]]


_CHANGES: tuple[Callable[[bytes, random.Random], list[bytes]], ...] = (
    _change_line,
    _change_target,
    _change_method,
    _change_body,
    _change_bytes,
    lambda request, chance: [_divide_into_chunks(request)],
    lambda request, chance: [request, request],
    lambda request, chance: [request[: chance.randrange(len(request) + 1)]],
    lambda request, chance: [chance.choice(_list_routes()), request],
    lambda request, chance: [request.replace(b"HTTP/1.1", b"HTTP/1.0")],
    lambda request, chance: [request.replace(b"\r\n", b"\n", chance.randrange(1, 4))],
)


# Checks of a node's answers


def check(data: bytes, dialect: Dialect | None) -> None:
    """Run one try. Raises AssertionError for an invalid reaction of the node."""
    _get_served().check(data)


@cache
def _get_served() -> _ServedHttp:
    collection_pages.WAIT_SECONDS = 0.1  # of a request that waits for a manifest to come
    return _ServedHttp()


class _ServedHttp(ServedNode):
    def choose_port(self) -> int:
        return self.node.http_port

    async def clear(self) -> None:
        """Delete the buckets of the try, and forget its wrong passwords: the next one must not wait for them."""
        for name in tuple(self.node.buckets):
            if name != WITNESS:
                await self.node.buckets.delete(name)
        self.node.attempts = LoginAttempts(self.loop.time)

    async def ask_witness(self) -> None:
        reader, writer = self.witness
        writer.write(_make_request(b"GET", b"/pools/default/b/" + WITNESS.encode()))
        head = await reader.readuntil(_END)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n"), f"another client was answered with {head!r}"
        found = _LENGTH.search(head)
        assert found is not None
        await reader.readexactly(int(found[1]))

    def check_replies(self, replied: bytes, data: bytes) -> None:
        statuses = read_statuses(replied)
        asked = b"".join(split_reads(data))
        for status in statuses:
            answered[f"HTTP {status}"] += 1
        assert 500 not in statuses, f"an error of the node's own: {replied[:1000]!r}"
        final = [status for status in statuses if status >= 200]
        assert len(final) <= asked.count(b"HTTP/") + 1, f"{len(final)} responses, more than there were requests"
        assert len(final) <= 1 or len(asked) < MAX_HEAD_BYTES


def read_statuses(replied: bytes) -> list[int]:
    """Return the status of each response, in order. Raises AssertionError for bytes that are no whole response."""
    statuses: list[int] = []
    at = 0
    while at < len(replied):
        found = _STATUS_LINE.match(replied, at)
        end = replied.find(_END, at)
        assert found is not None, f"no status line: {replied[at : at + 200]!r}"
        assert end >= 0, f"a head without an end: {replied[at : at + 200]!r}"
        status, head = int(found[1]), replied[at : end + 2]
        statuses.append(status)
        at = end + len(_END)
        if status >= 200 and status != 204 and not _STATUS_LINE.match(replied, at):  # else it answers HEAD, or is empty
            at = _find_end_of_body(replied, at, head)
    return statuses


def _find_end_of_body(replied: bytes, at: int, head: bytes) -> int:
    if at == len(replied):
        return at  # to HEAD
    if _CHUNKED.search(head):
        while True:
            size = _CHUNK.match(replied, at)
            if size is None:
                return len(replied)  # a stream, which the end of the client has cut off
            at = size.end() + int(size[1], 16) + 2
            if not int(size[1], 16):
                return at
    length = _LENGTH.search(head)
    if length is None:
        return len(replied)  # up to the end of the connection
    assert at + int(length[1]) <= len(replied), f"a body that is shorter than {length[0]!r}"
    return at + int(length[1])
