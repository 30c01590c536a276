"""How many clients can log in each second, by SCRAM and by PLAIN?

A login is a new connection, SASL_AUTH, and for SCRAM also SASL_STEP. Several logins run concurrently. With SCRAM the
client hashes the password. The clients here keep the salted password of the first login, because hashing would hide the
cost of the node. With PLAIN the node hashes the password, unless it remembers that this password was correct.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import hashlib
import hmac
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable

from benchmarks.process import PASSWORD, USER, Process, run_penstock
from benchmarks.report import Report, make_parser
from penstock.wire.codec.frame import HEADER, HEADER_BYTES, Frame, join_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status

HASHES = {"SCRAM-SHA512": "sha512", "SCRAM-SHA256": "sha256", "SCRAM-SHA1": "sha1"}

salted = functools.lru_cache(100)(hashlib.pbkdf2_hmac)


class Peer:
    """A connection that logs in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send_step(self, opcode: Opcode, mechanism: str, value: bytes, status: Status) -> bytes:
        """Return the value of the reply to a step. Raises ConnectionError for an unexpected status."""
        self.writer.write(join_frame(Frame(Magic.REQUEST, opcode, key=mechanism.encode(), value=value)))
        head = HEADER.unpack(await self.reader.readexactly(HEADER_BYTES))
        reply = await self.reader.readexactly(head[6])
        if head[5] != status:
            raise ConnectionError(f"{mechanism}: status 0x{head[5]:x}, expected {status.name}")
        return reply


async def log_in_by_scram(peer: Peer, user: str, password: str, mechanism: str) -> None:
    name = HASHES[mechanism]
    bare = f"n={user},r={secrets.token_urlsafe(18)}"
    challenge = await peer.send_step(Opcode.SASL_AUTH, mechanism, f"n,,{bare}".encode(), Status.AUTH_CONTINUE)
    fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
    final = f"c=biws,r={fields['r']}"
    whole = f"{bare},{challenge.decode()},{final}".encode()
    key = hmac.digest(salted(name, password.encode(), b64decode(fields["s"]), int(fields["i"])), b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, key).digest(), whole, name)
    proof = b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    await peer.send_step(Opcode.SASL_STEP, mechanism, f"{final},p={proof}".encode(), Status.SUCCESS)


async def log_in_by_plain(peer: Peer, user: str, password: str, mechanism: str) -> None:
    await peer.send_step(Opcode.SASL_AUTH, mechanism, f"\0{user}\0{password}".encode(), Status.SUCCESS)


LOGINS: dict[str, Callable[[Peer, str, str, str], Awaitable[None]]] = {
    **dict.fromkeys(HASHES, log_in_by_scram),
    "PLAIN": log_in_by_plain,
}


async def log_in(port: int, mechanism: str, *, user: str, password: str, count: int, together: int) -> None:
    """Log in `count` times on new connections, `together` at a time."""
    numbers = iter(range(count))

    async def work() -> None:
        for _ in numbers:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await LOGINS[mechanism](Peer(reader, writer), user, password, mechanism)
            writer.transport.abort()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(together):
            tasks.create_task(work())


def measure_logins(report: Report, node: Process, chosen: argparse.Namespace) -> None:
    login = {"user": USER, "password": PASSWORD}
    rates: dict[str, list[tuple[float, float]]] = {mechanism: [] for mechanism in LOGINS}
    for mechanism in LOGINS:
        asyncio.run(log_in(node.port, mechanism, **login, count=10, together=1))
    for _ in range(chosen.rounds):
        for mechanism, found in rates.items():
            started, cpu = time.perf_counter(), node.read_cpu_seconds()
            asyncio.run(log_in(node.port, mechanism, **login, count=chosen.logins, together=chosen.together))
            found.append((time.perf_counter() - started, node.read_cpu_seconds() - cpu))
    for mechanism, found in rates.items():
        wall, cpu = sorted(found)[len(found) // 2]
        report.add_row(
            mechanism,
            f"{chosen.logins / wall:.0f} logins/s, {cpu / chosen.logins * 1e6:.0f} us of the node's CPU time each",
        )


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--logins", type=int, default=2000)
    parser.add_argument("--together", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    report = Report(f"Logins, {chosen.together} at a time, each on a new connection", chosen)
    with run_penstock() as node:
        measure_logins(report, node, chosen)
    report.finish()


if __name__ == "__main__":
    main()
