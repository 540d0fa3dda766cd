"""Certificate authority for servers that tests start, and free ports for them."""

from __future__ import annotations

import datetime
import ipaddress
import random
import socket
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

#: Below the ports of testbeds and of outgoing connections: nothing takes one before its server does.
_PORTS = range(12_000, 20_000)
_DAY = datetime.timedelta(days=1)
_ports_in_use: set[int] = set()


class CertificateAuthority:
    """Signs certificates of servers with a key that exists in memory only.

    Attributes:
        ca: the file that clients need.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _make_name("Treehammer's tests")
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = (
            self._make_builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        self._write_certificate(self.ca, builder)

    def issue_server_certificate(self, name: str = "127.0.0.1") -> tuple[Path, Path]:
        """Issue a certificate for a server's name or address; return certificate and key."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            subject: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            subject = x509.DNSName(name)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            self._make_builder(_make_name(name), key)
            .add_extension(x509.SubjectAlternativeName([subject]), critical=False)
            .add_extension(authority, critical=False)
        )
        certificate, private = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        self._write_certificate(certificate, builder)
        private.touch(mode=0o600)
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, private

    def _make_builder(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        yesterday = datetime.datetime.now(datetime.UTC) - _DAY
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=yesterday,
            not_valid_after=yesterday + 2 * _DAY,
        ).add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)

    def _write_certificate(self, path: Path, builder: x509.CertificateBuilder) -> None:
        signed = builder.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        path.chmod(0o644)  # public, whatever the umask is


def _make_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def find_free_port() -> int:
    """Find a port on which no process listens and that this process did not get before."""
    for port in random.sample(_PORTS, len(_PORTS)):
        with suppress(OSError), socket.socket() as probe:
            if port not in _ports_in_use:
                probe.bind(("", port))
                _ports_in_use.add(port)
                return port
    raise AssertionError(f"no port from {_PORTS.start} to {_PORTS.stop} is free")
