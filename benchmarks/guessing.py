"""What does guessing tell an attacker, and what does it cost others?

Whether a user exists must not show in the time of an answer: of SCRAM's challenge, and of the verdict about a wrong
password. Both are measured for a user who exists and one who does not, in turns. The figure is how often the one takes
longer than the other: 50 % where the time tells nothing.

Then many connections guess one password, all at once, and somebody else logs in from the same address.
"""

from __future__ import annotations

import socket
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from statistics import median

from benchmarks.idle import LOGIN
from benchmarks.process import USER, Process, penstock
from benchmarks.report import Report, options
from penstock.wire.codec.frame import HEADER, HEADER_BYTES
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.sasl import SaslAuth

NAMES = (USER, "Administratus")
"""One who exists, and one who does not, of the same length."""


def ask(peer: socket.socket, request: bytes) -> Status:
    peer.sendall(request)
    head = b""
    while len(head) < HEADER_BYTES:
        head += _received(peer, HEADER_BYTES - len(head))
    rest = HEADER.unpack(head)[6]
    while rest:
        rest -= len(_received(peer, rest))
    return Status(HEADER.unpack(head)[5])


def _received(peer: socket.socket, most: int) -> bytes:
    received = peer.recv(most)
    if not received:
        raise ConnectionError("the node closed the connection")
    return received


def challenges(peer: socket.socket, name: str) -> float:
    """Return the seconds until a challenge, which is no verdict: it may be asked for again and again."""
    request = SaslAuth(key=b"SCRAM-SHA512", value=f"n,,n={name},r=0123456789abcdef".encode()).encode()
    started = time.perf_counter()
    ask(peer, request)
    return time.perf_counter() - started


def addresses() -> Iterator[str]:
    """Yield addresses of this machine: a guess from an address of its own waits for no other."""
    for number in count(256):
        yield f"127.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def verdict(port: int, name: str, address: str) -> float:
    """Return the seconds until a wrong password is refused."""
    request = SaslAuth(key=b"PLAIN", value=f"\0{name}\0guess".encode()).encode()
    with socket.create_connection(("127.0.0.1", port), 60, (address, 0)) as peer:
        started = time.perf_counter()
        ask(peer, request)
        return time.perf_counter() - started


def compare(one: Callable[[str], float], times: int) -> tuple[list[float], list[float]]:
    """Measure both names in turns."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(times):
        for which in (0, 1) if number % 2 else (1, 0):
            found[which].append(one(NAMES[which]))
    return found


def share_above(these: list[float], those: list[float]) -> float:
    """Return how often one of these is greater than one of those: 0.5 where they are alike."""
    ordered = sorted(those)
    pairs = sum(bisect_left(ordered, one) + bisect_right(ordered, one) for one in these)
    return pairs / (2 * len(these) * len(those))


def enumeration(node: Process, times: int, verdicts: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return the seconds of each kind of answer, for the user who exists and the one who does not."""
    sources = addresses()
    with socket.create_connection(("127.0.0.1", node.port), 60) as peer:
        return {
            "a challenge": compare(lambda name: challenges(peer, name), times),
            "a refusal": compare(lambda name: verdict(node.port, name, next(sources)), verdicts),
        }


def innocent(node: Process, crowd: int, times: int) -> list[float]:
    """Return the seconds of logins while a crowd guesses another's password from the same address."""
    guess = SaslAuth(key=b"PLAIN", value=b"\0root\0guess").encode()
    found = []
    with ExitStack() as stack:
        for _ in range(times):
            for _ in range(crowd):
                guessing = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 60))
                guessing.sendall(guess)
            started = time.perf_counter()
            with socket.create_connection(("127.0.0.1", node.port), 60) as peer:
                if (status := ask(peer, LOGIN)) is not Status.SUCCESS:
                    raise ConnectionError(f"the login was answered {status.name}")
            found.append(time.perf_counter() - started)
    return found


def main() -> None:
    parser = options(__doc__.partition("\n")[0])
    parser.add_argument("--challenges", type=int, default=5000)
    parser.add_argument("--verdicts", type=int, default=500)
    parser.add_argument("--crowd", type=int, default=32)
    parser.add_argument("--logins", type=int, default=30)
    chosen = parser.parse_args()
    report = Report("What guessing tells, and what it costs others", chosen)
    with penstock("--vbuckets", 64) as node:
        for what, (known, unknown) in enumeration(node, chosen.challenges, chosen.verdicts).items():
            report.row(
                f"{what}: a user who exists, and one who does not",
                f"{median(known) * 1e6:.0f} and {median(unknown) * 1e6:.0f} us (medians); the first takes longer in "
                f"{share_above(known, unknown):.1%}",
            )
        found = sorted(innocent(node, chosen.crowd, chosen.logins))
        report.row(
            f"a login beside {chosen.crowd} guesses at once from its address",
            f"{median(found) * 1e3:.1f} ms (median), {found[-1] * 1e3:.1f} ms at most",
        )
    report.finish()


if __name__ == "__main__":
    main()
