"""What do connections cost that are open and ask for nothing?

A node, and memcached beside it, are processes of their own. Each connection has said HELLO, has logged in, and has
asked one thing; then all stay. The figure is how much more memory the process has then than before.
"""

from __future__ import annotations

import resource
import socket
import ssl
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.process import PASSWORD, USER, Process, memcached, penstock
from benchmarks.report import Report, options
from penstock.node.login.certificates import make_certificates
from penstock.wire.constants import Feature, Magic, Opcode
from penstock.wire.frame import HEADER_BYTES, Frame, join_frame
from penstock.wire.kv import Noop, pack_features
from penstock.wire.login import SaslAuth

HELLO = join_frame(
    Frame(
        Magic.REQUEST,
        Opcode.HELLO,
        key=b"idle",
        value=pack_features([Feature.XERROR, Feature.SELECT_BUCKET, Feature.JSON, Feature.COLLECTIONS]),
    )
)
LOGIN = SaslAuth(key=b"PLAIN", value=f"\0{USER}\0{PASSWORD}".encode()).encode()
NOOP = Noop().encode()

# TLS is negotiated; who the node is has been checked elsewhere, and would only cost time.
ENCRYPTED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
ENCRYPTED.check_hostname, ENCRYPTED.verify_mode = False, ssl.CERT_NONE


def connect(port: int, requests: Sequence[bytes], *, tls: bool = False) -> socket.socket:
    """Return a connection on which these have been asked and answered."""
    peer = socket.create_connection(("127.0.0.1", port), 60)
    if tls:
        peer = ENCRYPTED.wrap_socket(peer)
    for request in requests:
        peer.sendall(request)
        answer(peer)
    return peer


def answer(peer: socket.socket) -> None:
    """Take one reply. Raises ConnectionError if it is none, or not a good one."""
    head = _exactly(peer, HEADER_BYTES)
    if int.from_bytes(head[6:8], "big"):
        raise ConnectionError(f"status 0x{head[6:8].hex()}")
    _exactly(peer, int.from_bytes(head[8:12], "big"))


def _exactly(peer: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        received = peer.recv(count - len(found))
        if not received:
            raise ConnectionError("the server closed the connection")
        found += received
    return found


def measure(report: Report, name: str, process: Process, count: int, open_one: Callable[[], socket.socket]) -> None:
    open_one().close()  # what the first one costs is not the others'
    before = process.memory()
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(open_one())
        after = process.memory()
    each = (after - before) / count
    report.row(
        name,
        f"{(after - before) / 2**20:.1f} MiB, {each / 1024:.1f} KiB each; the process then {after / 2**20:.1f} MiB",
    )


def certified(directory: Path) -> list[str]:
    """Make a certificate, and return the options of a node that shows it."""
    made = make_certificates([], USER, 1, datetime.now(UTC))["server"]
    certificate, key = directory / "server.pem", directory / "server.key"
    certificate.write_bytes(made.certificate)
    key.write_bytes(made.key)
    return ["--tls-port", "0", "--tls-cert", str(certificate), "--tls-key", str(key)]


def main() -> None:
    parser = options(__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--vbuckets", type=int, default=1024)
    chosen = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = chosen.connections
    report = Report(f"Memory of {count} connections that ask for nothing", chosen)
    ours = [HELLO, LOGIN, NOOP]
    with (
        tempfile.TemporaryDirectory() as place,
        penstock("--vbuckets", chosen.vbuckets, *certified(Path(place))) as node,
    ):
        measure(report, "Penstock", node, count, partial(connect, node.port, ours))
    with (
        tempfile.TemporaryDirectory() as place,
        penstock("--vbuckets", chosen.vbuckets, *certified(Path(place))) as node,
    ):
        encrypted = partial(connect, node.ready["tls_port"], ours, tls=True)
        measure(report, "Penstock, TLS", node, count, encrypted)
    with memcached("-c", count + 100) as other:
        if other is not None:
            measure(report, "memcached, one thread", other, count, partial(connect, other.port, [NOOP]))
    report.finish()


if __name__ == "__main__":
    main()
