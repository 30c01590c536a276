"""Guessing of names and passwords: does the time of an answer reveal a user, and do guesses delay other logins?

The time of an answer must not show whether a user exists. Two answers are measured: the challenge of SCRAM, and the
refusal of a wrong password. Each is measured for an existing and for an unknown user, in turns. The figure is how often
the answer for the existing user takes longer. At 50 % the time reveals nothing.

Then many connections guess a password at once, while another user logs in from the same address.
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
from benchmarks.process import USER, Process, run_penstock
from benchmarks.report import Report, make_parser
from penstock.wire.codec.frame import HEADER, HEADER_BYTES
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.sasl import SaslAuth

NAMES = (USER, "Administratus")
"""An existing and an unknown user, with names of the same length."""


def send_request(peer: socket.socket, request: bytes) -> Status:
    peer.sendall(request)
    head = b""
    while len(head) < HEADER_BYTES:
        head += _receive(peer, HEADER_BYTES - len(head))
    rest = HEADER.unpack(head)[6]
    while rest:
        rest -= len(_receive(peer, rest))
    return Status(HEADER.unpack(head)[5])


def _receive(peer: socket.socket, most: int) -> bytes:
    received = peer.recv(most)
    if not received:
        raise ConnectionError("the node closed the connection")
    return received


def time_challenge(peer: socket.socket, name: str) -> float:
    """Return the seconds until a challenge. A challenge is no failed login, so a connection may repeat it."""
    request = SaslAuth(key=b"SCRAM-SHA512", value=f"n,,n={name},r=0123456789abcdef".encode()).encode()
    started = time.perf_counter()
    send_request(peer, request)
    return time.perf_counter() - started


def list_addresses() -> Iterator[str]:
    """Yield addresses of this machine. A guess from a new address is not delayed by earlier guesses."""
    for number in count(256):
        yield f"127.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def time_refusal(port: int, name: str, address: str) -> float:
    """Return the seconds until a wrong password is refused."""
    request = SaslAuth(key=b"PLAIN", value=f"\0{name}\0guess".encode()).encode()
    with socket.create_connection(("127.0.0.1", port), 60, (address, 0)) as peer:
        started = time.perf_counter()
        send_request(peer, request)
        return time.perf_counter() - started


def compare_users(one: Callable[[str], float], times: int) -> tuple[list[float], list[float]]:
    """Return the seconds for the existing and for the unknown user, measured in turns."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(times):
        for which in (0, 1) if number % 2 else (1, 0):
            found[which].append(one(NAMES[which]))
    return found


def compute_share_above(these: list[float], those: list[float]) -> float:
    """Return the share of pairs in which the value of `these` is greater; 0.5 for equal distributions."""
    ordered = sorted(those)
    pairs = sum(bisect_left(ordered, one) + bisect_right(ordered, one) for one in these)
    return pairs / (2 * len(these) * len(those))


def time_answers(node: Process, times: int, verdicts: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return kind of answer -> seconds for the existing user, seconds for the unknown user."""
    sources = list_addresses()
    with socket.create_connection(("127.0.0.1", node.port), 60) as peer:
        return {
            "a challenge": compare_users(lambda name: time_challenge(peer, name), times),
            "a refusal": compare_users(lambda name: time_refusal(node.port, name, next(sources)), verdicts),
        }


def time_logins_beside_guesses(node: Process, crowd: int, times: int) -> list[float]:
    """Return the seconds of logins while many connections guess the password of another user from the same address."""
    guess = SaslAuth(key=b"PLAIN", value=b"\0root\0guess").encode()
    found = []
    with ExitStack() as stack:
        for _ in range(times):
            for _ in range(crowd):
                guessing = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 60))
                guessing.sendall(guess)
            started = time.perf_counter()
            with socket.create_connection(("127.0.0.1", node.port), 60) as peer:
                if (status := send_request(peer, LOGIN)) is not Status.SUCCESS:
                    raise ConnectionError(f"status {status.name} of the login, expected SUCCESS")
            found.append(time.perf_counter() - started)
    return found


def main() -> None:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--challenges", type=int, default=5000)
    parser.add_argument("--verdicts", type=int, default=500)
    parser.add_argument("--crowd", type=int, default=32)
    parser.add_argument("--logins", type=int, default=30)
    chosen = parser.parse_args()
    report = Report("Guessing of names and passwords, and its cost for other users", chosen)
    with run_penstock("--vbuckets", 64) as node:
        for answer, (known, unknown) in time_answers(node, chosen.challenges, chosen.verdicts).items():
            report.add_row(
                f"{answer}: an existing user, and an unknown one",
                f"{median(known) * 1e6:.0f} and {median(unknown) * 1e6:.0f} us (medians); the first takes longer in "
                f"{compute_share_above(known, unknown):.1%}",
            )
        found = sorted(time_logins_beside_guesses(node, chosen.crowd, chosen.logins))
        report.add_row(
            f"a login beside {chosen.crowd} guesses at once from its address",
            f"{median(found) * 1e3:.1f} ms (median), {found[-1] * 1e3:.1f} ms at most",
        )
    report.finish()


if __name__ == "__main__":
    main()
