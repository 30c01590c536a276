"""SCRAM, both sides: messages in, messages out. The caller draws the nonces.

    client = ScramClient(mechanism, name, password, nonce)      server = ScramServer(mechanism, keys_of, nonce)
    client.first()                                  ->          server.challenge(first)
    client.final(challenge)                         ->          server.verify(final), None if the proof is wrong
    client.check(verdict)

It is our own because the library for it (scramp 1.5) refuses peers that we have to talk to. Couchbase before 7.6 asks
for 4000 iterations (ns_server, scram_sha.erl), where scramp wants 4096. Clients on Couchbase's C++ core send nonces
with spaces, which RFC 5802 does not allow.

Source: RFC 5802, sections 3, 5 and 7, and RFC 7677; without channel binding.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from penstock.errors import RemoteProtocolError

__all__ = ["MAX_ITERATIONS", "MIN_ITERATIONS", "SCRAM", "ScramClient", "ScramKeys", "ScramServer"]

SCRAM: Final[Mapping[str, str]] = MappingProxyType(
    {"SCRAM-SHA512": "sha512", "SCRAM-SHA256": "sha256", "SCRAM-SHA1": "sha1"}
)
"""The mechanisms by the names that this protocol has for them, the strongest first; each with its hash."""

MIN_ITERATIONS, MAX_ITERATIONS = 4000, 1_000_000
"""What a server may ask for. Fewer would make a password that somebody overhears easier to guess; more would keep the
client busy for more than a second."""

_FIRST: Final = re.compile(r"([ny]),,(n=([^,]*),r=([\x20-\x2b\x2d-\x7e]+)(?:,[a-z]=[^,]*)*)", re.ASCII | re.IGNORECASE)
_CHALLENGE: Final = re.compile(r"r=([^,]*),s=([^,]+),i=([0-9]+)((?:,[^,=]+=[^,]*)*)")
_FINAL: Final = re.compile(r"(c=([^,]*),r=([^,]*)(?:,[a-z]=[^,]*)*),p=([^,]*)", re.ASCII | re.IGNORECASE)
_HEADER: Final = "n,,"  # of the client's first message: no channel binding, no authorization identity
_ESCAPES: Final = {"=2C": ",", "=3D": "="}
_ESCAPED: Final = re.compile("=.{0,2}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What a server keeps of a password (RFC 5802, section 3). Its repr does not show the keys."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def derive(cls, mechanism: str, password: bytes, salt: bytes, iterations: int) -> ScramKeys:
        """Make the keys of a password, which takes milliseconds. password: after SASLprep, in UTF-8."""
        client_key, server_key = _client_and_server_key(SCRAM[mechanism], password, salt, iterations)
        return cls(salt, iterations, _digest(SCRAM[mechanism], client_key), server_key)


class ScramClient:
    """The client's side of one exchange.

    Args:
        mechanism: one of SCRAM.
        name, password: after SASLprep.
        nonce: printable, without a comma, never used before.
    """

    def __init__(self, mechanism: str, name: str, password: str, nonce: str) -> None:
        self._hash = SCRAM[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        self._bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._verdict = b""

    def first(self) -> bytes:
        return f"{_HEADER}{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """Answer a challenge. Raises RemoteProtocolError for one that must not be answered."""
        nonce, salt, iterations = _read_challenge(challenge, self._nonce)
        final = f"c={b64encode(_HEADER.encode()).decode()},r={nonce}"
        whole = f"{self._bare},{challenge.decode()},{final}".encode()
        client_key, server_key = _client_and_server_key(self._hash, self._password, salt, iterations)
        proof = _xor(client_key, hmac.digest(_digest(self._hash, client_key), whole, self._hash))
        self._verdict = b"v=" + b64encode(hmac.digest(server_key, whole, self._hash))
        return f"{final},p={b64encode(proof).decode()}".encode()

    def check(self, verdict: bytes) -> None:
        """Check the server's last message. Raises RemoteProtocolError if the server does not know the password."""
        if not self._verdict or not hmac.compare_digest(verdict.split(b",")[0], self._verdict):
            raise RemoteProtocolError("the server did not prove that it knows the password: it may be another one")


class ScramServer:
    """The server's side of one exchange.

    Args:
        mechanism: one of SCRAM.
        keys_of: returns the keys of a name, also of one that nobody has; what it raises is passed on.
        nonce: the server's part of it, as of ScramClient.

    Attributes:
        name: of the client, as it wrote it; empty before `challenge`.
    """

    def __init__(self, mechanism: str, keys_of: Callable[[str], ScramKeys], nonce: str) -> None:
        self.name = ""
        self._hash = SCRAM[mechanism]
        self._keys_of = keys_of
        self._nonce = nonce
        self._header = self._said = ""
        self._keys: ScramKeys

    def challenge(self, first: bytes) -> bytes:
        """Answer the client's first message. Raises ValueError for another message."""
        found = _FIRST.fullmatch(first.decode())
        if found is None:
            raise ValueError("a first message that is not n,,n=…,r=…")
        header, bare, name, nonce = found.groups()
        self.name = _ESCAPED.sub(_unescaped, name)
        self._keys = self._keys_of(self.name)
        self._header, self._nonce = f"{header},,", nonce + self._nonce
        challenge = f"r={self._nonce},s={b64encode(self._keys.salt).decode()},i={self._keys.iterations}"
        self._said = f"{bare},{challenge}"
        return challenge.encode()

    def verify(self, final: bytes) -> bytes | None:
        """Check the client's proof, and return the server's; None if the client's is wrong.

        Raises ValueError for a message that does not answer the challenge.
        """
        found = _FINAL.fullmatch(final.decode())
        if found is None:
            raise ValueError("a final message that is not c=…,r=…,p=…")
        without_proof, header, nonce, proof = found.groups()
        if b64decode(header, validate=True) != self._header.encode():
            raise ValueError("a final message whose header is not the first one's")
        if nonce != self._nonce:
            raise ValueError("a final message with another nonce")
        whole = f"{self._said},{without_proof}".encode()
        if not self._proves(b64decode(proof, validate=True), whole):
            return None
        return b"v=" + b64encode(hmac.digest(self._keys.server_key, whole, self._hash))

    def _proves(self, proof: bytes, whole: bytes) -> bool:
        signature = hmac.digest(self._keys.stored_key, whole, self._hash)
        if len(proof) != len(signature):
            return False
        return hmac.compare_digest(_digest(self._hash, _xor(proof, signature)), self._keys.stored_key)


def _client_and_server_key(name: str, password: bytes, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    salted = hashlib.pbkdf2_hmac(name, password, salt, iterations)
    return hmac.digest(salted, b"Client Key", name), hmac.digest(salted, b"Server Key", name)


def _digest(name: str, data: bytes) -> bytes:
    return hashlib.new(name, data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _read_challenge(challenge: bytes, nonce: str) -> tuple[str, bytes, int]:
    """Return nonce, salt and iterations of a challenge. nonce: ours, which the server's has to begin with."""
    try:
        found = _CHALLENGE.fullmatch(challenge.decode())
        salt = b64decode(found[2], validate=True) if found is not None else b""
    except ValueError:
        found = None
    if found is None or not salt or _repeats(found[4]):
        raise RemoteProtocolError("a SCRAM challenge that is not r=…,s=…,i=…")
    digits = found[3]
    if len(digits) > 9 or not MIN_ITERATIONS <= int(digits) <= MAX_ITERATIONS:
        shown = digits if len(digits) <= 9 else f"a number of {len(digits)} digits"
        raise RemoteProtocolError(
            f"a SCRAM challenge with {shown} iterations, {MIN_ITERATIONS} to {MAX_ITERATIONS} expected"
        )
    if not found[1].startswith(nonce) or found[1] == nonce:
        raise RemoteProtocolError("a SCRAM challenge whose nonce does not begin with ours")
    return found[1], salt, int(digits)


def _repeats(extensions: str) -> bool:
    """Does an attribute stand twice in a challenge?"""
    names = ["r", "s", "i", *(part.partition("=")[0] for part in extensions.split(",")[1:])]
    return len(set(names)) < len(names)


def _unescaped(found: re.Match[str]) -> str:
    if found[0] not in _ESCAPES:
        raise ValueError("a user name with an = that is neither =2C nor =3D")
    return _ESCAPES[found[0]]
