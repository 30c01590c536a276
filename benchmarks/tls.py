"""A node with TLS, against the same node without TLS.

One connection stores and reads small documents, pipelined, and then large ones. Then TLS handshakes run one after the
other.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.idle import HELLO, LOGIN, NOOP, make_tls_options, open_connection
from benchmarks.process import Process, run_penstock
from benchmarks.report import Report, make_parser
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.messages.kv import Get, Set

SMALL, LARGE = 100, 1 << 20
PIPELINED = 500


def receive_bytes(peer: socket.socket, nbytes: int) -> None:
    buffer = bytearray(1 << 18)
    while nbytes:
        count = peer.recv_into(buffer, min(nbytes, len(buffer)))
        if not count:
            raise ConnectionError("the node closed the connection")
        nbytes -= count


def time_exchange(peer: socket.socket, request: bytes, reply_bytes: int, rounds: int) -> float:
    """Return the seconds of sending a request and receiving its reply `rounds` times."""
    started = time.perf_counter()
    for _ in range(rounds):
        peer.sendall(request)
        receive_bytes(peer, reply_bytes)
    return time.perf_counter() - started


def make_measurements(node: Process, chosen_rounds: int, *, tls: bool) -> dict[str, Callable[[], tuple[float, float]]]:
    """Return name -> measurement, which returns units per second and the node's CPU microseconds per unit."""
    port = node.ready["tls_port"] if tls else node.port
    peer = open_connection(port, [HELLO, LOGIN, NOOP], tls=tls)
    store = Set(key=b"\0large", value=bytes(LARGE)).encode()
    get_large = Get(key=b"\0large").encode()
    store_small = Set(key=b"\0small", value=bytes(SMALL)).encode() * PIPELINED
    get_small = Get(key=b"\0small").encode() * PIPELINED
    stored, got_small, got_large = HEADER_BYTES, HEADER_BYTES + 4 + SMALL, HEADER_BYTES + 4 + LARGE
    time_exchange(peer, store, stored, 1)
    time_exchange(peer, store_small, stored * PIPELINED, 1)

    def rate(request: bytes, reply: int, unit: float, rounds: int) -> Callable[[], tuple[float, float]]:
        def work() -> tuple[float, float]:
            cpu = node.read_cpu_seconds()
            seconds = time_exchange(peer, request, reply, rounds)
            return unit * rounds / seconds, (node.read_cpu_seconds() - cpu) / (unit * rounds) * 1e6

        return work

    return {
        "GET of 100 B, 500 pipelined (requests/s)": rate(
            get_small, got_small * PIPELINED, PIPELINED, 2 * chosen_rounds
        ),
        "SET of 100 B, 500 pipelined (requests/s)": rate(store_small, stored * PIPELINED, PIPELINED, chosen_rounds),
        "GET of 1 MiB (MiB/s)": rate(get_large, got_large, 1, chosen_rounds),
        "SET of 1 MiB (MiB/s)": rate(store, stored, 1, chosen_rounds // 2),
    }


def measure_handshakes(node: Process, count: int) -> float:
    """Return the number of TLS connections that can be opened per second, one after the other."""
    started = time.perf_counter()
    for _ in range(count):
        open_connection(node.ready["tls_port"], [NOOP], tls=True).close()
    return count / (time.perf_counter() - started)


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5)
    chosen = parser.parse_args()
    report = Report("A node over TLS, and without; the best of the repetitions", chosen)
    with (
        tempfile.TemporaryDirectory() as place,
        run_penstock("--vbuckets", 64, *make_tls_options(Path(place))) as node,
    ):
        for tls in (False, True):
            for name, work in make_measurements(node, chosen.rounds, tls=tls).items():
                found = [work() for _ in range(chosen.repeat)]
                best, cpu = max(rate for rate, _ in found), sum(cpu for _, cpu in found) / len(found)
                report.add_row(
                    f"{'TLS' if tls else 'plain'}: {name}", f"{best:,.0f}; {cpu:.1f} us of the node's CPU each"
                )
        best = max(measure_handshakes(node, chosen.rounds * 2) for _ in range(chosen.repeat))
        report.add_row("TLS: connections opened (each second)", f"{best:,.0f}")
    report.finish()


if __name__ == "__main__":
    main()
