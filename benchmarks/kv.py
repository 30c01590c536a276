"""SET and GET over one connection with so many requests under way: half of them are sent when half are answered.

The node has a process of its own. The requests are made beforehand, and replies are only counted, so that the two
cores are the node's and the kernel's. SETs come in two kinds: of new keys, and of keys that are there. Figures are
requests a second, on the clock and of the node's CPU time.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from benchmarks.report import Report, options
from benchmarks.served import Served, served
from penstock.wire.kv import Get, Set

SET_REPLY = 24
GET_REPLY = 28


def batches(count: int, pipelined: int, value: bytes | None, vbuckets: int) -> list[bytes]:
    """Return the requests for keys 0 to count, half of what is pipelined in one piece; value None: GETs."""
    keys = [b"key-%09d" % number for number in range(count)]
    requests = [
        (
            Get(key=key, vbucket=n % vbuckets) if value is None else Set(key=key, value=value, vbucket=n % vbuckets)
        ).encode()
        for n, key in enumerate(keys)
    ]
    half = pipelined // 2
    return [b"".join(requests[start : start + half]) for start in range(0, count, half)]


def drive(port: int, pieces: list[bytes], reply_bytes: int) -> float:
    """Keep two pieces under way, each answered with reply_bytes; return the seconds of all of it."""
    room = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.settimeout(60)
        start = time.perf_counter()
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
        return time.perf_counter() - start


def case(
    report: Report, node: Served, name: str, *, count: int, pieces: list[bytes], reply_bytes: int, rounds: int
) -> None:
    walls, cpus = [], []
    for _ in range(rounds):
        before = node.cpu()
        walls.append(drive(node.port, pieces, reply_bytes))
        cpus.append(node.cpu() - before)
    wall, cpu = sorted(walls)[rounds // 2], sorted(cpus)[rounds // 2]
    report.row(
        name, f"{count / wall / 1e3:.0f} k/s (best {count / min(walls) / 1e3:.0f}), {count / cpu / 1e3:.0f} k per CPU s"
    )


def main() -> None:
    parser = options(__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200_000, help="keys")
    parser.add_argument("--pipelined", type=int, default=500)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="print where the node spends its time")
    chosen = parser.parse_args()
    count = chosen.count // chosen.pipelined * chosen.pipelined
    sets = batches(count, chosen.pipelined, b"v" * chosen.value_bytes, chosen.vbuckets)
    gets = batches(count, chosen.pipelined, None, chosen.vbuckets)
    half = chosen.pipelined // 2
    set_bytes, get_bytes = half * SET_REPLY, half * (GET_REPLY + chosen.value_bytes)
    report = Report(f"Key-value requests on one connection, {chosen.pipelined} pipelined", chosen)
    with served(vbuckets=chosen.vbuckets, profile=chosen.profile) as node:
        setting: dict[str, Any] = {"count": count, "pieces": sets, "reply_bytes": set_bytes}
        case(report, node, f"SET, new keys, {chosen.value_bytes} B", **setting, rounds=1)
        case(report, node, f"SET, same keys, {chosen.value_bytes} B", **setting, rounds=chosen.rounds)
        getting: dict[str, Any] = {"count": count, "pieces": gets, "reply_bytes": get_bytes}
        case(report, node, f"GET, {chosen.value_bytes} B", **getting, rounds=chosen.rounds)
    report.finish()


if __name__ == "__main__":
    main()
