"""The client's side of a SASL login: first message, answer to a challenge, check of the server's proof. No I/O.

    login = choose_login(names_of(reply.value), user, password, plain_allowed=over_tls)
    SASL_AUTH   key login.mechanism, value login.initial()          -> SUCCESS, or AUTH_CONTINUE and a challenge
    SASL_STEP   key login.mechanism, value login.step(challenge)    -> SUCCESS and a verifier
    login.finish(verifier)

Source: RFC 2195 (CRAM-MD5, which Couchbase 2.x and 3.x offer beside PLAIN), RFC 4616 (PLAIN); for SCRAM see
penstock.wire.values.scram.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import NoReturn

from penstock.errors import AccessDenied, RemoteProtocolError, UsageError
from penstock.wire.values.saslprep import prepared
from penstock.wire.values.scram import SCRAM, ScramClient

__all__ = [
    "CRAM_MD5",
    "PLAIN",
    "CramLogin",
    "PlainLogin",
    "ScramLogin",
    "choose_login",
    "names_of",
]

CRAM_MD5, PLAIN = "CRAM-MD5", "PLAIN"

MECHANISMS = (*SCRAM, CRAM_MD5, PLAIN)
"""By strength, the strongest first. CRAM-MD5 does not show the password, but the server proves nothing, and a listener
can try passwords at full speed."""

_NONCE_BYTES = 24


def names_of(mechanisms: bytes) -> list[str]:
    """Return the names in an answer to SASL_LIST_MECHS."""
    return mechanisms.decode("ascii", "replace").upper().split()


def choose_login(
    mechanisms: Sequence[str], user: str, password: str, *, plain_allowed: bool = False
) -> ScramLogin | CramLogin | PlainLogin:
    """Return the strongest login that the server offers.

    plain_allowed: the password may be sent as it is, because the connection is encrypted or goes to this machine.
    Raises AccessDenied if nothing that may be used is offered, UsageError as `prepared` does.
    """
    usable = [name for name in MECHANISMS if name in mechanisms and (name != PLAIN or plain_allowed)]
    if usable and usable[0] in SCRAM:
        return ScramLogin(usable, user, password)
    if usable:
        return CramLogin(user, password) if usable[0] == CRAM_MD5 else PlainLogin(user, password)
    offered = " ".join(mechanisms) or "none"
    unless = ", and PLAIN only over TLS" if PLAIN in mechanisms else ""
    raise AccessDenied(
        f"no common way to log in: the server offers {offered}; expected one of {' '.join((*SCRAM, CRAM_MD5))}{unless}"
    )


class CramLogin:
    """Answers the challenge of a server with its HMAC under the password (CRAM-MD5)."""

    mechanism = CRAM_MD5

    def __init__(self, user: str, password: str) -> None:
        self._user = user.encode()
        self._password = password.encode()

    def initial(self) -> bytes:
        """Return the value of SASL_AUTH: nothing, the server speaks first."""
        return b""

    def step(self, challenge: bytes) -> bytes:
        """Return the value of SASL_STEP. Raises RemoteProtocolError for an empty challenge, which proves nothing."""
        if not challenge:
            raise RemoteProtocolError("an empty CRAM-MD5 challenge")
        return self._user + b" " + hmac.digest(self._password, challenge, "md5").hex().encode()

    def finish(self, verifier: bytes) -> None:
        """Accept any text at the end: the mechanism has no proof of the server."""


class PlainLogin:
    """The password as it is, in one step."""

    mechanism = PLAIN

    def __init__(self, user: str, password: str) -> None:
        if "\0" in user or "\0" in password:
            raise UsageError("a user name or password with a NUL character, which PLAIN cannot say")
        self._said = f"\0{user}\0{password}".encode()

    def initial(self) -> bytes:
        return self._said

    def step(self, challenge: bytes) -> NoReturn:
        raise RemoteProtocolError("a challenge in answer to PLAIN, which has only one step")

    def finish(self, verifier: bytes) -> None:
        """Accept any text at the end: some servers send `Authenticated`."""


class ScramLogin:
    """Proves to the server that this side knows the password, and lets the server prove that it knows it too.

    mechanisms: those that the server offers; the strongest is taken. nonce: for tests; printable, without a comma.
    Raises AccessDenied if none of them is SCRAM, UsageError for a name or password that cannot be one.
    """

    def __init__(self, mechanisms: Sequence[str], user: str, password: str, *, nonce: str | None = None) -> None:
        found = [name for name in SCRAM if name in mechanisms]
        if not found:
            raise AccessDenied(f"none of {' '.join(mechanisms) or 'no mechanisms'} is SCRAM: {' '.join(SCRAM)}")
        self.mechanism = found[0]
        name = prepared(user)
        if not name:
            raise UsageError("an empty user name")
        nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
        self._exchange = ScramClient(self.mechanism, name, prepared(password), nonce)

    def initial(self) -> bytes:
        """Return the value of SASL_AUTH."""
        return self._exchange.first()

    def step(self, challenge: bytes) -> bytes:
        """Return the value of SASL_STEP. Raises RemoteProtocolError for a challenge that must not be answered."""
        return self._exchange.final(challenge)

    def finish(self, verifier: bytes) -> None:
        """Check the server's proof. Raises RemoteProtocolError if the server does not know the password itself."""
        self._exchange.check(verifier)
