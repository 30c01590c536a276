"""Guessing passwords takes time: each address that was wrong waits, longer with every failure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from penstock.node.address_shares import network_of
from penstock.node.login.sasl import Step
from penstock.wire.constants import Status

__all__ = ["Attempts"]

FIRST_SECONDS, MOST_SECONDS = 0.05, 5.0
FORGET_SECONDS = 600.0  # after the last failure
MAX_ADDRESSES = 10_000
_ENOUGH = 8  # failures: from then on the delay is the longest


class _Failures(NamedTuple):
    times: int
    last: float


class Attempts:
    """What is remembered of addresses with wrong passwords; the oldest ones are forgotten when there are too many.

    clock: seconds, never going back. An address is a host's without its port; of IPv6 the first 64 bits count, as the
    rest is the host's own to choose.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def delay(self, address: str) -> float:
        """Return the seconds that an address's next verdict is to be held back, whether good or bad.

        If only bad ones were, who does not hear soon could go on with the next guess.
        """
        count = self._count(network_of(address))
        return min(FIRST_SECONDS * 2 ** (count - 1), MOST_SECONDS) if count else 0.0

    def failed(self, address: str) -> None:
        network = network_of(address)
        self._failures[network] = _Failures(min(self._count(network) + 1, _ENOUGH), self._clock())
        self._failures.move_to_end(network)
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)

    def succeeded(self, address: str) -> None:
        self._failures.pop(network_of(address), None)

    def after(self, step: Step, address: str) -> float:
        """Count a step of a login, and return the seconds until it may be answered."""
        if not step.judged:
            return 0.0
        seconds = self.delay(address)
        if step.status is Status.SUCCESS:
            self.succeeded(address)
        else:
            self.failed(address)
        return seconds

    def _count(self, network: str) -> int:
        found = self._failures.get(network)
        return found.times if found is not None and self._clock() - found.last < FORGET_SECONDS else 0
