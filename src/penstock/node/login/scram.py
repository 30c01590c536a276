"""One SCRAM exchange, as the server does it: two messages come, two go. No I/O.

Written out here, as the client's side is, because Couchbase's clients on the C++ core send nonces that have spaces in
them. RFC 5802 allows none (printable is 0x21 to 0x7e there), and scramp refuses them.

Source: RFC 5802, sections 5 and 7, without channel binding.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Final

from penstock.client.login import SCRAM
from penstock.node.login.verifier import Verifier

__all__ = ["Exchange"]

_NONCE_BYTES = 24
_FIRST: Final = re.compile(r"([ny]),,(n=([^,]*),r=([\x20-\x2b\x2d-\x7e]+)(?:,[a-z]=[^,]*)*)", re.ASCII | re.IGNORECASE)
_FINAL: Final = re.compile(r"(c=([^,]*),r=([^,]*)(?:,[a-z]=[^,]*)*),p=([^,]*)", re.ASCII | re.IGNORECASE)
_ESCAPES: Final = {"=2C": ",", "=3D": "="}
_ESCAPED: Final = re.compile("=.{0,2}", re.DOTALL)


class Exchange:
    """verifier_of: returns the verifier of a name, whoever that is. nonce: of the server; None: drawn. name: who it is
    about, as the client has written it; empty before `first`.
    """

    def __init__(self, mechanism: str, verifier_of: Callable[[str], Verifier], nonce: str | None = None) -> None:
        self.name = ""
        self._hash = SCRAM[mechanism]
        self._verifier_of = verifier_of
        self._nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
        self._header = self._said = ""
        self._verifier: Verifier

    def first(self, value: bytes) -> bytes:
        """Take what the client says first, and return the challenge. Raises ValueError for what says nothing."""
        found = _FIRST.fullmatch(value.decode())
        if found is None:
            raise ValueError("a first message that is not n,,n=…,r=…")
        header, bare, name, nonce = found.groups()
        self.name = _ESCAPED.sub(_unescaped, name)
        self._verifier = self._verifier_of(self.name)
        self._header, self._nonce = f"{header},,", nonce + self._nonce
        salt = b64encode(self._verifier.salt).decode()
        challenge = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._said = f"{bare},{challenge}"
        return challenge.encode()

    def final(self, value: bytes) -> bytes | None:
        """Take the client's proof, and return the server's, or None if the client's is wrong.

        Raises ValueError for what is no answer to the challenge.
        """
        found = _FINAL.fullmatch(value.decode())
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
        return b"v=" + b64encode(hmac.digest(self._verifier.server_key, whole, self._hash))

    def _proves(self, proof: bytes, whole: bytes) -> bool:
        signature = hmac.digest(self._verifier.stored_key, whole, self._hash)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), self._verifier.stored_key)


def _unescaped(found: re.Match[str]) -> str:
    if found[0] not in _ESCAPES:
        raise ValueError("a user name with an = that is neither =2C nor =3D")
    return _ESCAPES[found[0]]
