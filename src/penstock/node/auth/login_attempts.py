"""Slows down guessing: each wrong password for an account delays the next answer to the same address.

Addresses that have not logged in to the account also share a count, so that many addresses guess no faster than few.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import TemporaryFailure, UsageError
from penstock.node.auth.sasl_exchange import LoginStep
from penstock.node.auth.users import normalize_name
from penstock.node.transport.address_shares import get_network
from penstock.wire.codec.statuses import Status

FIRST_SECONDS, MAX_SECONDS = 0.05, 5.0
FORGET_SECONDS = 600.0  # after the last failure
MAX_QUEUED_SECONDS = 15.0
"""The longest queue of delayed answers. Above it, guesses are refused unchecked. Otherwise an attacker with many
connections could lock out the account's owner for hours."""

FREE_FAILURES = 4
MAX_SHARED_SECONDS = 2.0
"""Addresses that have not logged in to an account share two counts of its wrong passwords. One is for the first guess
of each address, the other for further guesses. So the account's owner at a new address waits only behind other new
addresses. These counts delay answers after FREE_FAILURES, up to MAX_SHARED_SECONDS. An address that has logged in since
the node started has its own count only: attackers cannot delay the owner there."""

MAX_ACCOUNTS = 10_000
"""Pairs of address and account that are remembered: as many with failures, and as many with a login."""

MAX_NAMES_OF_ADDRESS = 64
"""Accounts that are counted one by one for an address. All further names of the address share one count, so that
trying one password on many accounts is slow as well. An account that has logged in from the address always keeps its
own count."""

# Failures: 0.05 s doubled seven times exceeds MAX_SECONDS, so further ones change nothing.
_MAX_COUNTED = 8 + FREE_FAILURES


class _Failures(NamedTuple):
    """Wrong passwords of one pair of address and account.

    Attributes:
        number: failures in a row.
        last_at: time of the last one, seconds of the clock.
        answered_at: time at which the last queued answer is sent, seconds of the clock.
    """

    number: int
    last_at: float
    answered_at: float


_CountKey = tuple[str, str | None]  # address and account; None: all accounts that have no count of their own
_SharedKey = tuple[str, bool]  # account, and whether the address has guessed before


class LastLogin(NamedTuple):
    """The last login of a user.

    Attributes:
        at: seconds of the clock.
        address: the IP address of the client.
    """

    at: float
    address: str


class LoginAttempts:
    """Counts wrong passwords by address and account together, and by account for addresses that never logged in.

    The answers of one count are queued: each follows the previous answer after the delay, on any number of connections.
    Another account of the same address does not wait, and its login does not reset the count. An IPv6 address is
    reduced to its first 64 bits. If there are too many counts, the oldest ones are forgotten.

    Args:
        clock: returns seconds, and never goes back.

    Attributes:
        checked: number of checks since the start of the node.
        refused: number of those with a wrong password or account.
        last_logins: the last login with a password by user name, for the users that logged in last.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.checked = self.refused = 0
        self._clock = clock
        self.last_logins: OrderedDict[str, LastLogin] = OrderedDict()
        self._failures: OrderedDict[_CountKey, _Failures] = OrderedDict()
        self._shared: OrderedDict[_SharedKey, _Failures] = OrderedDict()
        self._names: Counter[str] = Counter()  # in _failures, by address
        self._logged_in: OrderedDict[_CountKey, None] = OrderedDict()  # have logged in

    def __len__(self) -> int:
        """Return the number of pairs with failures."""
        return len(self._failures)

    def get_delay(self, address: str, account: str) -> float:
        """Return the seconds by which the own count of an address delays its next answer about an account."""
        found = self._failures.get(self._find_keys(address, account)[0])
        return _compute_delay(found.number) if found is not None else 0.0

    def check_queue(self, address: str, account: str) -> None:
        """Check that a password may be verified now.

        Raises:
            TemporaryFailure: too many answers of the pair are queued, or of addresses that never logged in.
        """
        key, shared = self._find_keys(address, account)
        own, others = self._failures.get(key), None if shared is None else self._shared.get(shared)
        latest = max((found.answered_at for found in (own, others) if found is not None), default=0.0)
        if latest - self._clock() > MAX_QUEUED_SECONDS:
            source = address if own is not None and own.answered_at == latest else f"addresses such as {address}"
            raise TemporaryFailure(f"too many wrong passwords from {source}: try again in {MAX_QUEUED_SECONDS:g} s")

    def record(self, address: str, account: str, *, is_right: bool) -> float:
        """Count the result of a check, and return the seconds until it may be answered.

        The answer to a right password waits as well. Otherwise a missing quick answer would reveal a wrong password.

        Returns:
            The delay in seconds.
        """
        self.checked += 1
        self.refused += not is_right
        (key, shared), pair, now = self._find_keys(address, account), _make_pair(address, account), self._clock()
        times, _, answered = self._failures.get(key) or _Failures(0, now, now)
        answered = max(now, answered) + _compute_delay(times)
        in_turn = now if shared is None else self._queue_shared(shared, now, is_right=is_right)
        if is_right:
            self._note_login(str(pair[1]), address, now)
            self._logged_in[pair] = None
            self._logged_in.move_to_end(pair)
            if len(self._logged_in) > MAX_ACCOUNTS:
                self._logged_in.popitem(last=False)
            self._forget(pair)
            # `check_queue` slows down names without their own count.
            return max(answered if key == pair else now, in_turn) - now
        if key not in self._failures:
            self._names[key[0]] += 1
        self._failures[key] = _Failures(min(times + 1, _MAX_COUNTED), now, answered)
        self._failures.move_to_end(key)
        if len(self._failures) > MAX_ACCOUNTS:
            self._forget(next(iter(self._failures)))
        return max(answered, in_turn) - now

    def _queue_shared(self, key: _SharedKey, now: float, *, is_right: bool) -> float:
        """Queue an answer in a shared count, and count a wrong password.

        A login does not reset the count: attackers may guess at the same time.

        Returns:
            The time of the answer, seconds of the clock.
        """
        times, last_at, answered = self._shared.get(key) or _Failures(0, now, now)
        answered = max(now, answered) + _compute_shared_delay(times)
        if not is_right:
            times, last_at = min(times + 1, _MAX_COUNTED), now
            self._shared.pop(key, None)  # the newest failure stands at the end
        if times:
            self._shared[key] = _Failures(times, last_at, answered)
        if len(self._shared) > MAX_ACCOUNTS:
            self._shared.popitem(last=False)
        return answered

    def _note_login(self, name: str, address: str, now: float) -> None:
        self.last_logins[name] = LastLogin(now, address)
        self.last_logins.move_to_end(name)
        if len(self.last_logins) > MAX_ACCOUNTS:
            self.last_logins.popitem(last=False)

    def record_step(self, step: LoginStep, address: str) -> float:
        """Count a step of a login, and return the seconds until it may be answered.

        Returns:
            The delay in seconds; 0 if the step checked no account.
        """
        if step.account is None:
            return 0.0
        return self.record(address, step.account, is_right=step.status is Status.SUCCESS)

    def _find_keys(self, address: str, account: str) -> tuple[_CountKey, _SharedKey | None]:
        """Return the counts of an account now, after old failures were forgotten.

        Returns:
            The count of the address, and the shared one; None if the address has logged in to the account.
        """
        self._forget_old()
        pair = _make_pair(address, account)
        if pair in self._logged_in:
            return pair, None
        if pair in self._failures or self._names[pair[0]] < MAX_NAMES_OF_ADDRESS:
            return pair, (str(pair[1]), pair in self._failures)
        return (pair[0], None), (str(pair[1]), True)

    def _forget_old(self) -> None:
        """Forget the counts whose last failure is too old. The oldest one comes first."""
        before = self._clock() - FORGET_SECONDS
        while self._failures and next(iter(self._failures.values())).last_at <= before:
            self._forget(next(iter(self._failures)))
        while self._shared and next(iter(self._shared.values())).last_at <= before:
            self._shared.popitem(last=False)

    def _forget(self, key: _CountKey) -> None:
        if self._failures.pop(key, None) is not None:
            self._names[key[0]] -= 1
            if not self._names[key[0]]:
                del self._names[key[0]]


def _make_pair(address: str, account: str) -> _CountKey:
    try:
        return get_network(address), normalize_name(account)
    except UsageError:  # no user has such a name, and it may be long
        return get_network(address), ""


def _compute_delay(count: int) -> float:
    return min(FIRST_SECONDS * 2 ** (count - 1), MAX_SECONDS) if count else 0.0


def _compute_shared_delay(count: int) -> float:
    return min(_compute_delay(max(0, count - FREE_FAILURES)), MAX_SHARED_SECONDS)
