"""Logging in to a node, as the client does it: what it says first, what it answers, and what it checks. No I/O.

    login = choose_login(names_of(reply.value), user, password, plain_allowed=over_tls)
    SASL_AUTH   key login.mechanism, value login.initial()          -> SUCCESS, or AUTH_CONTINUE and a challenge
    SASL_STEP   key login.mechanism, value login.step(challenge)    -> SUCCESS and a verifier
    login.finish(verifier)

Source: RFC 5802 and 7677 (SCRAM, here without channel binding), RFC 2195 (CRAM-MD5, which Couchbase 2.x and 3.x offer
beside PLAIN), RFC 4616 (PLAIN), RFC 4013 (SASLprep). The client's
side of SCRAM is written out here, because scramp's refuses less than 4096 iterations, and Couchbase before 7.6 has 4000
(ns_server, scram_sha.erl).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from penstock.errors import AccessDenied, RemoteProtocolError, UsageError

__all__ = [
    "CRAM_MD5",
    "MAX_ITERATIONS",
    "PLAIN",
    "SCRAM",
    "CramLogin",
    "PlainLogin",
    "ScramLogin",
    "choose_login",
    "names_of",
    "prepared",
]

SCRAM = {"SCRAM-SHA512": "sha512", "SCRAM-SHA256": "sha256", "SCRAM-SHA1": "sha1"}
"""The SCRAM mechanisms by the names that this protocol has for them, the strongest first; each with its hash."""

CRAM_MD5, PLAIN = "CRAM-MD5", "PLAIN"

MECHANISMS = (*SCRAM, CRAM_MD5, PLAIN)
"""By strength, the strongest first. CRAM-MD5 does not show the password, but the server proves nothing, and a listener
can try passwords at full speed."""

MIN_ITERATIONS, MAX_ITERATIONS = 4000, 1_000_000
"""What a server may ask for. Fewer would make a password that somebody overhears easier to guess; more would keep this
process busy for more than a second."""

_NONCE_BYTES = 24


def names_of(mechanisms: bytes) -> list[str]:
    """Return the names in an answer to SASL_LIST_MECHS."""
    return mechanisms.decode("ascii", "replace").upper().split()


def prepared(text: str) -> str:
    """Return a name or a password in the one form that both sides hash (SASLprep).

    Raises UsageError for a character that is not allowed in it, without showing the text: it may be a password.
    """
    from scramp.utils import ScramException, saslprep  # type: ignore[import-untyped]

    try:
        return str(saslprep(text))
    except ScramException as error:
        raise UsageError(f"a name or password that SASLprep (RFC 4013) refuses: {error.args[0]}") from None


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
        """Take what the server says at the end: anything, as some say `Authenticated`."""


class ScramLogin:
    """Proves to the server that this side knows the password, and lets it prove that it knows it too.

    mechanisms: those that the server offers; the strongest is taken. nonce: for tests; printable, without a comma.
    Raises AccessDenied if none of them is SCRAM, UsageError for a name or password that cannot be one.
    """

    def __init__(self, mechanisms: Sequence[str], user: str, password: str, *, nonce: str | None = None) -> None:
        found = [name for name in SCRAM if name in mechanisms]
        if not found:
            raise AccessDenied(f"none of {' '.join(mechanisms) or 'no mechanisms'} is SCRAM: {' '.join(SCRAM)}")
        self.mechanism = found[0]
        self._hash = SCRAM[self.mechanism]
        name = prepared(user)
        if not name:
            raise UsageError("an empty user name")
        self._password = prepared(password).encode()
        self._nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
        self._bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._verifier = b""

    def initial(self) -> bytes:
        """Return the value of SASL_AUTH."""
        return f"n,,{self._bare}".encode()

    def step(self, challenge: bytes) -> bytes:
        """Return the value of SASL_STEP. Raises RemoteProtocolError for a challenge that must not be answered."""
        said = _read_challenge(challenge, self._nonce)
        final = f"c=biws,r={said.nonce}"  # biws: n,, in base64, what `initial` began with
        whole = f"{self._bare},{challenge.decode()},{final}".encode()
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, said.salt, said.iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        signature = hmac.digest(hashlib.new(self._hash, client_key).digest(), whole, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._verifier = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), whole, self._hash)
        return f"{final},p={b64encode(proof).decode()}".encode()

    def finish(self, verifier: bytes) -> None:
        """Check what the server says at the end. Raises RemoteProtocolError if it does not know the password itself."""
        expected = b"v=" + b64encode(self._verifier)
        if not self._verifier or not hmac.compare_digest(verifier.split(b",")[0], expected):
            raise RemoteProtocolError("the server did not prove that it knows the password: it may be another one")


class _Challenge(NamedTuple):
    nonce: str
    salt: bytes
    iterations: int


def _read_challenge(challenge: bytes, nonce: str) -> _Challenge:
    """Read `r=NONCE,s=SALT,i=ITERATIONS`, and what may follow. nonce: ours, which the server's begins with."""
    try:
        parts = challenge.decode().split(",")
        fields = dict(part.split("=", 1) for part in parts)
        salt = b64decode(fields["s"], validate=True)
        digits = fields["i"]
        whole = [part[:2] for part in parts[:3]] == ["r=", "s=", "i="] and len(fields) == len(parts)
    except (ValueError, KeyError):
        whole = False
    if not (whole and salt and digits.isascii() and digits.isdigit()):
        raise RemoteProtocolError("a SCRAM challenge that is not r=…,s=…,i=…")
    if len(digits) > 9 or not MIN_ITERATIONS <= int(digits) <= MAX_ITERATIONS:
        shown = digits if len(digits) <= 9 else f"a number of {len(digits)} digits"
        raise RemoteProtocolError(
            f"a SCRAM challenge with {shown} iterations, {MIN_ITERATIONS} to {MAX_ITERATIONS} expected"
        )
    if not fields["r"].startswith(nonce) or fields["r"] == nonce:
        raise RemoteProtocolError("a SCRAM challenge whose nonce does not begin with ours")
    return _Challenge(fields["r"], salt, int(digits))
