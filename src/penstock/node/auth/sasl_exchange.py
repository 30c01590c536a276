"""One connection's login, as the node does it. No I/O: what arrives goes in, what is to be answered comes out.

Source: penstock.wire.values.scram, RFC 4616 (PLAIN); memcached daemon/sasl_auth_command_context.cc for the statuses:
what cannot be understood is EINVAL, an unknown mechanism and a wrong password are AUTH_ERROR; both end the exchange.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.client.connect.sasl_login import PLAIN
from penstock.errors import UsageError
from penstock.node.auth.roles import User
from penstock.node.auth.server_tls import names_in
from penstock.node.auth.users import MAX_NAME, Users, proper_name
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.values.scram import ScramKeys, ScramServer

if TYPE_CHECKING:
    from penstock.node.auth.listener_access import Access

__all__ = ["MAX_VALUE", "TRANSITIONS", "AuthState", "Login", "Step"]

CRAM_MD5 = "CRAM-MD5"

MAX_VALUE = 1024
"""Bytes of what a client says in one step."""

_NONCE_BYTES = 24

_LONGEST_ESCAPED = 3 * MAX_NAME + 2  # n= and a name of nothing but commas


class AuthState(Enum):
    NOTHING = "nothing"
    CHALLENGED = "challenged"
    LOGGED_IN = "logged in"
    FAILED = "failed"


class Step(NamedTuple):
    """The answer to a request for login.

    Attributes:
        status, value: of the reply.
        why: the reason, for the log, without anything secret.
        account: the name whose password, or proof of one, was right or wrong. None: nothing was checked.
    """

    status: Status
    value: bytes = b""
    why: str = ""
    account: str | None = None


_AUTH, _STEP = Opcode.SASL_AUTH, Opcode.SASL_STEP
_S = AuthState

_BEGIN: dict[tuple[Opcode, Status], AuthState] = {
    (_AUTH, Status.SUCCESS): _S.LOGGED_IN,
    (_AUTH, Status.AUTH_CONTINUE): _S.CHALLENGED,
    (_AUTH, Status.AUTH_ERROR): _S.FAILED,
    (_AUTH, Status.EINVAL): _S.FAILED,
}
_END: dict[tuple[Opcode, Status], AuthState] = {
    (_STEP, Status.SUCCESS): _S.LOGGED_IN,
    (_STEP, Status.AUTH_ERROR): _S.FAILED,
    (_STEP, Status.EINVAL): _S.FAILED,
}

TRANSITIONS: dict[AuthState, dict[tuple[Opcode, Status], AuthState]] = {
    _S.NOTHING: _BEGIN,
    _S.CHALLENGED: _BEGIN | _END,
    _S.LOGGED_IN: _BEGIN,
    _S.FAILED: _BEGIN,
}
"""By what was asked, and what the answer is. A request that a state has nothing for is EINVAL, and changes nothing.

SASL_AUTH begins anew in every state: who was logged in is so no more.
"""


class Login:
    """access: of the listener. state: see TRANSITIONS. user: who has logged in; None before, and after a failure.

    nonce: what the server adds to the client's, for tests; None: drawn.
    """

    def __init__(self, access: Access, *, nonce: str | None = None) -> None:
        self.access = access
        self._nonce = nonce
        self.state = AuthState.NOTHING
        self.user: User | None = None
        self._exchange: _Scram | _CramMd5 | None = None

    @property
    def acting(self) -> User | None:
        """Who is behind this connection's requests; None: somebody who must log in first."""
        return self.user or self.access.anonymous_user

    @property
    def acting_name(self) -> str:
        """Who that is, in messages."""
        acting = self.acting
        return "somebody who has not logged in" if acting is None else acting.name or "anybody"

    @property
    def claimed(self) -> str | None:
        """The name that the next SASL_STEP has to prove; None where that is not known yet."""
        return None if self._exchange is None else self._exchange.account

    def proving(self, mechanism: bytes, value: bytes) -> tuple[str, Callable[[], bool]] | None:
        """Return the name in a SASL_AUTH, and a function that tells whether the password is right.

        The function takes milliseconds, and may be called on any thread. None: the request has no password, or `begin`
        knows at once whether it is right.
        """
        if _mechanism(mechanism) != PLAIN or PLAIN not in self.access.mechanisms or len(value) > MAX_VALUE:
            return None
        said = _plain(value)
        if isinstance(said, Step) or (check := self.access.users.proving(*said)) is None:
            return None
        return said[0], check

    def begin(self, mechanism: bytes, value: bytes, fits: bool | None = None) -> Step:
        """Take a SASL_AUTH. mechanism: the request's key. fits: what `proving` has told; None: found out here."""
        self.user = self._exchange = None
        name = _mechanism(mechanism)
        if name == CRAM_MD5 and PLAIN in self.access.mechanisms:
            self._exchange = _CramMd5(self.access.users)
            step = Step(Status.AUTH_CONTINUE, self._exchange.challenge)
        elif name not in self.access.mechanisms:
            step = Step(Status.AUTH_ERROR, why=f"mechanism {_shown(mechanism)} is not offered here")
        elif len(value) > MAX_VALUE:
            step = _too_long(value)
        elif name == PLAIN:
            step = self._plain(value, fits)
        else:
            exchange = _Scram(self.access.users, name, self._nonce)
            step = exchange.first(value)
            if step.status is Status.AUTH_CONTINUE:
                self._exchange = exchange
        return self._after(_AUTH, step)

    def step(self, mechanism: bytes, value: bytes) -> Step:
        """Take a SASL_STEP. mechanism: the request's key, which has to be the one of SASL_AUTH."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return Step(Status.EINVAL, why="SASL_STEP without SASL_AUTH before it")
        if exchange.mechanism != _mechanism(mechanism):
            step = Step(Status.EINVAL, why=f"SASL_STEP with {_shown(mechanism)}, begun with {exchange.mechanism}")
        elif len(value) > MAX_VALUE:
            step = _too_long(value)
        else:
            step = exchange.final(value)
            self.user = exchange.user if step.status is Status.SUCCESS else None
        return self._after(_STEP, step)

    def present(self, certificate: Mapping[str, Any] | None) -> User | None:
        """Log in who has this certificate, if they are a user here. certificate: as `SSLObject.getpeercert` has it."""
        found = (self.access.users.find(name) for name in names_in(certificate or {}))
        user = next((user for user in found if user is not None), None)
        if user is not None:
            self.user, self.state = user, AuthState.LOGGED_IN
        return user

    def renew(self) -> bool:
        """Look again what who has logged in may do, as the users have changed. True: it is another thing than before.

        Who is no user any more has not logged in.
        """
        if self.user is None:
            return False
        found = self.access.users.find(self.user.name)
        if found == self.user:
            return False
        self.user, self.state = found, AuthState.NOTHING if found is None else AuthState.LOGGED_IN
        return True

    def _after(self, opcode: Opcode, step: Step) -> Step:
        self.state = TRANSITIONS[self.state][opcode, step.status]
        return step

    def _plain(self, value: bytes, fits: bool | None) -> Step:
        said = _plain(value)
        if isinstance(said, Step):
            return said
        self.user = self.access.users.check(*said, fits)
        if self.user is None:
            return Step(Status.AUTH_ERROR, why=f"PLAIN: no such user or another password: {said[0]!r}", account=said[0])
        return Step(Status.SUCCESS, account=said[0])


def _plain(value: bytes) -> tuple[str, str] | Step:
    """Return the name and the password that a client says, or what it is answered if it does not say them."""
    try:
        authzid, name, password = value.decode().split("\0")
    except ValueError:
        return Step(Status.EINVAL, why="PLAIN: expected [authzid] NUL user NUL password in UTF-8")
    if authzid not in ("", name):
        return Step(Status.AUTH_ERROR, why="PLAIN: in another's name")
    if len(name.encode()) > MAX_NAME:
        return Step(Status.EINVAL, why=f"PLAIN: a user name of more than {MAX_NAME} bytes")
    return name, password


class _Scram:
    """One exchange: first message, challenge, proof, verdict.

    Attributes:
        account: the name that the client gave.
        user: whose proof was right.
    """

    def __init__(self, users: Users, mechanism: str, nonce: str | None) -> None:
        self.mechanism = mechanism
        self.user: User | None = None
        self._users = users
        self.account = ""
        self._exchange = ScramServer(mechanism, self._keys, nonce or secrets.token_urlsafe(_NONCE_BYTES))

    def _keys(self, name: str) -> ScramKeys:
        self.account = proper_name(name)
        return self._users.verifier(self.mechanism, self.account).keys

    def first(self, value: bytes) -> Step:
        parts = value.split(b",", 3)
        if len(parts) > 2 and len(parts[2]) > _LONGEST_ESCAPED:
            return Step(Status.EINVAL, why=f"{self.mechanism}: a user name of more than {MAX_NAME} bytes")
        try:
            return Step(Status.AUTH_CONTINUE, self._exchange.challenge(value))
        except UnicodeDecodeError:
            return Step(Status.EINVAL, why=f"{self.mechanism}: a first message that is not UTF-8")
        except (ValueError, UsageError) as error:
            return Step(Status.EINVAL, why=f"{self.mechanism}: {error}")

    def final(self, value: bytes) -> Step:
        try:
            verdict = self._exchange.verify(value)
        except UnicodeDecodeError:
            return Step(Status.EINVAL, why=f"{self.mechanism}: a final message that is not UTF-8")
        except ValueError as error:
            return Step(Status.EINVAL, why=f"{self.mechanism}: {error}")
        if verdict is None:
            why = f"{self.mechanism}: no such user or another password: {self.account!r}"
            return Step(Status.AUTH_ERROR, why=why, account=self.account)
        self.user = self._users.find(self.account)
        if self.user is None:  # removed since the challenge
            why = f"{self.mechanism}: no such user any more: {self.account!r}"
            return Step(Status.AUTH_ERROR, why=why, account=self.account)
        return Step(Status.SUCCESS, verdict, account=self.account)


class _CramMd5:
    """One exchange for a user without a password. Attributes as of _Scram; challenge: what the client has to sign.

    cbtransfer and cbbackup of Couchbase 2.5.1 begin with it, without asking for the list of mechanisms. It is not in
    that list: for users who have a password the node would have to know the password. Source: RFC 2195.
    """

    mechanism = CRAM_MD5
    account: str | None = None  # not known before the proof

    def __init__(self, users: Users) -> None:
        self.user: User | None = None
        self.challenge = f"<{secrets.token_hex(16)}@penstock>".encode()
        self._users = users

    def final(self, value: bytes) -> Step:
        name, _, proof = value.rpartition(b" ")
        try:
            account = proper_name(name.decode())
            user = self._users.without_password(account)
        except (UnicodeDecodeError, UsageError):
            return Step(Status.EINVAL, why="CRAM-MD5: expected USER, a space and a digest, in UTF-8")
        expected = hmac.digest(b"", self.challenge, "md5").hex().encode()
        if user is None or not hmac.compare_digest(proof.lower(), expected):
            why = f"CRAM-MD5: no such user without a password, or another digest: {name!r}"
            return Step(Status.AUTH_ERROR, why=why, account=account)
        self.user = user
        return Step(Status.SUCCESS, account=account)


def _mechanism(key: bytes) -> str:
    """Return a mechanism's name as it is listed: clients need not write it in capitals."""
    return key.decode("ascii", "replace").upper()


def _shown(mechanism: bytes) -> str:
    return repr(mechanism[:20].decode("ascii", "replace"))


def _too_long(value: bytes) -> Step:
    return Step(Status.EINVAL, why=f"{len(value)} bytes in one step of the login, expected at most {MAX_VALUE}")
