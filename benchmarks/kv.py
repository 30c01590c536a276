"""SET and GET over one connection with so many requests under way: half of them are sent when half are answered.

The node has a process of its own. The requests are made beforehand, and replies are only counted, so that the two
cores are the node's and the kernel's. SETs come in two kinds: of new keys, and of keys that are there. Figures are
requests a second, on the clock and of the node's CPU time.

The node detects JSON in every value. What that costs is measured as a ratio: the CPU time of SETs of JSON text to that
of SETs of as many bytes that cannot be JSON, in turns on one node; with and without the datatype JSON in the request.

What a command costs beside reading and writing is measured without a client: frames are given to the handlers of a
node in this process, kind by kind, and the best round counts. Each is compared with GET, whose handler takes frames as
they are; those of NOOP, TOUCH and the like receive decoded messages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import time
import timeit
from functools import partial
from typing import Any

from benchmarks.report import Report, options
from benchmarks.served import Served, served
from penstock.node import Node
from penstock.node.server.dispatch import serve_frame
from penstock.node.server.node_connection import NodeConnection
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER_BYTES, Frame, cut_frame
from penstock.wire.codec.layout import Request, find_layout
from penstock.wire.messages.kv import (
    Append,
    Count,
    Delete,
    Get,
    GetAndTouch,
    GetMeta,
    Hello,
    Noop,
    Set,
    Touch,
    pack_features,
)

SET_REPLY = 24
GET_REPLY = 28


def batches(
    count: int, pipelined: int, value: bytes | None, vbuckets: int, prefix: bytes = b"key", *, datatype: int = 0
) -> list[bytes]:
    """Return the requests for keys 0 to count, half of what is pipelined in one piece; value None: GETs."""
    keys = [b"%s-%09d" % (prefix, number) for number in range(count)]
    requests = [
        (
            Get(key=key, vbucket=n % vbuckets)
            if value is None
            else Set(key=key, value=value, vbucket=n % vbuckets, datatype=datatype)
        ).encode()
        for n, key in enumerate(keys)
    ]
    half = pipelined // 2
    return [b"".join(requests[start : start + half]) for start in range(0, count, half)]


def drive(port: int, pieces: list[bytes], reply_bytes: int) -> float:
    """Keep two pieces under way, each answered with reply_bytes; return the seconds of all of it."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.settimeout(60)
        start = time.perf_counter()
        exchange(peer, pieces, reply_bytes)
        return time.perf_counter() - start


def exchange(peer: socket.socket, pieces: list[bytes], reply_bytes: int) -> None:
    """Send pieces, two of them under way at a time, until each has been answered with reply_bytes."""
    room = bytearray(1 << 20)
    peer.sendall(pieces[0])
    missing = 0
    for piece in [*pieces[1:], b""]:
        peer.sendall(piece)
        missing += reply_bytes
        while missing > 0:
            received = peer.recv_into(room)
            if not received:
                raise ConnectionError("the node closed the connection")
            missing -= received


def case(report: Report, node: Served, name: str, *, count: int, rounds: list[list[bytes]], reply_bytes: int) -> None:
    walls, cpus = [], []
    for pieces in rounds:
        before = node.cpu()
        walls.append(drive(node.port, pieces, reply_bytes))
        cpus.append(node.cpu() - before)
    wall, cpu = sorted(walls)[len(rounds) // 2], sorted(cpus)[len(rounds) // 2]
    report.row(
        name, f"{count / wall / 1e3:.0f} k/s (best {count / min(walls) / 1e3:.0f}), {count / cpu / 1e3:.0f} k per CPU s"
    )


def decoding(report: Report, rounds: int, count: int = 10_000) -> None:
    """Measure what a decoded message costs, which the node's handlers of GET and SET do without."""
    for message in (Get(key=b"key"), Set(key=b"key", value=b"v" * 100), Touch(key=b"key", expiry=0)):
        frame = cut_frame(memoryview(message.encode()), 0)
        decode = find_layout(frame).make_message
        seconds = min(timeit.repeat(partial(decode, frame), timer=time.thread_time, number=count, repeat=rounds))
        report.row(f"decode one {type(message).__name__}", f"{seconds / count * 1e6:.2f} us of CPU")


_SERVED_VBUCKETS = 16


def served_requests(number: int) -> dict[str, Request]:
    """Return one request of each kind, in the order in which they are served; the last one deletes the document."""
    key, vbucket = b"key-%09d" % number, number % _SERVED_VBUCKETS
    return {
        "SET": Set(key=key, value=b"v" * 100, vbucket=vbucket),
        "GET": Get(key=key, vbucket=vbucket),
        "NOOP": Noop(),
        "TOUCH": Touch(key=key, expiry=0, vbucket=vbucket),
        "GAT": GetAndTouch(key=key, expiry=0, vbucket=vbucket),
        "INCREMENT": Count(key=b"number-" + key, delta=1, initial=0, expiry=0, vbucket=vbucket),
        "APPEND": Append(key=key, value=b"w", vbucket=vbucket),
        "GET_META": GetMeta(key=key, vbucket=vbucket),
        "DELETE": Delete(key=key, vbucket=vbucket),
    }


async def handling(report: Report, rounds: int, count: int = 2000) -> None:
    """Measure what it costs to find and run the handler of a request."""
    frames: dict[str, list[Frame]] = {}
    for number in range(count):
        for name, request in served_requests(number).items():
            frames.setdefault(name, []).append(cut_frame(memoryview(request.encode()), 0))
    node = await Node.start(port=0, http_port=0, vbuckets=_SERVED_VBUCKETS)
    reader, writer = await asyncio.open_connection("127.0.0.1", node.kv_port)
    writer.write(Noop().encode())
    await reader.readexactly(HEADER_BYTES)
    (connection,) = node.connections.open_connections
    assert isinstance(connection, NodeConnection)
    session, best = connection.session, dict.fromkeys(frames, float("inf"))
    for _ in range(rounds):
        for name, requests in frames.items():
            start = time.thread_time()
            for frame in requests:
                serve_frame(session, frame)
            best[name] = min(best[name], time.thread_time() - start)
    writer.close()
    await node.stop()
    for name, seconds in best.items():
        figures = f"{seconds / count * 1e6:.2f} us of CPU, {seconds / best['GET']:.2f} of a GET"
        report.row(f"serve one {name}, without a connection", figures)


def main() -> None:
    parser = options(__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, nargs="*", default=[20_000, 200_000])
    parser.add_argument("--pipelined", type=int, default=500)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--json-bytes", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--json-keys", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print where the node spends its time")
    chosen = parser.parse_args()
    report = Report(f"Key-value requests on one connection, {chosen.pipelined} pipelined", chosen)
    for keys in chosen.keys:
        kinds(report, chosen, keys // chosen.pipelined * chosen.pipelined)
    for value_bytes in chosen.json_bytes:
        json_values(report, chosen, chosen.json_keys // chosen.pipelined * chosen.pipelined, value_bytes)
    decoding(report, chosen.rounds)
    asyncio.run(handling(report, chosen.rounds))
    report.finish()


def json_text(value_bytes: int) -> bytes:
    """Return a JSON object of so many bytes, at least 60: some numbers and short strings, and a long string."""
    document = {"type": "beer", "abv": 5.25, "ibu": 0, "tags": ["a", "b"], "text": ""}
    document["text"] = "y" * (value_bytes - len(json.dumps(document, separators=(",", ":"))))
    return json.dumps(document, separators=(",", ":")).encode()


def json_values(report: Report, chosen: argparse.Namespace, count: int, value_bytes: int) -> None:
    """Measure what the detection of JSON adds to a SET."""
    text, half = json_text(value_bytes), chosen.pipelined // 2
    kinds = {
        "other bytes": (b"v" * len(text), 0),
        "JSON": (text, 0),
        "JSON, with the datatype": (text, int(Datatype.JSON)),
    }
    pieces = {
        name: batches(count, chosen.pipelined, value, chosen.vbuckets, datatype=datatype)
        for name, (value, datatype) in kinds.items()
    }
    cpus: dict[str, list[float]] = {name: [] for name in kinds}
    with served(vbuckets=chosen.vbuckets) as node, socket.create_connection(("127.0.0.1", node.port)) as peer:
        peer.settimeout(60)
        peer.sendall(Hello(value=pack_features([Feature.JSON])).encode())
        peer.recv(1024)
        exchange(peer, pieces["JSON"], half * SET_REPLY)
        for _ in range(chosen.rounds):
            for name in kinds:
                before = node.cpu()
                exchange(peer, pieces[name], half * SET_REPLY)
                cpus[name].append(node.cpu() - before)
    base = cpus["other bytes"]
    for name, times in cpus.items():
        ratio = statistics.median(one / other for one, other in zip(times, base, strict=True))
        per_set = statistics.median(times) / count * 1e6
        report.row(f"SET of {name}, {len(text)} B", f"{per_set:.2f} us of CPU, {ratio:.3f} of other bytes")


def kinds(report: Report, chosen: argparse.Namespace, count: int) -> None:
    """Measure the three kinds of requests on so many keys."""
    half, value, vbuckets = chosen.pipelined // 2, b"v" * chosen.value_bytes, chosen.vbuckets
    prefixes = [b"k%02d" % number for number in range(chosen.rounds)]
    new = [batches(count, chosen.pipelined, value, vbuckets, prefix) for prefix in prefixes]
    gets = batches(count, chosen.pipelined, None, vbuckets, prefixes[-1])
    about = f"{chosen.value_bytes} B, {count} keys"
    with served(vbuckets=vbuckets, profile=chosen.profile) as node:
        setting: dict[str, Any] = {"count": count, "reply_bytes": half * SET_REPLY}
        case(report, node, f"SET, new keys, {about}", rounds=new, **setting)
        case(report, node, f"SET, same keys, {about}", rounds=[new[-1]] * chosen.rounds, **setting)
        get_bytes = half * (GET_REPLY + chosen.value_bytes)
        case(report, node, f"GET, {about}", rounds=[gets] * chosen.rounds, count=count, reply_bytes=get_bytes)


if __name__ == "__main__":
    main()
