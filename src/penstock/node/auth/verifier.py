"""Verifiers of passwords: the node stores them, and a verifier does not reveal its password.

Source: RFC 5802, section 3: StoredKey and ServerKey with their salt and iteration count.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from penstock.errors import UsageError
from penstock.wire.values.saslprep import prepare_text
from penstock.wire.values.scram import MAX_ITERATIONS, SCRAM, ScramKeys

ITERATIONS = 15_000
"""The default of Couchbase 7.6. A client computes them once a login (6 ms with SHA-512); the node only if the client
sends the password itself (PLAIN, HTTP)."""

MIN_ITERATIONS = 4096  # the least that RFC 7677 recommends
SALT_BYTES = 32
_SALT_LENGTHS = range(12, 65)
_KEY_LENGTHS = {"sha512": 64, "sha256": 32, "sha1": 20}


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies one password with one SCRAM mechanism. `repr` hides salt and keys.

    Attributes:
        mechanism: name of the SCRAM mechanism.
        salt: 12 to 64 bytes.
        iterations: of PBKDF2.
        stored_key: checks a client's proof; as long as the mechanism's hash.
        server_key: proves the server; as long as the mechanism's hash.
    """

    mechanism: str
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def derive(cls, mechanism: str, password: str, iterations: int = ITERATIONS, salt: bytes | None = None) -> Self:
        """Return the verifier of a password; takes milliseconds.

        Args:
            mechanism: name of the SCRAM mechanism.
            password: the password, before SASLprep.
            iterations: of PBKDF2.
            salt: None: a random one.

        Raises:
            UsageError: the password has a character that SASLprep refuses.
        """
        salt = salt or secrets.token_bytes(SALT_BYTES)
        keys = ScramKeys.derive(mechanism, prepare_text(password).encode(), salt, iterations)
        return cls(mechanism, keys.salt, keys.iterations, keys.stored_key, keys.server_key)

    @property
    def keys(self) -> ScramKeys:
        """The keys that verify a SCRAM proof."""
        return ScramKeys(self.salt, self.iterations, self.stored_key, self.server_key)

    @classmethod
    def make_decoy(cls, mechanism: str, name: str, iterations: int, secret: bytes) -> Self:
        """Return the verifier of a user that does not exist: always the same, and no password matches it.

        Args:
            mechanism: name of the SCRAM mechanism.
            name: the user's name.
            iterations: as those of known users.
            secret: the node's secret. Without it, a client cannot distinguish the salt from a random one.
        """

        def derive_part(part: str, length: int) -> bytes:
            return hmac.digest(secret, f"{part}\0{mechanism}\0{name}".encode(), "sha512")[:length]

        length = _KEY_LENGTHS[SCRAM[mechanism]]
        stored, server = derive_part("stored", length), derive_part("server", length)
        return cls(mechanism, derive_part("salt", SALT_BYTES), iterations, stored, server)

    def matches(self, password: str) -> bool:
        """Return whether this is the password; takes milliseconds, and the same time for all wrong ones."""
        try:
            given = self.derive(self.mechanism, password, self.iterations, self.salt)
        except UsageError:
            return False
        return hmac.compare_digest(given.stored_key, self.stored_key)

    def to_dict(self) -> dict[str, Any]:
        """Return the verifier without its mechanism as a JSON object; bytes are Base64."""
        return {
            "salt": b64encode(self.salt).decode(),
            "iterations": self.iterations,
            "stored_key": b64encode(self.stored_key).decode(),
            "server_key": b64encode(self.server_key).decode(),
        }

    @classmethod
    def from_dict(cls, mechanism: str, fields: Mapping[str, Any]) -> Self:
        """Return the verifier of a JSON object.

        Raises:
            ValueError: a value is out of range, or is not Base64.
            LookupError: a field or the mechanism is missing.
            TypeError: a field has another type.
        """
        salt, stored, server = (b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key"))
        iterations, length = fields["iterations"], _KEY_LENGTHS[SCRAM[mechanism]]
        if type(iterations) is not int or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ValueError(f"{iterations!r} iterations, expected {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        if len(salt) not in _SALT_LENGTHS or len(stored) != length or len(server) != length:
            raise ValueError(f"keys of {len(stored)} and {len(server)} bytes, expected {length}; salt of {len(salt)}")
        return cls(mechanism, salt, iterations, stored, server)


def derive_verifiers(password: str, iterations: int = ITERATIONS) -> dict[str, Verifier]:
    """Return the verifiers of a password by mechanism.

    Raises:
        UsageError: as in `Verifier.derive`.
    """
    return {mechanism: Verifier.derive(mechanism, password, iterations) for mechanism in SCRAM}
