"""The TLS settings of a connection: authorities, and the client's own certificate."""

from __future__ import annotations

import ssl

from penstock.client.connect.address import ConnectionOptions, TlsVerify
from penstock.errors import UsageError

__all__ = ["tls_context"]


def tls_context(options: ConnectionOptions) -> ssl.SSLContext:
    """Return how to connect: by TLS 1.2 or newer, the node's certificate and name checked unless that is not wanted.

    Raises UsageError for a file of certificates or a key that cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=options.ca or None)
    except OSError as error:
        raise UsageError(f"option ca: no certificates in {options.ca!r}: {_reason(error)}") from None
    if options.tls_verify is TlsVerify.NONE:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if options.certificate:
        try:
            context.load_cert_chain(options.certificate, options.certificate_key or None, _no_passphrase)
        except OSError as error:
            files = " and ".join(repr(file) for file in (options.certificate, options.certificate_key) if file)
            raise UsageError(f"option certificate: no certificate with its key in {files}: {_reason(error)}") from None
    return context


def _no_passphrase() -> str:
    """Refuse an encrypted key: OpenSSL would ask at the terminal."""
    raise UsageError("option certificateKey: the key is encrypted, expected one that is not")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not in PEM form").replace("_", " ").lower()
    return error.strerror or str(error)
