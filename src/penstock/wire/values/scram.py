"""SCRAM, both sides: messages in, messages out. The caller draws the nonces.

    client = ScramClient(mechanism, name, password, nonce)      server = ScramServer(mechanism, find_keys, nonce)
    client.begin()                                  ->          server.challenge(first)
    client.respond(challenge)                       ->          server.verify(final), None if the proof is wrong
    client.verify(verdict)

The library for it (scramp 1.5) cannot be used: it refuses peers that must be able to log in. Couchbase before 7.6 asks
for 4000 iterations (ns_server, scram_sha.erl), where scramp requires 4096. Clients on Couchbase's C++ core send nonces
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

SCRAM: Final[Mapping[str, str]] = MappingProxyType(
    {"SCRAM-SHA512": "sha512", "SCRAM-SHA256": "sha256", "SCRAM-SHA1": "sha1"}
)
"""Mechanism, as this protocol names it -> its hash. The strongest mechanism is first."""

MIN_ITERATIONS, MAX_ITERATIONS = 4000, 1_000_000
"""Iterations that a server may ask for.

With fewer, an eavesdropper could guess the password more easily. With more, the client would be busy for over a second.
"""

_FIRST: Final = re.compile(r"([ny]),,(n=([^,]*),r=([\x20-\x2b\x2d-\x7e]+)(?:,[a-z]=[^,]*)*)", re.ASCII | re.IGNORECASE)
_CHALLENGE: Final = re.compile(r"r=([^,]*),s=([^,]+),i=([0-9]+)((?:,[^,=]+=[^,]*)*)")
_FINAL: Final = re.compile(r"(c=([^,]*),r=([^,]*)(?:,[a-z]=[^,]*)*),p=([^,]*)", re.ASCII | re.IGNORECASE)
_HEADER: Final = "n,,"  # of the client's first message: no channel binding, no authorization identity
_ESCAPES: Final = {"=2C": ",", "=3D": "="}
_ESCAPED: Final = re.compile("=.{0,2}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """Keys that a server stores instead of a password (RFC 5802, section 3). Its repr does not show them."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def derive(cls, mechanism: str, password: bytes, salt: bytes, iterations: int) -> ScramKeys:
        """Return the keys of a password, which takes milliseconds.

        Args:
            mechanism: one of SCRAM.
            password: after SASLprep, in UTF-8.
            salt: random bytes.
            iterations: rounds of the hash.
        """
        client_key, server_key = _derive_keys(SCRAM[mechanism], password, salt, iterations)
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

    def begin(self) -> bytes:
        """Return the client's first message."""
        return f"{_HEADER}{self._bare}".encode()

    def respond(self, challenge: bytes) -> bytes:
        """Return the client's final message.

        Raises:
            RemoteProtocolError: the challenge is malformed or unsafe and must not be answered.
        """
        nonce, salt, iterations = _read_challenge(challenge, self._nonce)
        final = f"c={b64encode(_HEADER.encode()).decode()},r={nonce}"
        whole = f"{self._bare},{challenge.decode()},{final}".encode()
        client_key, server_key = _derive_keys(self._hash, self._password, salt, iterations)
        proof = _xor(client_key, hmac.digest(_digest(self._hash, client_key), whole, self._hash))
        self._verdict = b"v=" + b64encode(hmac.digest(server_key, whole, self._hash))
        return f"{final},p={b64encode(proof).decode()}".encode()

    def verify(self, verdict: bytes) -> None:
        """Check the server's last message.

        Raises:
            RemoteProtocolError: the server does not know the password.
        """
        if not self._verdict or not hmac.compare_digest(verdict.split(b",")[0], self._verdict):
            raise RemoteProtocolError("the server did not prove that it knows the password: it may be an impostor")


class ScramServer:
    """The server's side of one exchange.

    Args:
        mechanism: one of SCRAM.
        find_keys: returns the keys of a user name, also for a name that no user has. Its exceptions are passed on.
        nonce: the server's part of the nonce: printable, without a comma, never used before.

    Attributes:
        name: the client's user name, as the client wrote it; empty before `challenge`.
    """

    def __init__(self, mechanism: str, find_keys: Callable[[str], ScramKeys], nonce: str) -> None:
        self.name = ""
        self._hash = SCRAM[mechanism]
        self._find_keys = find_keys
        self._nonce = nonce
        self._header = self._messages = ""
        self._keys: ScramKeys

    def challenge(self, first: bytes) -> bytes:
        """Return the server's first message, which answers the client's.

        Raises:
            ValueError: it is not a first message.
        """
        found = _FIRST.fullmatch(first.decode())
        if found is None:
            raise ValueError("a first message that is not n,,n=…,r=…")
        header, bare, name, nonce = found.groups()
        self.name = _ESCAPED.sub(_unescape, name)
        self._keys = self._find_keys(self.name)
        self._header, self._nonce = f"{header},,", nonce + self._nonce
        challenge = f"r={self._nonce},s={b64encode(self._keys.salt).decode()},i={self._keys.iterations}"
        self._messages = f"{bare},{challenge}"
        return challenge.encode()

    def verify(self, final: bytes) -> bytes | None:
        """Return the server's proof if the client's proof is right, None if it is wrong.

        Raises:
            ValueError: the message does not answer the challenge.
        """
        found = _FINAL.fullmatch(final.decode())
        if found is None:
            raise ValueError("a final message that is not c=…,r=…,p=…")
        without_proof, header, nonce, proof = found.groups()
        if b64decode(header, validate=True) != self._header.encode():
            raise ValueError("a final message whose header is not the first one's")
        if nonce != self._nonce:
            raise ValueError("a final message with another nonce")
        whole = f"{self._messages},{without_proof}".encode()
        if not self._is_proof(b64decode(proof, validate=True), whole):
            return None
        return b"v=" + b64encode(hmac.digest(self._keys.server_key, whole, self._hash))

    def _is_proof(self, proof: bytes, whole: bytes) -> bool:
        # The time of compare_digest does not depend on where two proofs differ.
        signature = hmac.digest(self._keys.stored_key, whole, self._hash)
        if len(proof) != len(signature):
            return False
        return hmac.compare_digest(_digest(self._hash, _xor(proof, signature)), self._keys.stored_key)


def _derive_keys(name: str, password: bytes, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    salted = hashlib.pbkdf2_hmac(name, password, salt, iterations)
    return hmac.digest(salted, b"Client Key", name), hmac.digest(salted, b"Server Key", name)


def _digest(name: str, data: bytes) -> bytes:
    return hashlib.new(name, data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _read_challenge(challenge: bytes, nonce: str) -> tuple[str, bytes, int]:
    """Return nonce, salt and iterations of a challenge. The challenge's nonce has to begin with `nonce`.

    Raises:
        RemoteProtocolError: the challenge is malformed or unsafe.
    """
    try:
        found = _CHALLENGE.fullmatch(challenge.decode())
        salt = b64decode(found[2], validate=True) if found is not None else b""
    except ValueError:
        found = None
    if found is None or not salt or _has_duplicates(found[4]):
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


def _has_duplicates(extensions: str) -> bool:
    """Return whether an attribute stands twice in a challenge."""
    names = ["r", "s", "i", *(part.partition("=")[0] for part in extensions.split(",")[1:])]
    return len(set(names)) < len(names)


def _unescape(found: re.Match[str]) -> str:
    if found[0] not in _ESCAPES:
        raise ValueError("a user name with an = that is neither =2C nor =3D")
    return _ESCAPES[found[0]]
