"""The users of a node: names, roles, and the verifiers of their passwords."""

from __future__ import annotations

import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

from penstock.errors import UsageError
from penstock.node.auth.roles import User
from penstock.node.auth.verifier import ITERATIONS, MIN_ITERATIONS, Verifier, derive_verifiers
from penstock.wire.values.saslprep import prepare_text
from penstock.wire.values.scram import SCRAM

MAX_NAME, MAX_PASSWORD = 128, 512
"""Bytes of a user's name and of a password. PLAIN sends both in one step, which has a limit."""

DEVELOPER, DEVELOPER_PASSWORD = "Administrator", "password"
"""The only user of a node without users, for clients that always log in."""

_PASSWORD_MECHANISM = "SCRAM-SHA256"
"""The mechanism whose verifier checks a password that is sent as text."""

_MAX_REMEMBERED = 1000
"""Users whose right password is remembered as a fast digest: HTTP sends the password with every request."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user with password verifiers.

    Attributes:
        user: the user.
        verifiers: SCRAM mechanism -> verifier, for every mechanism.
        has_password: False: the user logs in with an empty password.
    """

    user: User
    verifiers: Mapping[str, Verifier]
    has_password: bool = True


def normalize_name(name: str) -> str:
    """Return a user's name as prepared by SASLprep.

    Raises:
        UsageError: the name is empty, too long or has forbidden characters.
    """
    if _count_bytes(name) > MAX_NAME:  # checked before SASLprep, which takes time and may lengthen the name
        raise UsageError(f"user name of {_count_bytes(name)} bytes, expected 1 to {MAX_NAME}")
    kept = prepare_text(name)
    if not 0 < _count_bytes(kept) <= MAX_NAME:
        raise UsageError(f"user name of {_count_bytes(kept)} bytes, expected 1 to {MAX_NAME}")
    return kept


def _count_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def make_account(user: User, password: str | None, iterations: int = ITERATIONS) -> Account:
    """Return an account of a user with a password.

    Args:
        user: the user.
        password: None: the user has no password, and logs in with an empty one.
        iterations: of the key derivation.

    Raises:
        UsageError: the password is empty, too long, or has characters that SASLprep refuses.
    """
    if password is None:
        return Account(user, derive_verifiers("", iterations), has_password=False)
    if not 0 < _count_bytes(password) <= MAX_PASSWORD:
        raise UsageError(f"password of {_count_bytes(password)} bytes, expected 1 to {MAX_PASSWORD}")
    return Account(user, derive_verifiers(password, iterations))


class Users:
    """Accounts by name.

    Args:
        accounts: name -> account.
        secret: key of the challenges of unknown users. It must be kept as long as the salts of the known users, so that
            both stay the same.

    Attributes:
        version: a number that changes whenever the accounts may have changed.
    """

    def __init__(self, accounts: Mapping[str, Account], secret: bytes) -> None:
        self.version = 0
        self._memory_key = secrets.token_bytes(32)
        self._replace(accounts, secret)

    def __len__(self) -> int:
        """Return the number of accounts."""
        return len(self._accounts)

    def _replace(self, accounts: Mapping[str, Account], secret: bytes) -> None:
        """Use these accounts from now on, and forget remembered passwords."""
        self._accounts, self._secret = dict(accounts), secret
        counts = Counter(one.iterations for account in accounts.values() for one in account.verifiers.values())
        self._iterations = counts.most_common(1)[0][0] if counts else ITERATIONS
        self._remembered: OrderedDict[str, bytes] = OrderedDict()
        self.version += 1

    def refresh(self) -> None:
        """Check for changes. Accounts that come from no file never change."""

    def list_accounts(self) -> list[Account]:
        """Return all current accounts, sorted by name."""
        self.refresh()
        return [account for _, account in sorted(self._accounts.items())]

    def find(self, name: str) -> User | None:
        """Return the current user of a name; None if it does not exist."""
        self.refresh()
        account = self._accounts.get(name)
        return None if account is None else account.user

    def find_without_password(self, name: str) -> User | None:
        """Return the current user of a name if the user logs in without a password."""
        self.refresh()
        account = self._accounts.get(name)
        return None if account is None or account.has_password else account.user

    def find_verifier(self, mechanism: str, name: str) -> Verifier:
        """Return the verifier of a user, or for an unknown name a verifier that no proof matches."""
        self.refresh()
        account = self._accounts.get(name)
        # Made for known users too: the time must not reveal which users exist.
        decoy = Verifier.make_decoy(mechanism, name, self._iterations, self._secret)
        return decoy if account is None else account.verifiers[mechanism]

    def find_password_check(self, name: str, password: str) -> Callable[[], bool] | None:
        """Return a function that returns whether a user has this password; None if `authenticate` decides without it.

        The function takes milliseconds, and may be called on any thread.
        """
        try:
            name = normalize_name(name)
        except UsageError:
            return None
        if _count_bytes(password) > MAX_PASSWORD or self._is_remembered(name, password):
            return None
        return partial(self.find_verifier(_PASSWORD_MECHANISM, name).matches, password)

    def authenticate(self, name: str, password: str, is_right: bool | None = None) -> User | None:
        """Return the user if the password is right; None otherwise.

        Args:
            name: the name that the client sent.
            password: the password that the client sent.
            is_right: the result of the function from `find_password_check`; None: the password is checked here.
        """
        try:
            name = normalize_name(name)
        except UsageError:
            return None
        if _count_bytes(password) > MAX_PASSWORD:
            return None
        self.refresh()
        account = self._accounts.get(name)
        if account is not None and self._is_remembered(name, password):
            self._remembered.move_to_end(name)
            return account.user
        if is_right is None:
            is_right = self.find_verifier(_PASSWORD_MECHANISM, name).matches(password)
        if not is_right or account is None:
            return None
        self._remembered[name] = self._digest(password)
        self._remembered.move_to_end(name)
        if len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return account.user

    def _is_remembered(self, name: str, password: str) -> bool:
        """Return whether this password was right for this user before."""
        return hmac.compare_digest(self._remembered.get(name, b""), self._digest(password))

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._memory_key, password.encode("utf-8", "surrogatepass"), "sha256")


@cache
def get_development_users() -> Users:
    """Return the users of a node without users: one, with a well-known password. The result is shared by all nodes."""
    user = User.from_texts(DEVELOPER, ["admin"])
    account = Account(user, derive_verifiers(DEVELOPER_PASSWORD, MIN_ITERATIONS))
    assert account.verifiers.keys() == SCRAM.keys()
    return Users({DEVELOPER: account}, secrets.token_bytes(32))
