"""The users that a node knows: who they are, what checks their passwords, and what they may do."""

from __future__ import annotations

import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

from penstock.errors import UsageError
from penstock.node.auth.roles import User
from penstock.node.auth.verifier import ITERATIONS, MIN_ITERATIONS, Verifier, verifiers_of
from penstock.wire.values.saslprep import prepared
from penstock.wire.values.scram import SCRAM

__all__ = ["MAX_NAME", "MAX_PASSWORD", "Account", "Users", "account_of", "development_users", "proper_name"]

MAX_NAME, MAX_PASSWORD = 128, 512
"""Bytes of a user's name and of a password: so that PLAIN has room for them in one step."""

DEVELOPER, DEVELOPER_PASSWORD = "Administrator", "password"
"""The one user of a node without users, whom clients that have to log in can be."""

_CHECKED_WITH = "SCRAM-SHA256"
"""Which of a user's verifiers checks a password that is given as it is: one is enough."""

_REMEMBERED = 1000
"""Users whose password was right and is checked without the iterations the next time: HTTP has it in every request."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user, and their verifiers by mechanism: one for each of SCRAM. has_password: if not, an empty one logs in."""

    user: User
    verifiers: Mapping[str, Verifier]
    has_password: bool = True


def proper_name(name: str) -> str:
    """Return a user's name as it is kept. Raises UsageError for one that cannot be a user's."""
    if _bytes_of(name) > MAX_NAME:  # before it is prepared, which may make it longer, and takes time
        raise UsageError(f"user name of {_bytes_of(name)} bytes, expected 1 to {MAX_NAME}")
    kept = prepared(name)
    if not 0 < _bytes_of(kept) <= MAX_NAME:
        raise UsageError(f"user name of {_bytes_of(kept)} bytes, expected 1 to {MAX_NAME}")
    return kept


def _bytes_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def account_of(user: User, password: str | None, iterations: int = ITERATIONS) -> Account:
    """Return a user with this password. Raises UsageError for an empty or long one, and as Verifier.derive does.

    None: the user has no password, and logs in with an empty one.
    """
    if password is None:
        return Account(user, verifiers_of("", iterations), has_password=False)
    if not 0 < _bytes_of(password) <= MAX_PASSWORD:
        raise UsageError(f"password of {_bytes_of(password)} bytes, expected 1 to {MAX_PASSWORD}")
    return Account(user, verifiers_of(password, iterations))


class Users:
    """Accounts by name. version: another number whenever they may have changed.

    secret: what the challenges of users who do not exist are made with; to be kept as long as the salts of the others.
    """

    def __init__(self, accounts: Mapping[str, Account], secret: bytes) -> None:
        self.version = 0
        self._memory_key = secrets.token_bytes(32)
        self._replace(accounts, secret)

    def __len__(self) -> int:
        return len(self._accounts)

    def _replace(self, accounts: Mapping[str, Account], secret: bytes) -> None:
        """Have these accounts from now on, and forget what was known of the passwords of others."""
        self._accounts, self._secret = dict(accounts), secret
        counts = Counter(one.iterations for account in accounts.values() for one in account.verifiers.values())
        self._iterations = counts.most_common(1)[0][0] if counts else ITERATIONS
        self._remembered: OrderedDict[str, bytes] = OrderedDict()
        self.version += 1

    def refresh(self) -> None:
        """Look for changes, where there is something to look at."""

    def accounts(self) -> list[Account]:
        """Return all accounts as they are now, by name."""
        self.refresh()
        return [account for _, account in sorted(self._accounts.items())]

    def find(self, name: str) -> User | None:
        """Return a user as they are now."""
        self.refresh()
        account = self._accounts.get(name)
        return None if account is None else account.user

    def without_password(self, name: str) -> User | None:
        """Return a user as they are now, if they log in without a password."""
        self.refresh()
        account = self._accounts.get(name)
        return None if account is None or account.has_password else account.user

    def verifier(self, mechanism: str, name: str) -> Verifier:
        """Return what checks a user's proof; for a name that nobody has, what no proof fits."""
        self.refresh()
        account = self._accounts.get(name)
        # Made in any case: the time that it takes must not tell which users there are.
        invented = Verifier.invented(mechanism, name, self._iterations, self._secret)
        return invented if account is None else account.verifiers[mechanism]

    def proving(self, name: str, password: str) -> Callable[[], bool] | None:
        """Return what tells whether a user has this password, which takes milliseconds, and may be asked on any thread.

        None: `check` knows without.
        """
        try:
            name = proper_name(name)
        except UsageError:
            return None
        if _bytes_of(password) > MAX_PASSWORD or self._recalls(name, password):
            return None
        return partial(self.verifier(_CHECKED_WITH, name).fits, password)

    def check(self, name: str, password: str, fits: bool | None = None) -> User | None:
        """Return the user whose password this is. fits: what `proving` has told; None: found out here."""
        try:
            name = proper_name(name)
        except UsageError:
            return None
        if _bytes_of(password) > MAX_PASSWORD:
            return None
        self.refresh()
        account = self._accounts.get(name)
        if account is not None and self._recalls(name, password):
            self._remembered.move_to_end(name)
            return account.user
        if fits is None:
            fits = self.verifier(_CHECKED_WITH, name).fits(password)
        if not fits or account is None:
            return None
        self._remembered[name] = self._digest(password)
        self._remembered.move_to_end(name)
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return account.user

    def _recalls(self, name: str, password: str) -> bool:
        """Was this user's password right before?"""
        return hmac.compare_digest(self._remembered.get(name, b""), self._digest(password))

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._memory_key, password.encode("utf-8", "surrogatepass"), "sha256")


@cache
def development_users() -> Users:
    """Return the users of every node that was given none: one, with a password that everybody knows."""
    user = User.of(DEVELOPER, ["admin"])
    account = Account(user, verifiers_of(DEVELOPER_PASSWORD, MIN_ITERATIONS))
    assert account.verifiers.keys() == SCRAM.keys()
    return Users({DEVELOPER: account}, secrets.token_bytes(32))
