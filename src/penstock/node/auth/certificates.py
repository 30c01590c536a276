"""Certificates for development: a certificate authority, a node's certificate, and a client's certificate."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from penstock.errors import UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
"""Names and addresses of the local machine, which every node's certificate has."""

# Characters. Source: X.520, ub-common-name.
MAX_COMMON_NAME = 64
# Certificates are valid from a time in the past, so that a client whose clock is behind accepts them.
_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, repr=False)
class IssuedCertificate:
    """A certificate and its private key.

    Attributes:
        certificate: PEM, X.509.
        key: PEM, PKCS #8, without a password.
    """

    certificate: bytes
    key: bytes


def make_certificates(hosts: Sequence[str], user: str, days: int, now: datetime) -> dict[str, IssuedCertificate]:
    """Return a new authority (`ca`) and the certificates that it signed: `server` for a node, `client` for a user.

    Args:
        hosts: names and IP addresses of the node, in addition to those of the local machine.
        user: name of the user, which becomes the client certificate's common name.
        days: time from now for which all certificates are valid.
        now: the current time.

    Raises:
        UsageError: a host or the user name is invalid in a certificate.
    """
    if not 0 < len(user) <= MAX_COMMON_NAME:
        raise UsageError(f"user name of {len(user)} characters, a certificate's has 1 to {MAX_COMMON_NAME}")
    alternatives = [_parse_general_name(host) for host in dict.fromkeys((*LOOPBACK_NAMES, *hosts))]
    until = now + timedelta(days=days)
    authority = _CertificateAuthority(now - _CLOCK_SKEW, until)
    return {
        "ca": authority.issue_own(),
        "server": authority.issue("Penstock node", alternatives),
        "client": authority.issue(user, None),
    }


def _parse_general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        name = host.removesuffix(".").encode("idna").decode("ascii")
    except UnicodeError:
        name = ""
    labels = name.removeprefix("*.").split(".")
    if not all(label and label.replace("-", "").isalnum() for label in labels):
        raise UsageError(f"host {host!r}: expected a name or an address")
    return x509.DNSName(name)


class _CertificateAuthority:
    """Signs certificates with a key that exists only in this process."""

    def __init__(self, start: datetime, end: datetime) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self._start, self._end = start, end
        self._name = _make_common_name("Penstock development CA")
        self._key = ec.generate_private_key(ec.SECP256R1())

    def issue_own(self) -> IssuedCertificate:
        """Return the authority's own certificate, signed by itself."""
        from cryptography import x509

        builder = self._make_builder(self._name, self._key)
        # Path length 0: the authority signs nodes and users, never another authority.
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        return self._sign(builder.add_extension(_make_key_usage(authority=True), critical=True), self._key)

    def issue(self, name: str, alternatives: list[x509.GeneralName] | None) -> IssuedCertificate:
        """Return a certificate for a node with these alternative names, or for a user if `alternatives` is None."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose

        key = ec.generate_private_key(ec.SECP256R1())
        purpose = Purpose.CLIENT_AUTH if alternatives is None else Purpose.SERVER_AUTH
        builder = self._make_builder(_make_common_name(name), key)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_make_key_usage(authority=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        if alternatives is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return self._sign(builder, key)

    def _make_builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        from cryptography import x509

        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._start)
            .not_valid_after(self._end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(issuer, critical=False)
        )

    def _sign(self, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> IssuedCertificate:
        from cryptography.hazmat.primitives import hashes, serialization

        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return IssuedCertificate(certificate.public_bytes(serialization.Encoding.PEM), private)


def _make_common_name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _make_key_usage(*, authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        **dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment"), False),
        **dict.fromkeys(("key_agreement", "encipher_only", "decipher_only"), False),
    )
