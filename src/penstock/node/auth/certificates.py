"""Certificates for development: an authority of one's own, a node's certificate, and a client's."""

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

__all__ = ["LOOPBACK_NAMES", "Certified", "make_certificates"]

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
"""What a node's certificate is always good for."""

MAX_COMMON_NAME = 64  # characters; X.520, ub-common-name
_BEFORE = timedelta(minutes=5)  # for clocks that are behind


@dataclass(frozen=True, slots=True, repr=False)
class Certified:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


def make_certificates(hosts: Sequence[str], user: str, days: int, now: datetime) -> dict[str, Certified]:
    """Return an authority (`ca`), and what it has signed: `server` for a node, `client` for a user of it.

    hosts: names and addresses of the node, beside those of this machine. days: how long all of them are good from now.
    Raises UsageError for a host or a user that cannot stand in a certificate.
    """
    if not 0 < len(user) <= MAX_COMMON_NAME:
        raise UsageError(f"user name of {len(user)} characters, a certificate's has 1 to {MAX_COMMON_NAME}")
    alternatives = [_general_name(host) for host in dict.fromkeys((*LOOPBACK_NAMES, *hosts))]
    until = now + timedelta(days=days)
    authority = _Authority(now - _BEFORE, until)
    return {
        "ca": authority.own(),
        "server": authority.signed("Penstock node", alternatives),
        "client": authority.signed(user, None),
    }


def _general_name(host: str) -> x509.GeneralName:
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


class _Authority:
    """Signs for as long as it lives: in this process, and wherever its key is kept."""

    def __init__(self, start: datetime, end: datetime) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self._start, self._end = start, end
        self._name = _common_name("Penstock development CA")
        self._key = ec.generate_private_key(ec.SECP256R1())

    def own(self) -> Certified:
        from cryptography import x509

        builder = self._builder(self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        return self._sign(builder.add_extension(_usage(authority=True), critical=True), self._key)

    def signed(self, name: str, alternatives: list[x509.GeneralName] | None) -> Certified:
        """Return a certificate for a node at these names, or for a user if there are none."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose

        key = ec.generate_private_key(ec.SECP256R1())
        purpose = Purpose.CLIENT_AUTH if alternatives is None else Purpose.SERVER_AUTH
        builder = self._builder(_common_name(name), key)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(authority=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        if alternatives is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return self._sign(builder, key)

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
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

    def _sign(self, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> Certified:
        from cryptography.hazmat.primitives import hashes, serialization

        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certified(certificate.public_bytes(serialization.Encoding.PEM), private)


def _common_name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        **dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment"), False),
        **dict.fromkeys(("key_agreement", "encipher_only", "decipher_only"), False),
    )
