"""What do connections cost that are open and ask for nothing?

A node, and memcached beside it, are processes of their own. Each connection has asked one thing before (a HELLO and a
NOOP, and where there is a login, that too); then all stay. The figure is the memory that the process has then, and how
much more that is than before.
"""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack

from benchmarks.process import Process, memcached, penstock
from benchmarks.report import Report, options
from penstock.wire.constants import Feature, Magic, Opcode
from penstock.wire.frame import HEADER_BYTES, Frame, join_frame
from penstock.wire.kv import Noop, pack_features

HELLO = join_frame(
    Frame(
        Magic.REQUEST,
        Opcode.HELLO,
        key=b"idle",
        value=pack_features([Feature.XERROR, Feature.SELECT_BUCKET, Feature.JSON, Feature.COLLECTIONS]),
    )
)


def connect(port: int, *, hello: bool) -> socket.socket:
    """Return a connection on which one thing or two have been asked and answered."""
    peer = socket.create_connection(("127.0.0.1", port), 60)
    if hello:
        peer.sendall(HELLO)
        answer(peer)
    peer.sendall(Noop().encode())
    answer(peer)
    return peer


def answer(peer: socket.socket) -> None:
    """Take one reply."""
    head = peer.recv(HEADER_BYTES, socket.MSG_WAITALL)
    body = int.from_bytes(head[8:12], "big")
    if len(head) < HEADER_BYTES or (body and len(peer.recv(body, socket.MSG_WAITALL)) < body):
        raise ConnectionError("the server closed the connection")


def measure(report: Report, name: str, process: Process, count: int, *, hello: bool) -> None:
    connect(process.port, hello=hello).close()  # what the first one costs is not the others'
    before = process.memory()
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(connect(process.port, hello=hello))
        after = process.memory()
    each = (after - before) / count
    report.row(name, f"{after / 2**20:.1f} MiB in total, {each / 1024:.1f} KiB a connection")


def main() -> None:
    parser = options(__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--vbuckets", type=int, default=1024)
    chosen = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = chosen.connections
    report = Report(f"Memory of {count} connections that ask for nothing", chosen)
    with penstock("--vbuckets", chosen.vbuckets) as node:
        measure(report, f"Penstock, {chosen.vbuckets} vbuckets", node, count, hello=True)
    with memcached("-c", count + 100) as other:
        if other is not None:
            measure(report, "memcached, one thread", other, count, hello=False)
    report.finish()


if __name__ == "__main__":
    main()
