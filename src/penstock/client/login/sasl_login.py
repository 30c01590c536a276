"""The client's side of a SASL login: first message, answer to a challenge, check of the server's proof. No I/O.

```
    login = choose_login(parse_mechanisms(reply.value), user, password, plain_allowed=over_tls)
    SASL_AUTH   key login.mechanism, value login.make_initial()     -> SUCCESS, or AUTH_CONTINUE and a challenge
    SASL_STEP   key login.mechanism, value login.step(challenge)    -> SUCCESS and a verifier
    login.finish(verifier)
```

Source: RFC 2195 (CRAM-MD5, which Couchbase 2.x and 3.x offer beside PLAIN), RFC 4616 (PLAIN), RFC 7628 (OAUTHBEARER);
for SCRAM see penstock.wire.values.scram.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import NoReturn

from penstock.errors import AccessDenied, RemoteProtocolError, UsageError
from penstock.wire.values.saslprep import prepare_text
from penstock.wire.values.scram import SCRAM, ScramClient

CRAM_MD5, OAUTHBEARER, PLAIN = "CRAM-MD5", "OAUTHBEARER", "PLAIN"

MECHANISMS = (*SCRAM, CRAM_MD5, PLAIN)
"""The strongest mechanism first."""

_REVEALING = (CRAM_MD5, PLAIN)
"""PLAIN sends the password. CRAM-MD5 sends one round of a fast hash of it, from which passwords are guessed within
milliseconds. Neither authenticates the server, so a peer in the middle need only offer nothing else."""

_NONCE_BYTES = 24


def parse_mechanisms(mechanisms: bytes) -> list[str]:
    """Return the mechanism names in the answer to SASL_LIST_MECHS."""
    return mechanisms.decode("ascii", "replace").upper().split()


def choose_login(
    mechanisms: Sequence[str], user: str, password: str, *, plain_allowed: bool = False
) -> ScramLogin | CramLogin | PlainLogin:
    """Return the login for the strongest mechanism that the server offers.

    Args:
        mechanisms: the mechanisms that the server offers.
        user: the user name.
        password: the password.
        plain_allowed: PLAIN and CRAM-MD5 may be used, because the connection is encrypted or local. An empty password,
            as buckets of Couchbase 2.x often have, is no secret and always permits them.

    Raises:
        AccessDenied: no usable mechanism is offered.
    """
    may_reveal = plain_allowed or not password
    usable = [name for name in MECHANISMS if name in mechanisms and (name not in _REVEALING or may_reveal)]
    if usable and usable[0] in SCRAM:
        return ScramLogin(usable, user, password)
    if usable:
        return CramLogin(user, password) if usable[0] == CRAM_MD5 else PlainLogin(user, password)
    offered = " ".join(mechanisms) or "none"
    unless = f", and {' and '.join(_REVEALING)} only over TLS, on this machine, or with the option allowPlain"
    revealing = any(name in mechanisms for name in _REVEALING)
    raise AccessDenied(
        f"no common SASL mechanism: the server offers {offered}; expected one of {' '.join(SCRAM)}"
        f"{unless if revealing else ''}"
    )


def choose_token_login(mechanisms: Sequence[str], user: str, token: str) -> TokenLogin:
    """Return the login with a token. Raises AccessDenied if the server does not accept tokens."""
    if OAUTHBEARER not in mechanisms:
        offered = " ".join(mechanisms) or "none"
        raise AccessDenied(f"no login with a token: the server offers {offered}; expected {OAUTHBEARER}")
    return TokenLogin(user, token)


class TokenLogin:
    """OAUTHBEARER: sends a token, in one step. Source: RFC 7628; kv_engine, cbsasl/oauthbearer."""

    mechanism = OAUTHBEARER

    def __init__(self, user: str, token: str) -> None:
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._message = f"n,{f'a={name}' if name else ''},\x01auth=Bearer {token}\x01\x01".encode()

    def make_initial(self) -> bytes:
        """Return the value of SASL_AUTH."""
        return self._message

    def step(self, challenge: bytes) -> bytes:
        """Return the value of SASL_STEP, after which the server refuses the login: a challenge describes an error."""
        return b"\x01"

    def finish(self, verifier: bytes) -> None:
        """Accept any last message: TLS has authenticated the server."""


class CramLogin:
    """CRAM-MD5: answers the server's challenge with its HMAC under the password."""

    mechanism = CRAM_MD5

    def __init__(self, user: str, password: str) -> None:
        self._user = user.encode()
        self._password = password.encode()

    def make_initial(self) -> bytes:
        """Return the value of SASL_AUTH, which is empty: the server sends the first message."""
        return b""

    def step(self, challenge: bytes) -> bytes:
        """Return the value of SASL_STEP. Raises RemoteProtocolError for an empty challenge."""
        if not challenge:
            raise RemoteProtocolError("an empty CRAM-MD5 challenge")
        return self._user + b" " + hmac.digest(self._password, challenge, "md5").hex().encode()

    def finish(self, verifier: bytes) -> None:
        """Accept any last message: the mechanism does not authenticate the server."""


class PlainLogin:
    """PLAIN: sends the password unencrypted, in one step."""

    mechanism = PLAIN

    def __init__(self, user: str, password: str) -> None:
        if "\0" in user or "\0" in password:
            raise UsageError("a user name or password with a NUL character, which PLAIN cannot send")
        self._message = f"\0{user}\0{password}".encode()

    def make_initial(self) -> bytes:
        """Return the value of SASL_AUTH."""
        return self._message

    def step(self, challenge: bytes) -> NoReturn:
        """Raise RemoteProtocolError: PLAIN has no challenge."""
        raise RemoteProtocolError("a challenge in answer to PLAIN, which has only one step")

    def finish(self, verifier: bytes) -> None:
        """Accept any last message: some servers send `Authenticated`."""


class ScramLogin:
    """SCRAM: client and server prove to each other that they know the password, without sending it.

    Raises AccessDenied if the server offers no SCRAM mechanism, UsageError for an invalid name or password.

    Attributes:
        mechanism: the strongest SCRAM mechanism that the server offers.
    """

    def __init__(self, mechanisms: Sequence[str], user: str, password: str, *, nonce: str | None = None) -> None:
        found = [name for name in SCRAM if name in mechanisms]
        if not found:
            raise AccessDenied(f"none of {' '.join(mechanisms) or 'no mechanisms'} is SCRAM: {' '.join(SCRAM)}")
        self.mechanism = found[0]
        name = prepare_text(user)
        if not name:
            raise UsageError("an empty user name")
        nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
        self._exchange = ScramClient(self.mechanism, name, prepare_text(password), nonce)

    def make_initial(self) -> bytes:
        """Return the value of SASL_AUTH."""
        return self._exchange.begin()

    def step(self, challenge: bytes) -> bytes:
        """Return the value of SASL_STEP. Raises RemoteProtocolError for an invalid challenge."""
        return self._exchange.respond(challenge)

    def finish(self, verifier: bytes) -> None:
        """Check the server's proof. Raises RemoteProtocolError if the server does not know the password."""
        self._exchange.verify(verifier)


SaslLogin = ScramLogin | CramLogin | PlainLogin | TokenLogin
"""A login by one of the mechanisms."""
