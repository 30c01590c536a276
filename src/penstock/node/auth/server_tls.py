"""TLS of a listener, and the user names in a client's certificate."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import UsageError


class ServerTls:
    """The TLS of a node's ports, made of files that may change.

    Args:
        certificate: as in `make_server_context`.
        key: as in `make_server_context`.
        client_ca: as in `make_server_context`.

    Attributes:
        context: the context of the next handshakes. Each reload makes a new one: an SSLContext cannot forget a CA, and
            its session tickets would admit clients of a removed CA.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._files = certificate, key, client_ca
        self.context = make_server_context(*self._files)

    def reload(self) -> bool:
        """Read the files again, and return whether a CA of client certificates was removed.

        Returns:
            Whether a CA that issued client certificates is no longer among the files.

        Raises:
            UsageError: as in `make_server_context`; then the previous context stays.
        """
        before = set(self.context.get_ca_certs(binary_form=True))
        self.context = make_server_context(*self._files)
        return not before <= set(self.context.get_ca_certs(binary_form=True))


def make_server_context(
    certificate: Path, key: Path, client_ca: Path | None = None, *, require_client: bool = False
) -> ssl.SSLContext:
    """Return the context of a listener that accepts TLS 1.2 and newer.

    Args:
        certificate: PEM file with the certificate, followed by those of its issuers.
        key: PEM file with the private key.
        client_ca: PEM file with the CA whose certificates clients can log in with; None: clients have no certificates.
        require_client: every client must present a certificate.

    Raises:
        UsageError: a file is missing or has other content, or `require_client` is set without `client_ca`.
    """
    if require_client and client_ca is None:
        raise UsageError("TLS: client certificates are required, expected a client CA as well")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client could otherwise make the node repeat costly handshakes on one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION
    for path, kind in ((certificate, "certificate"), (key, "key")):
        _check_readable(path, f"TLS {kind}")
    _load_certificate(context, certificate, key)
    if client_ca is not None:
        _check_readable(client_ca, "client CA")
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError:
            raise UsageError(f"{client_ca}: no certificate in PEM form, expected the CA of the clients") from None
        context.verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_OPTIONAL
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    is_encrypted = False

    # OpenSSL asks for the password on the terminal unless there is a callback.
    def refuse_password() -> str:
        nonlocal is_encrypted
        is_encrypted = True
        return ""

    try:
        context.load_cert_chain(certificate, key, password=refuse_password)
    except (ssl.SSLError, OSError) as error:
        if is_encrypted:
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


def _check_readable(path: Path, description: str) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise UsageError(f"{path}: cannot read the {description}: {error.strerror or error}") from error


def list_user_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield the user names in a client's certificate: the subject's common name, then the e-mail addresses.

    Args:
        certificate: as returned by `SSLObject.getpeercert`, verified by the TLS layer; empty: the client has none.
    """
    for part in certificate.get("subject", ()):
        for kind, name in part:
            if kind == "commonName":
                yield name
    for kind, name in certificate.get("subjectAltName", ()):
        if kind == "email":
            yield name
