"""The TLS settings of a connection: trusted authorities and the client's certificate."""

from __future__ import annotations

import ssl
from functools import partial

from penstock.client.connect.address import ConnectionOptions, TlsVerify
from penstock.errors import UsageError


def make_tls_context(options: ConnectionOptions) -> ssl.SSLContext:
    """Return the TLS settings of a connection: TLS 1.2 or newer, with the checks that `tlsVerify` sets.

    Raises:
        UsageError: a file with certificates or a key is unusable.
    """
    context = load_tls_files(options.ca or None, options.certificate or None, options.certificate_key or None)
    if options.tls_verify is TlsVerify.NONE:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_tls_files(
    ca: str | None,
    certificate: str | None,
    key: str | None,
    names: tuple[str, str, str] = ("option ca", "option certificate", "option certificateKey"),
) -> ssl.SSLContext:
    """Return the settings of a client with these files.

    Args:
        ca: the certificates of authorities; None for those of the system.
        certificate: the client's certificate, None for none.
        key: the key of the certificate, None if it is in the same file.
        names: the options that name the files, for errors.

    Raises:
        UsageError: a file is unusable.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise UsageError(f"{names[0]}: no certificates in {ca!r}: {_describe_error(error)}") from None
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, partial(_refuse_passphrase, names[2]))
        except OSError as error:
            files = " and ".join(repr(file) for file in (certificate, key) if file)
            raise UsageError(f"{names[1]}: no certificate with its key in {files}: {_describe_error(error)}") from None
    return context


def _refuse_passphrase(name: str) -> str:
    """Refuse an encrypted key. Without this callback OpenSSL prompts on the terminal."""
    raise UsageError(f"{name}: the key is encrypted, expected one that is not")


def _describe_error(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not in PEM form").replace("_", " ").lower()
    return error.strerror or str(error)
