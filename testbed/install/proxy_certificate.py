"""User certificates and x509 proxies (RFC 3820) of a private authority."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
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
_PROXY_USAGE = x509.KeyUsage(
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
#: Key size of users and proxies, which XRootD's x509 authentication expects to be RSA.
_KEY_BITS = 2048


@dataclass(frozen=True)
class UserCertificate:
    """Certificate of a person, and its key."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey

    def write(self, certificate: Path, key: Path) -> None:
        """Write certificate and key, which has no pass phrase."""
        write_secret(key, _encode_key(self.key))
        certificate.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def write_proxy(
        self, path: Path, lifetime_s: float, *extensions: x509.UnrecognizedExtension
    ) -> Path:
        """Write a proxy; a negative lifetime makes an expired one."""
        key = rsa.generate_private_key(65537, _KEY_BITS)
        name, serial = self.certificate.subject, x509.random_serial_number() % 10**9
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=lifetime_s)
        proxy = (
            x509.CertificateBuilder(
                issuer_name=name,
                subject_name=x509.Name(
                    [*name, x509.NameAttribute(NameOID.COMMON_NAME, str(serial))]
                ),
                public_key=key.public_key(),
                serial_number=serial,
                not_valid_before=end - datetime.timedelta(days=1),
                not_valid_after=end,
            )
            .add_extension(_PROXY_CERT_INFO, critical=True)
            .add_extension(_PROXY_USAGE, critical=True)
        )
        for extension in extensions:
            proxy = proxy.add_extension(extension, critical=False)
        signed = proxy.sign(self.key, hashes.SHA256())
        pem = serialization.Encoding.PEM
        chain = [part.public_bytes(pem).decode("ascii") for part in (signed, self.certificate)]
        write_secret(path, _encode_key(key).join(chain))
        return path


def issue_user_certificate(authority: CertificateAuthority, user: str = SUBJECT) -> UserCertificate:
    """Issue a certificate for a new key of a user."""
    key = rsa.generate_private_key(65537, _KEY_BITS)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, user)])
    return UserCertificate(authority.issue_user_certificate(name, key.public_key()), key)


def write_proxy(
    authority: CertificateAuthority, path: Path, lifetime_s: float, user: str = SUBJECT
) -> Path:
    """Write the proxy of a new user certificate; a negative lifetime makes an expired one."""
    return issue_user_certificate(authority, user).write_proxy(path, lifetime_s)


def _encode_key(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode("ascii")
