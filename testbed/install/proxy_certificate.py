"""User certificates and x509 proxies (RFC 3820) of a private authority."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID, ObjectIdentifier

from treehammer.testbed.core.component import write_secret
from treehammer.testbed.install.certificate_authority import CertificateAuthority
from treehammer.testbed.install.token_issuer import SUBJECT

#: The extension of a proxy that has all rights of its user, without a limit on further proxies.
_PROXY_CERT_INFO = x509.UnrecognizedExtension(
    ObjectIdentifier("1.3.6.1.5.5.7.1.14"),
    bytes.fromhex("300c300a06082b06010505071501"),
)
#: Key size of users and proxies, which XRootD's x509 authentication expects to be RSA.
_KEY_BITS = 2048


def write_user_certificate(
    authority: CertificateAuthority, certificate: Path, key: Path, user: str = SUBJECT
) -> None:
    """Write a new certificate of a user, and its key without a pass phrase."""
    _, private, issued = _make_user(authority, user)
    write_secret(key, _encode_key(private))
    certificate.write_bytes(issued.public_bytes(serialization.Encoding.PEM))


def write_proxy(
    authority: CertificateAuthority, path: Path, lifetime_s: float, user: str = SUBJECT
) -> Path:
    """Write the proxy of a new user certificate; a negative lifetime makes an expired one."""
    name, user_key, certificate = _make_user(authority, user)
    proxy_key = rsa.generate_private_key(65537, _KEY_BITS)
    serial = x509.random_serial_number() % 10**9
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=lifetime_s)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=True,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    proxy = (
        x509.CertificateBuilder(
            issuer_name=name,
            subject_name=x509.Name([*name, x509.NameAttribute(NameOID.COMMON_NAME, str(serial))]),
            public_key=proxy_key.public_key(),
            serial_number=serial,
            not_valid_before=end - datetime.timedelta(days=1),
            not_valid_after=end,
        )
        .add_extension(_PROXY_CERT_INFO, critical=True)
        .add_extension(usage, critical=True)
        .sign(user_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    parts = (proxy.public_bytes(pem), certificate.public_bytes(pem))
    write_secret(path, _encode_key(proxy_key).join(part.decode("ascii") for part in parts))
    return path


def _make_user(
    authority: CertificateAuthority, user: str
) -> tuple[x509.Name, rsa.RSAPrivateKey, x509.Certificate]:
    """Return name, new key and new certificate of a user."""
    key = rsa.generate_private_key(65537, _KEY_BITS)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, user)])
    return name, key, authority.issue_user_certificate(name, key.public_key())


def _encode_key(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode("ascii")
