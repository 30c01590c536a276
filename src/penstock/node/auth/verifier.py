"""What a node keeps of a password: it checks one that is given, and is none itself.

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
from penstock.wire.values.saslprep import prepared
from penstock.wire.values.scram import MAX_ITERATIONS, SCRAM, ScramKeys

__all__ = ["ITERATIONS", "MIN_ITERATIONS", "Verifier", "verifiers_of"]

ITERATIONS = 15_000
"""As Couchbase 7.6 has it. A client computes that once a login (6 ms with SHA-512); the node only if it is given the
password itself (PLAIN, HTTP)."""

MIN_ITERATIONS = 4096  # the least that RFC 7677 recommends
SALT_BYTES = 32
_SALT_LENGTHS = range(12, 65)
_KEY_LENGTHS = {"sha512": 64, "sha256": 32, "sha1": 20}


@dataclass(frozen=True, slots=True)
class Verifier:
    """For one password and one SCRAM mechanism. The keys never show."""

    mechanism: str
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def derive(cls, mechanism: str, password: str, iterations: int = ITERATIONS, salt: bytes | None = None) -> Self:
        """Make one; takes milliseconds. salt: a new one, if not given.

        Raises UsageError for a password with a character that SASLprep refuses.
        """
        salt = salt or secrets.token_bytes(SALT_BYTES)
        keys = ScramKeys.derive(mechanism, prepared(password).encode(), salt, iterations)
        return cls(mechanism, keys.salt, keys.iterations, keys.stored_key, keys.server_key)

    @property
    def keys(self) -> ScramKeys:
        """What SCRAM checks a proof with."""
        return ScramKeys(self.salt, self.iterations, self.stored_key, self.server_key)

    @classmethod
    def invented(cls, mechanism: str, name: str, iterations: int, secret: bytes) -> Self:
        """Return what a user who does not exist has: the same each time, and what no password fits.

        secret: the node's. Without it the salt cannot be told from one that was drawn.
        """

        def drawn(what: str, length: int) -> bytes:
            return hmac.digest(secret, f"{what}\0{mechanism}\0{name}".encode(), "sha512")[:length]

        length = _KEY_LENGTHS[SCRAM[mechanism]]
        return cls(mechanism, drawn("salt", SALT_BYTES), iterations, drawn("stored", length), drawn("server", length))

    def fits(self, password: str) -> bool:
        """Tell whether this is the password, in the same time whatever is right about it; takes milliseconds."""
        try:
            given = self.derive(self.mechanism, password, self.iterations, self.salt)
        except UsageError:
            return False
        return hmac.compare_digest(given.stored_key, self.stored_key)

    def to_json(self) -> dict[str, Any]:
        return {
            "salt": b64encode(self.salt).decode(),
            "iterations": self.iterations,
            "stored_key": b64encode(self.stored_key).decode(),
            "server_key": b64encode(self.server_key).decode(),
        }

    @classmethod
    def from_json(cls, mechanism: str, said: Mapping[str, Any]) -> Self:
        """Read one. Raises ValueError, LookupError or TypeError for what is none."""
        salt, stored, server = (b64decode(said[name], validate=True) for name in ("salt", "stored_key", "server_key"))
        iterations, length = said["iterations"], _KEY_LENGTHS[SCRAM[mechanism]]
        if type(iterations) is not int or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ValueError(f"{iterations!r} iterations, expected {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        if len(salt) not in _SALT_LENGTHS or len(stored) != length or len(server) != length:
            raise ValueError(f"keys of {len(stored)} and {len(server)} bytes, expected {length}; salt of {len(salt)}")
        return cls(mechanism, salt, iterations, stored, server)


def verifiers_of(password: str, iterations: int = ITERATIONS) -> dict[str, Verifier]:
    """Return the verifiers of a password by mechanism. Raises UsageError as Verifier.derive does."""
    return {mechanism: Verifier.derive(mechanism, password, iterations) for mechanism in SCRAM}
