"""The machine that a node runs on: the one door to clocks, random numbers, files and ports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import Protocol

from penstock.node.transport.acceptor import Acceptor
from penstock.store.disk.bucket_files import Directory

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux stops the monotonic clock while it sleeps


def _read_monotonic_ns() -> int:
    return time.clock_gettime_ns(_CLOCK)


class PortAcceptor(Protocol):
    """Accepts the connections of one port.

    Attributes:
        port: the number of the port.
    """

    port: int

    def start(self) -> None:
        """Listen, and accept connections."""

    async def close(self) -> None:
        """Stop listening. When this returns, all accepted connections have their protocols."""


AcceptorFactory = Callable[[asyncio.AbstractEventLoop, str, int, Callable[[], asyncio.BaseProtocol]], PortAcceptor]
"""Binds a port: takes the event loop, the address, the port, and a function that makes the protocol of a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that a node runs on. Tests replace its parts by simulated ones.

    Secrets of logins and TLS do not come from here. They always come from the operating system.

    Attributes:
        time_ns: returns nanoseconds since the epoch.
        monotonic_ns: returns nanoseconds of a clock that never goes back, and that runs while the machine sleeps.
        random: random numbers of vbuuids and other identifiers.
        directory: makes the object that reads and writes the files of a bucket.
        acceptor: binds a port.
    """

    time_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = _read_monotonic_ns
    random: Random = field(default_factory=SystemRandom)
    directory: Callable[[Path], Directory] = Directory
    acceptor: AcceptorFactory = Acceptor

    def time(self) -> float:
        """Return seconds since the epoch."""
        return self.time_ns() / 1e9

    def make_vbuuid(self) -> int:
        """Return 48 random bits as the uuid of a branch. It is never 0, which means "no history" on the wire."""
        return self.random.getrandbits(48) or 1

    def make_uuid(self) -> str:
        """Return 128 random bits in hexadecimal."""
        return f"{self.random.getrandbits(128):032x}"
