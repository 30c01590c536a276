"""TLS for a listener, and who a client is by its certificate."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import UsageError

__all__ = ["ServerTls", "names_in", "server_context"]


class ServerTls:
    """The TLS of a node's ports, made of files that may change.

    Arguments and errors as of `server_context`.

    Attributes:
        context: of the next handshakes. A new one with each reload: an SSLContext cannot forget a CA, and its session
            tickets would let clients of a removed one in.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._files = certificate, key, client_ca
        self.context = server_context(*self._files)

    def reload(self) -> bool:
        """Read the files again; True if a CA that clients had their certificates from is no longer there.

        Raises UsageError as `server_context` does; then everything stays as it was.
        """
        before = set(self.context.get_ca_certs(binary_form=True))
        self.context = server_context(*self._files)
        return not before <= set(self.context.get_ca_certs(binary_form=True))


def server_context(
    certificate: Path, key: Path, client_ca: Path | None = None, *, require_client: bool = False
) -> ssl.SSLContext:
    """Return the context of a listener that speaks TLS 1.2 or newer.

    certificate, key: PEM files; the certificate's has those of its issuers behind it. client_ca: who issues the
    certificates with which clients may show who they are; require_client: they have to.
    Raises UsageError for a file that is missing or has something else in it, and for a requirement without client_ca.
    """
    if require_client and client_ca is None:
        raise UsageError("TLS: client certificates are required, but no CA is given that issues them")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    for path, what in ((certificate, "certificate"), (key, "key")):
        _check_readable(path, f"TLS {what}")
    _load(context, certificate, key)
    if client_ca is not None:
        _check_readable(client_ca, "client CA")
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError:
            raise UsageError(f"{client_ca}: no certificate in PEM form, expected the CA of the clients") from None
        context.verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_OPTIONAL
    return context


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    asked = False

    def no_password() -> str:
        nonlocal asked
        asked = True
        return ""

    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except (ssl.SSLError, OSError) as error:
        if asked:
            raise UsageError(f"{key}: the key has a password, expected one without") from None
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise UsageError(f"{key}: not the key of {certificate}") from None
        if _holds_certificate(certificate):
            raise UsageError(f"{key}: no private key in PEM form") from None
        raise UsageError(f"{certificate}: no certificate in PEM form") from None


def _holds_certificate(path: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, OSError):
        return False
    return True


def _check_readable(path: Path, what: str) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise UsageError(f"{path}: the {what} cannot be read: {error.strerror or error}") from error


def names_in(certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that a client's certificate, checked by the TLS layer, has for a user: the subject's common
    name, then its e-mail addresses. certificate: as `SSLObject.getpeercert` has it; empty: there is none.
    """
    for part in certificate.get("subject", ()):
        for kind, name in part:
            if kind == "commonName":
                yield name
    for kind, name in certificate.get("subjectAltName", ()):
        if kind == "email":
            yield name
