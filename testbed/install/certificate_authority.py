"""A private certificate authority, and server certificates for this machine."""

from __future__ import annotations

import datetime
import ipaddress
import subprocess
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class CertificateAuthority:
    """Signs certificates with a key that exists in memory only.

    Args:
        folder: for all files.
        name: of the authority in certificates.
        days: validity of the authority and its certificates, from yesterday on.

    Attributes:
        ca: the file that clients need.
    """

    def __init__(self, folder: Path, name: str = "Treehammer's tests", days: int = 2) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._valid = days * _DAY
        builder = self._certificate_builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
        )
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
        signed = builder.sign(self._key, hashes.SHA256())
        self.ca.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue_server_certificate(
        self, name: str = "127.0.0.1", *, use_rsa: bool = False
    ) -> tuple[Path, Path]:
        """Issue a certificate for a server's name or address; return certificate and key.

        XRootD's x509 authentication requires an RSA key.
        """
        key = (
            rsa.generate_private_key(65537, 2048)
            if use_rsa
            else ec.generate_private_key(ec.SECP256R1())
        )
        names = x509.SubjectAlternativeName([_subject_alternative_name(name)])
        builder = self._certificate_builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key
        )
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
            critical=False,
        )
        # Attribute certificates of VOMS refer to it.
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        certificate, private = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        signed = builder.sign(self._key, hashes.SHA256())
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        private.touch(mode=0o600)
        private.chmod(0o600)  # independent of the umask and of the mode of an older file
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, private

    def issue_user_certificate(self, name: x509.Name, key: rsa.RSAPublicKey) -> x509.Certificate:
        """Issue a certificate for a person."""
        return self._builder_for(name, key).sign(self._key, hashes.SHA256())

    def find_subject_hash(self) -> str:
        """Return the name, without suffix, of this authority in a folder of hashed names."""
        command = ["openssl", "x509", "-noout", "-subject_hash", "-in", str(self.ca)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def _certificate_builder(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    ) -> x509.CertificateBuilder:
        return self._builder_for(name, key.public_key())

    def _builder_for(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=name,
            public_key=key,
            serial_number=x509.random_serial_number(),
            not_valid_before=now - _DAY,
            not_valid_after=now - _DAY + self._valid,
        )


def _subject_alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
