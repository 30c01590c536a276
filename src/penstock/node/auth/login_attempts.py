"""Slows down guessing: each wrong password for an account makes the next answer to the same address take longer."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import TemporaryFailure, UsageError
from penstock.node.auth.sasl_exchange import Step
from penstock.node.auth.users import proper_name
from penstock.node.transport.address_shares import network_of
from penstock.wire.codec.statuses import Status

__all__ = ["Attempts"]

FIRST_SECONDS, MOST_SECONDS = 0.05, 5.0
FORGET_SECONDS = 600.0  # after the last failure
MOST_QUEUED_SECONDS = 15.0
"""How far ahead answers may be queued. With more, guesses are refused unchecked: else an attacker with many connections
could lock the account's owner out for hours."""

MAX_ACCOUNTS = 10_000
"""Pairs of address and account that are remembered: those with failures, and those that have logged in."""

NAMES_OF_ADDRESS = 64
"""Accounts that are counted one by one for an address. All further names of the address share one count, so that
trying one password on many accounts is slow as well. An account that has logged in from the address is not among
them."""

_ENOUGH = 8  # failures: from then on the delay is the longest


class _Guesses(NamedTuple):
    """Failures in a row, when the last one was, and when the last verdict is answered."""

    times: int
    last: float
    answered: float


_Key = tuple[str, str | None]  # address and account; None: all accounts that have no count of their own


class Attempts:
    """Counts wrong passwords by address and account together.

    The answers of one pair are queued: each follows the one before it after the delay, however many connections guess
    at the same time. Another account of the same address does not wait, and its login resets nothing. Of IPv6, the
    first 64 bits are the address. When there are too many pairs, the oldest ones are forgotten.

    Args:
        clock: returns seconds, and never goes back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._guesses: OrderedDict[_Key, _Guesses] = OrderedDict()
        self._names: Counter[str] = Counter()  # in _guesses, by address
        self._known: OrderedDict[_Key, None] = OrderedDict()  # have logged in

    def __len__(self) -> int:
        return len(self._guesses)

    def delay(self, address: str, account: str) -> float:
        """Return the seconds by which the next verdict about an account is held back."""
        found = self._guesses.get(self._key(address, account))
        return _seconds_after(found.times) if found is not None else 0.0

    def admit(self, address: str, account: str) -> None:
        """Let a password be checked. Raises TemporaryFailure while too many answers of the pair are queued."""
        found = self._guesses.get(self._key(address, account))
        if found is not None and found.answered - self._clock() > MOST_QUEUED_SECONDS:
            raise TemporaryFailure(f"too many wrong passwords from {address}: try again in {MOST_QUEUED_SECONDS:g} s")

    def judge(self, address: str, account: str, *, right: bool) -> float:
        """Count a verdict, and return the seconds until it may be answered.

        A right password waits as well. Otherwise a client without a quick answer would know that it was wrong.
        """
        key, pair, now = self._key(address, account), _pair(address, account), self._clock()
        times, _, answered = self._guesses.get(key) or _Guesses(0, now, now)
        answered = max(now, answered) + _seconds_after(times)
        if right:
            self._known[pair] = None
            self._known.move_to_end(pair)
            if len(self._known) > MAX_ACCOUNTS:
                self._known.popitem(last=False)
            self._forget(pair)
            return answered - now if key == pair else 0.0  # `admit` is what slows down names without their own count
        if key not in self._guesses:
            self._names[key[0]] += 1
        self._guesses[key] = _Guesses(min(times + 1, _ENOUGH), now, answered)
        self._guesses.move_to_end(key)
        if len(self._guesses) > MAX_ACCOUNTS:
            self._forget(next(iter(self._guesses)))
        return answered - now

    def after(self, step: Step, address: str) -> float:
        """Count a step of a login, and return the seconds until it may be answered."""
        if step.account is None:
            return 0.0
        return self.judge(address, step.account, right=step.status is Status.SUCCESS)

    def _key(self, address: str, account: str) -> _Key:
        """Return the pair under which an account is counted now, after old failures were forgotten."""
        self._forget_old()
        pair = _pair(address, account)
        if pair in self._guesses or pair in self._known or self._names[pair[0]] < NAMES_OF_ADDRESS:
            return pair
        return pair[0], None

    def _forget_old(self) -> None:
        """Forget the pairs whose last failure is long ago; the oldest ones are in front."""
        before = self._clock() - FORGET_SECONDS
        while self._guesses and next(iter(self._guesses.values())).last <= before:
            self._forget(next(iter(self._guesses)))

    def _forget(self, key: _Key) -> None:
        if self._guesses.pop(key, None) is not None:
            self._names[key[0]] -= 1
            if not self._names[key[0]]:
                del self._names[key[0]]


def _pair(address: str, account: str) -> _Key:
    try:
        return network_of(address), proper_name(account)
    except UsageError:  # no user has such a name, and it may be long
        return network_of(address), ""


def _seconds_after(times: int) -> float:
    return min(FIRST_SECONDS * 2 ** (times - 1), MOST_SECONDS) if times else 0.0
