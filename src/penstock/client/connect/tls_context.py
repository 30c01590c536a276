"""The TLS settings of a connection: trusted authorities and the client's certificate."""

from __future__ import annotations

import ssl

from penstock.client.connect.address import ConnectionOptions, TlsVerify
from penstock.errors import UsageError

__all__ = ["make_tls_context"]


def make_tls_context(options: ConnectionOptions) -> ssl.SSLContext:
    """Return the TLS settings of a connection: TLS 1.2 or newer, with the checks that `tlsVerify` sets.

    Raises:
        UsageError: a file with certificates or a key is unusable.
    """
    try:
        context = ssl.create_default_context(cafile=options.ca or None)
    except OSError as error:
        raise UsageError(f"option ca: no certificates in {options.ca!r}: {_describe_error(error)}") from None
    if options.tls_verify is TlsVerify.NONE:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if options.certificate:
        try:
            context.load_cert_chain(options.certificate, options.certificate_key or None, _refuse_passphrase)
        except OSError as error:
            files = " and ".join(repr(file) for file in (options.certificate, options.certificate_key) if file)
            raise UsageError(
                f"option certificate: no certificate with its key in {files}: {_describe_error(error)}"
            ) from None
    return context


def _refuse_passphrase() -> str:
    """Refuse an encrypted key. Without this callback OpenSSL prompts on the terminal."""
    raise UsageError("option certificateKey: the key is encrypted, expected one that is not")


def _describe_error(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not in PEM form").replace("_", " ").lower()
    return error.strerror or str(error)
