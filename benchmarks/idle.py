"""Memory of connections that are idle or half open.

The node has a separate process, and so has memcached for comparison. Each idle connection has sent HELLO, a login and
one request. Each half-open connection has sent half a frame, half a ClientHello, or a ClientHello and nothing more. Of
the last kind, a node accepts 512 from one address and closes the others. All connections stay open. The figure is the
growth of the process's memory. The clients use several addresses, because a node limits the connections of one address.
"""

from __future__ import annotations

import resource
import socket
import ssl
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from pathlib import Path

from benchmarks.process import PASSWORD, USER, Process, run_memcached, run_penstock
from benchmarks.report import Report, make_parser
from penstock.node.auth.certificates import make_certificates
from penstock.wire.codec.constants import Feature
from penstock.wire.codec.frame import HEADER_BYTES, Frame, join_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.messages.kv import Noop, pack_features
from penstock.wire.messages.sasl import SaslAuth

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

# The client does not verify the certificate: tests do that, and here it would only cost time.
ENCRYPTED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
ENCRYPTED.check_hostname, ENCRYPTED.verify_mode = False, ssl.CERT_NONE


ADDRESSES = cycle([f"127.0.0.{number}" for number in range(1, 5)])


def open_half(port: int, sent: bytes) -> socket.socket:
    """Return a connection on which only these bytes were sent."""
    peer = socket.create_connection(("127.0.0.1", port), 60, (next(ADDRESSES), 0))
    peer.sendall(sent)
    return peer


def make_client_hello() -> bytes:
    """Return the first message of a TLS client."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ENCRYPTED.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def open_connection(port: int, requests: Sequence[bytes], *, tls: bool = False) -> socket.socket:
    """Return a connection on which these requests were sent and answered."""
    peer = socket.create_connection(("127.0.0.1", port), 60, (next(ADDRESSES), 0))
    if tls:
        peer = ENCRYPTED.wrap_socket(peer)
    for request in requests:
        peer.sendall(request)
        receive_reply(peer)
    return peer


def receive_reply(peer: socket.socket) -> None:
    """Receive one reply. Raises ConnectionError if its status is not success, or if the connection ends."""
    head = _receive_exactly(peer, HEADER_BYTES)
    if int.from_bytes(head[6:8], "big"):
        raise ConnectionError(f"status 0x{head[6:8].hex()}")
    _receive_exactly(peer, int.from_bytes(head[8:12], "big"))


def _receive_exactly(peer: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        received = peer.recv(count - len(found))
        if not received:
            raise ConnectionError("the server closed the connection")
        found += received
    return found


def measure_growth(process: Process, count: int, open_one: Callable[[], socket.socket]) -> tuple[int, int]:
    """Return the growth of the process's memory after opening `count` connections, and its memory then, in bytes."""
    open_one().close()  # the first connection has additional costs, which are excluded
    before = process.read_memory()
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(open_one())
        last = stack.enter_context(open_connection(process.port, [NOOP]))  # its reply follows reads of all others
        after = process.read_memory()
        last.close()
    return after - before, after


def report_growth(
    report: Report, name: str, process: Process, count: int, open_one: Callable[[], socket.socket]
) -> None:
    more, after = measure_growth(process, count, open_one)
    report.add_row(
        name,
        f"{more / 2**20:.1f} MiB, {more / count / 1024:.1f} KiB each; the process then {after / 2**20:.1f} MiB",
    )


HALF_OPEN = (
    ("half a frame", "kv_port", HELLO[:10]),
    ("half a ClientHello", "tls_port", make_client_hello()[:100]),
    ("a ClientHello and no more", "tls_port", make_client_hello()),
)
"""Name, key of the port in Process.ready, and sent bytes of each kind of half-open connection."""


def make_tls_options(directory: Path) -> list[str]:
    """Return the options of a node with TLS, after creating its certificate in a directory."""
    made = make_certificates([], USER, 1, datetime.now(UTC))["server"]
    certificate, key = directory / "server.pem", directory / "server.key"
    certificate.write_bytes(made.certificate)
    key.write_bytes(made.key)
    return ["--tls-port", "0", "--tls-cert", str(certificate), "--tls-key", str(key)]


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--half-open", type=int, default=4096)
    parser.add_argument("--vbuckets", type=int, default=1024)
    chosen = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = chosen.connections
    report = Report(f"Memory of {count} connections that ask for nothing", chosen)
    ours = [HELLO, LOGIN, NOOP]
    with (
        tempfile.TemporaryDirectory() as place,
        run_penstock("--vbuckets", chosen.vbuckets, *make_tls_options(Path(place))) as node,
    ):
        report_growth(report, "Penstock", node, count, partial(open_connection, node.port, ours))
    with (
        tempfile.TemporaryDirectory() as place,
        run_penstock("--vbuckets", chosen.vbuckets, *make_tls_options(Path(place))) as node,
    ):
        encrypted = partial(open_connection, node.ready["tls_port"], ours, tls=True)
        report_growth(report, "Penstock, TLS", node, count, encrypted)
    with tempfile.TemporaryDirectory() as place:
        files = make_tls_options(Path(place))
        for name, port, sent in HALF_OPEN:
            with run_penstock("--vbuckets", chosen.vbuckets, *files) as node:
                open_one = partial(open_half, node.ready[port], sent)
                report_growth(report, f"Penstock, {chosen.half_open} with {name}", node, chosen.half_open, open_one)
    with run_memcached("-c", count + 100) as other:
        if other is not None:
            report_growth(report, "memcached, one thread", other, count, partial(open_connection, other.port, [NOOP]))
    report.finish()


if __name__ == "__main__":
    main()
