"""SET and GET over one connection with many outstanding requests. When half are answered, the next half is sent.

The node has a separate process. The requests are encoded beforehand, and bytes of replies are only counted, so that the
two cores are free for the node and the kernel. SETs have new keys or existing keys. Figures are requests per second, on
the clock and of the node's CPU time.

The node detects JSON in every value. The cost of that is a ratio of CPU times: of SETs of JSON text to SETs of as many
other bytes. They run in turns on one node, with and without the datatype JSON in the request.

The cost of a command without I/O is measured without a client. Handlers of a node in this process get frames, one
command after the other, and the best round counts. Each command is compared with GET, whose handler reads frames
directly. The handlers of NOOP, TOUCH and others receive decoded messages.
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

from benchmarks.report import Report, make_parser
from benchmarks.served import NodeProcess, run_node
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


def make_batches(
    count: int, pipelined: int, value: bytes | None, vbuckets: int, prefix: bytes = b"key", *, datatype: int = 0
) -> list[bytes]:
    """Return pieces of requests for the keys from 0 to `count`, each with half of the pipelined requests.

    Args:
        count: the number of keys.
        pipelined: the number of outstanding requests.
        value: the value of SETs; None: GETs.
        vbuckets: the number of vbuckets.
        prefix: the prefix of the keys.
        datatype: the datatype of SETs.
    """
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


def time_exchange(port: int, pieces: list[bytes], reply_bytes: int) -> float:
    """Return the seconds of sending all pieces and receiving `reply_bytes` for each, on a new connection."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.settimeout(60)
        start = time.perf_counter()
        exchange_pieces(peer, pieces, reply_bytes)
        return time.perf_counter() - start


def exchange_pieces(peer: socket.socket, pieces: list[bytes], reply_bytes: int) -> None:
    """Send pieces, at most two without a reply at a time, and receive `reply_bytes` for each."""
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


def measure_case(
    report: Report, node: NodeProcess, name: str, *, count: int, rounds: list[list[bytes]], reply_bytes: int
) -> None:
    walls, cpus = [], []
    for pieces in rounds:
        before = node.read_cpu_seconds()
        walls.append(time_exchange(node.port, pieces, reply_bytes))
        cpus.append(node.read_cpu_seconds() - before)
    wall, cpu = sorted(walls)[len(rounds) // 2], sorted(cpus)[len(rounds) // 2]
    report.add_row(
        name, f"{count / wall / 1e3:.0f} k/s (best {count / min(walls) / 1e3:.0f}), {count / cpu / 1e3:.0f} k per CPU s"
    )


def measure_decoding(report: Report, rounds: int, count: int = 10_000) -> None:
    """Measure the cost of decoding a message. The node's handlers of GET and SET avoid it."""
    for message in (Get(key=b"key"), Set(key=b"key", value=b"v" * 100), Touch(key=b"key", expiry=0)):
        frame = cut_frame(memoryview(message.encode()), 0)
        decode = find_layout(frame).make_message
        seconds = min(timeit.repeat(partial(decode, frame), timer=time.thread_time, number=count, repeat=rounds))
        report.add_row(f"decode one {type(message).__name__}", f"{seconds / count * 1e6:.2f} us of CPU")


_SERVED_VBUCKETS = 16


def make_served_requests(number: int) -> dict[str, Request]:
    """Return name -> request of each kind, in the order of serving. The last request deletes the document."""
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


async def measure_handlers(report: Report, rounds: int, count: int = 2000) -> None:
    """Measure the cost of finding and running the handler of a request."""
    frames: dict[str, list[Frame]] = {}
    for number in range(count):
        for name, request in make_served_requests(number).items():
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
        report.add_row(f"serve one {name}, without a connection", figures)


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
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
        measure_kinds(report, chosen, keys // chosen.pipelined * chosen.pipelined)
    for value_bytes in chosen.json_bytes:
        measure_json_detection(report, chosen, chosen.json_keys // chosen.pipelined * chosen.pipelined, value_bytes)
    measure_decoding(report, chosen.rounds)
    asyncio.run(measure_handlers(report, chosen.rounds))
    report.finish()


def make_json_text(value_bytes: int) -> bytes:
    """Return a JSON object of `value_bytes` bytes, at least 60, with numbers, short strings and one long string."""
    document = {"type": "beer", "abv": 5.25, "ibu": 0, "tags": ["a", "b"], "text": ""}
    document["text"] = "y" * (value_bytes - len(json.dumps(document, separators=(",", ":"))))
    return json.dumps(document, separators=(",", ":")).encode()


def measure_json_detection(report: Report, chosen: argparse.Namespace, count: int, value_bytes: int) -> None:
    """Measure the cost of JSON detection in a SET."""
    text, half = make_json_text(value_bytes), chosen.pipelined // 2
    kinds = {
        "other bytes": (b"v" * len(text), 0),
        "JSON": (text, 0),
        "JSON, with the datatype": (text, int(Datatype.JSON)),
    }
    pieces = {
        name: make_batches(count, chosen.pipelined, value, chosen.vbuckets, datatype=datatype)
        for name, (value, datatype) in kinds.items()
    }
    cpus: dict[str, list[float]] = {name: [] for name in kinds}
    with run_node(vbuckets=chosen.vbuckets) as node, socket.create_connection(("127.0.0.1", node.port)) as peer:
        peer.settimeout(60)
        peer.sendall(Hello(value=pack_features([Feature.JSON])).encode())
        peer.recv(1024)
        exchange_pieces(peer, pieces["JSON"], half * SET_REPLY)
        for _ in range(chosen.rounds):
            for name in kinds:
                before = node.read_cpu_seconds()
                exchange_pieces(peer, pieces[name], half * SET_REPLY)
                cpus[name].append(node.read_cpu_seconds() - before)
    base = cpus["other bytes"]
    for name, times in cpus.items():
        ratio = statistics.median(one / other for one, other in zip(times, base, strict=True))
        per_set = statistics.median(times) / count * 1e6
        report.add_row(f"SET of {name}, {len(text)} B", f"{per_set:.2f} us of CPU, {ratio:.3f} of other bytes")


def measure_kinds(report: Report, chosen: argparse.Namespace, count: int) -> None:
    """Measure SET of new keys, SET of existing keys and GET, with `count` keys."""
    half, value, vbuckets = chosen.pipelined // 2, b"v" * chosen.value_bytes, chosen.vbuckets
    prefixes = [b"k%02d" % number for number in range(chosen.rounds)]
    new = [make_batches(count, chosen.pipelined, value, vbuckets, prefix) for prefix in prefixes]
    gets = make_batches(count, chosen.pipelined, None, vbuckets, prefixes[-1])
    about = f"{chosen.value_bytes} B, {count} keys"
    with run_node(vbuckets=vbuckets, profile=chosen.profile) as node:
        setting: dict[str, Any] = {"count": count, "reply_bytes": half * SET_REPLY}
        measure_case(report, node, f"SET, new keys, {about}", rounds=new, **setting)
        measure_case(report, node, f"SET, same keys, {about}", rounds=[new[-1]] * chosen.rounds, **setting)
        get_bytes = half * (GET_REPLY + chosen.value_bytes)
        measure_case(report, node, f"GET, {about}", rounds=[gets] * chosen.rounds, count=count, reply_bytes=get_bytes)


if __name__ == "__main__":
    main()
