"""The login of one connection, on the node's side. No I/O: requests go in, replies come out.

Source: penstock.wire.values.scram; RFC 4616 (PLAIN); RFC 2195 (CRAM-MD5). The statuses are those of memcached,
daemon/sasl_auth_command_context.cc: EINVAL for a message that cannot be parsed, AUTH_ERROR for an unknown mechanism
and a wrong password. Both end the exchange.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.client.login.sasl_login import PLAIN
from penstock.errors import UsageError
from penstock.node.auth.roles import User
from penstock.node.auth.server_tls import list_user_names
from penstock.node.auth.users import MAX_NAME, Users, normalize_name
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.values.scram import ScramKeys, ScramServer

if TYPE_CHECKING:
    from penstock.node.auth.listener_access import ListenerAccess

CRAM_MD5 = "CRAM-MD5"

MAX_STEP_BYTES = 1024
"""Bytes of the value of one SASL_AUTH or SASL_STEP."""

_NONCE_BYTES = 24

_LONGEST_ESCAPED = 3 * MAX_NAME + 2  # "n=" and a name of commas only; SCRAM sends a comma as "=2C"


class AuthState(Enum):
    """How far the login of a connection is."""

    LOGGED_OUT = "nothing"
    CHALLENGED = "challenged"
    LOGGED_IN = "logged in"
    FAILED = "failed"


class LoginStep(NamedTuple):
    """The answer to a login request.

    Attributes:
        status: status of the reply.
        value: value of the reply.
        reason: why the login was refused, for the log; contains no secrets.
        account: the name whose password or proof was checked; None: nothing was checked.
    """

    status: Status
    value: bytes = b""
    reason: str = ""
    account: str | None = None


_AUTH, _STEP = Opcode.SASL_AUTH, Opcode.SASL_STEP
_S = AuthState

_AFTER_AUTH: dict[tuple[Opcode, Status], AuthState] = {
    (_AUTH, Status.SUCCESS): _S.LOGGED_IN,
    (_AUTH, Status.AUTH_CONTINUE): _S.CHALLENGED,
    (_AUTH, Status.AUTH_ERROR): _S.FAILED,
    (_AUTH, Status.EINVAL): _S.FAILED,
}
_AFTER_STEP: dict[tuple[Opcode, Status], AuthState] = {
    (_STEP, Status.SUCCESS): _S.LOGGED_IN,
    (_STEP, Status.AUTH_ERROR): _S.FAILED,
    (_STEP, Status.EINVAL): _S.FAILED,
}

TRANSITIONS: dict[AuthState, dict[tuple[Opcode, Status], AuthState]] = {
    _S.LOGGED_OUT: _AFTER_AUTH,
    _S.CHALLENGED: _AFTER_AUTH | _AFTER_STEP,
    _S.LOGGED_IN: _AFTER_AUTH,
    _S.FAILED: _AFTER_AUTH,
}
"""State -> (request, status of the reply) -> next state.

A request without an entry is answered with EINVAL and changes nothing. SASL_AUTH always ends the previous login.
"""


class Login:
    """The login state of one connection.

    Args:
        access: users and mechanisms of the listener.
        nonce: the server's part of the SCRAM nonce, for tests; None: a random one.

    Attributes:
        access: users and mechanisms of the listener.
        state: see TRANSITIONS.
        user: the user that has logged in; None before a login and after a failed one.
    """

    def __init__(self, access: ListenerAccess, *, nonce: str | None = None) -> None:
        self.access = access
        self._nonce = nonce
        self.state = AuthState.LOGGED_OUT
        self.user: User | None = None
        self._exchange: _ScramExchange | _CramMd5Exchange | None = None

    @property
    def effective_user(self) -> User | None:
        """The user whose privileges requests have; None if the client must log in first."""
        return self.user or self.access.anonymous_user

    @property
    def effective_user_name(self) -> str:
        """The effective user's name, for messages."""
        acting = self.effective_user
        return "a client without a login" if acting is None else acting.name or "an anonymous client"

    @property
    def claimed_name(self) -> str | None:
        """The name that the next SASL_STEP has to prove; None if it is not known yet."""
        return None if self._exchange is None else self._exchange.account

    def find_password_check(self, mechanism: bytes, value: bytes) -> tuple[str, Callable[[], bool]] | None:
        """Return the name in a SASL_AUTH, and a function that returns whether the password is right.

        The function takes milliseconds, and may be called on any thread. The result is None if the request has no
        password, or if `start` can decide at once.
        """
        if _decode_mechanism(mechanism) != PLAIN or PLAIN not in self.access.mechanisms or len(value) > MAX_STEP_BYTES:
            return None
        credentials = _parse_plain(value)
        if isinstance(credentials, LoginStep) or (check := self.access.users.find_password_check(*credentials)) is None:
            return None
        return credentials[0], check

    def start(self, mechanism: bytes, value: bytes, is_right: bool | None = None) -> LoginStep:
        """Answer a SASL_AUTH.

        Args:
            mechanism: the request's key.
            value: the request's value.
            is_right: the result of the function from `find_password_check`; None: the password is checked here.

        Returns:
            The answer.
        """
        self.user = self._exchange = None
        name = _decode_mechanism(mechanism)
        if name == CRAM_MD5 and PLAIN in self.access.mechanisms:
            self._exchange = _CramMd5Exchange(self.access.users)
            step = LoginStep(Status.AUTH_CONTINUE, self._exchange.challenge)
        elif name not in self.access.mechanisms:
            step = LoginStep(Status.AUTH_ERROR, reason=f"mechanism {_quote_mechanism(mechanism)} is not offered here")
        elif len(value) > MAX_STEP_BYTES:
            step = _refuse_length(value)
        elif name == PLAIN:
            step = self._check_plain(value, is_right)
        else:
            exchange = _ScramExchange(self.access.users, name, self._nonce)
            step = exchange.make_challenge(value)
            if step.status is Status.AUTH_CONTINUE:
                self._exchange = exchange
        return self._change_state(_AUTH, step)

    def proceed(self, mechanism: bytes, value: bytes) -> LoginStep:
        """Answer a SASL_STEP.

        Args:
            mechanism: the request's key, which must equal that of SASL_AUTH.
            value: the request's value.

        Returns:
            The answer.
        """
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return LoginStep(Status.EINVAL, reason="SASL_STEP without SASL_AUTH before it")
        if exchange.mechanism != _decode_mechanism(mechanism):
            step = LoginStep(
                Status.EINVAL, reason=f"SASL_STEP with {_quote_mechanism(mechanism)}, begun with {exchange.mechanism}"
            )
        elif len(value) > MAX_STEP_BYTES:
            step = _refuse_length(value)
        else:
            step = exchange.verify_proof(value)
            self.user = exchange.user if step.status is Status.SUCCESS else None
        return self._change_state(_STEP, step)

    def log_in_by_certificate(self, certificate: Mapping[str, Any] | None) -> User | None:
        """Log in the user that a client certificate names, and return the user; None if no name is a user's.

        Args:
            certificate: as returned by `SSLObject.getpeercert`.

        Returns:
            The user that was logged in, or None.
        """
        found = (self.access.users.find(name) for name in list_user_names(certificate or {}))
        user = next((user for user in found if user is not None), None)
        if user is not None:
            self.user, self.state = user, AuthState.LOGGED_IN
        return user

    def refresh_user(self) -> bool:
        """Look up the user again after the users have changed. Return whether user or roles are different now.

        A deleted user is logged out.

        Returns:
            Whether user or roles are different now.
        """
        if self.user is None:
            return False
        found = self.access.users.find(self.user.name)
        if found == self.user:
            return False
        self.user, self.state = found, AuthState.LOGGED_OUT if found is None else AuthState.LOGGED_IN
        return True

    def _change_state(self, opcode: Opcode, step: LoginStep) -> LoginStep:
        self.state = TRANSITIONS[self.state][opcode, step.status]
        return step

    def _check_plain(self, value: bytes, is_right: bool | None) -> LoginStep:
        credentials = _parse_plain(value)
        if isinstance(credentials, LoginStep):
            return credentials
        self.user = self.access.users.authenticate(*credentials, is_right)
        if self.user is None:
            return LoginStep(
                Status.AUTH_ERROR,
                reason=f"PLAIN: no such user or another password: {credentials[0]!r}",
                account=credentials[0],
            )
        return LoginStep(Status.SUCCESS, account=credentials[0])


def _parse_plain(value: bytes) -> tuple[str, str] | LoginStep:
    """Return the name and the password of a PLAIN message, or the answer to an invalid message."""
    try:
        authzid, name, password = value.decode().split("\0")
    except ValueError:
        return LoginStep(Status.EINVAL, reason="PLAIN: expected [authzid] NUL user NUL password in UTF-8")
    if authzid not in ("", name):
        return LoginStep(Status.AUTH_ERROR, reason="PLAIN: the authorization id is another user's")
    if len(name.encode()) > MAX_NAME:
        return LoginStep(Status.EINVAL, reason=f"PLAIN: a user name of more than {MAX_NAME} bytes")
    return name, password


class _ScramExchange:
    """One SCRAM exchange: first message, challenge, proof, result.

    Attributes:
        mechanism: the SCRAM mechanism's name.
        account: the name that the client sent.
        user: the user whose proof was right; None before.
    """

    def __init__(self, users: Users, mechanism: str, nonce: str | None) -> None:
        self.mechanism = mechanism
        self.user: User | None = None
        self._users = users
        self.account = ""
        self._exchange = ScramServer(mechanism, self._find_keys, nonce or secrets.token_urlsafe(_NONCE_BYTES))

    def _find_keys(self, name: str) -> ScramKeys:
        self.account = normalize_name(name)
        return self._users.find_verifier(self.mechanism, self.account).keys

    def make_challenge(self, value: bytes) -> LoginStep:
        """Return the answer to the client's first message."""
        parts = value.split(b",", 3)
        if len(parts) > 2 and len(parts[2]) > _LONGEST_ESCAPED:
            return LoginStep(Status.EINVAL, reason=f"{self.mechanism}: a user name of more than {MAX_NAME} bytes")
        try:
            return LoginStep(Status.AUTH_CONTINUE, self._exchange.challenge(value))
        except UnicodeDecodeError:
            return LoginStep(Status.EINVAL, reason=f"{self.mechanism}: a first message that is not UTF-8")
        except (ValueError, UsageError) as error:
            return LoginStep(Status.EINVAL, reason=f"{self.mechanism}: {error}")

    def verify_proof(self, value: bytes) -> LoginStep:
        """Return the answer to the client's final message."""
        try:
            verdict = self._exchange.verify(value)
        except UnicodeDecodeError:
            return LoginStep(Status.EINVAL, reason=f"{self.mechanism}: a final message that is not UTF-8")
        except ValueError as error:
            return LoginStep(Status.EINVAL, reason=f"{self.mechanism}: {error}")
        if verdict is None:
            reason = f"{self.mechanism}: no such user or another password: {self.account!r}"
            return LoginStep(Status.AUTH_ERROR, reason=reason, account=self.account)
        self.user = self._users.find(self.account)
        if self.user is None:  # removed since the challenge
            reason = f"{self.mechanism}: no such user any more: {self.account!r}"
            return LoginStep(Status.AUTH_ERROR, reason=reason, account=self.account)
        return LoginStep(Status.SUCCESS, verdict, account=self.account)


class _CramMd5Exchange:
    """One CRAM-MD5 exchange, for a user without a password.

    cbtransfer and cbbackup of Couchbase 2.5.1 start with this mechanism, without asking for the list of mechanisms. The
    list does not contain it: for users with a password the node would have to know the password. Source: RFC 2195.

    Attributes:
        mechanism: the mechanism's name.
        account: None: the name comes with the proof.
        user: the user whose proof was right; None before.
        challenge: the text that the client has to sign.
    """

    mechanism = CRAM_MD5
    account: str | None = None  # not known before the proof

    def __init__(self, users: Users) -> None:
        self.user: User | None = None
        self.challenge = f"<{secrets.token_hex(16)}@penstock>".encode()
        self._users = users

    def verify_proof(self, value: bytes) -> LoginStep:
        """Return the answer to the client's signature."""
        name, _, proof = value.rpartition(b" ")
        try:
            account = normalize_name(name.decode())
            user = self._users.find_without_password(account)
        except (UnicodeDecodeError, UsageError):
            return LoginStep(Status.EINVAL, reason="CRAM-MD5: expected USER, a space and a digest, in UTF-8")
        expected = hmac.digest(b"", self.challenge, "md5").hex().encode()
        # compare_digest takes the same time for every proof, so that the time reveals nothing.
        if user is None or not hmac.compare_digest(proof.lower(), expected):
            reason = f"CRAM-MD5: no such user without a password, or another digest: {name!r}"
            return LoginStep(Status.AUTH_ERROR, reason=reason, account=account)
        self.user = user
        return LoginStep(Status.SUCCESS, account=account)


def _decode_mechanism(key: bytes) -> str:
    """Return a mechanism's name in capitals, as in the list; clients need not write capitals."""
    return key.decode("ascii", "replace").upper()


def _quote_mechanism(mechanism: bytes) -> str:
    return repr(mechanism[:20].decode("ascii", "replace"))


def _refuse_length(value: bytes) -> LoginStep:
    return LoginStep(
        Status.EINVAL, reason=f"{len(value)} bytes in one step of the login, expected at most {MAX_STEP_BYTES}"
    )
