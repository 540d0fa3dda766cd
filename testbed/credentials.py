"""Credentials of a testbed: certificates of its own authority, x509 proxies and tokens."""

from __future__ import annotations

import datetime
import inspect
import ipaddress
import json
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID, ObjectIdentifier
from jwt.algorithms import ECAlgorithm

from treehammer.errors import TestbedError
from treehammer.testbed.component import DaemonSpec
from treehammer.testbed.network import find_free_ports
from treehammer.testbed.programs import document_server
from treehammer.testbed.workspace import NODE_PYTHON, Workspace, run_program, write_secret

#: Audience of WLCG tokens for any service.
ANY_AUDIENCE = "https://wlcg.cern.ch/jwt/v1/any"
#: User whose tokens and certificates a testbed issues.
SUBJECT = "alice"
_DAY = datetime.timedelta(days=1)
_ALGORITHM, _KEY_ID = "ES256", "key-1"
_URL_FILE = "issuer.url"
#: Seconds by which a token is valid before it is issued.
_CLOCK_SKEW_S = 10
#: The extension of a proxy that has all rights of its user, without a limit on further proxies.
_PROXY_CERT_INFO = x509.UnrecognizedExtension(
    ObjectIdentifier("1.3.6.1.5.5.7.1.14"), bytes.fromhex("300c300a06082b06010505071501")
)
#: Key size of users and proxies, which XRootD's x509 authentication expects to be RSA.
_KEY_BITS = 2048


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
        self._name = _common_name(name)
        self._valid = days * _DAY
        self._write_certificate(
            self.ca,
            self._make_builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True),
        )

    def issue_server_certificate(
        self, name: str = "127.0.0.1", *, use_rsa: bool = False
    ) -> tuple[Path, Path]:
        """Issue a certificate for a server's name or address; return certificate and key.

        XRootD's x509 authentication requires an RSA key.
        """
        key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = (
            rsa.generate_private_key(65537, _KEY_BITS)
            if use_rsa
            else ec.generate_private_key(ec.SECP256R1())
        )
        authority = self._key.public_key()
        try:
            subject: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            subject = x509.DNSName(name)
        certificate, private = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        self._write_certificate(
            certificate,
            self._make_builder(_common_name(name), key.public_key())
            .add_extension(x509.SubjectAlternativeName([subject]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), critical=False
            ),
        )
        write_secret(private, _encode_key(key, serialization.PrivateFormat.PKCS8))
        return certificate, private

    def issue_user_certificate(self, user: str = SUBJECT) -> UserCertificate:
        """Issue a certificate for a new key of a person."""
        key = rsa.generate_private_key(65537, _KEY_BITS)
        builder = self._make_builder(_common_name(user), key.public_key())
        return UserCertificate(builder.sign(self._key, hashes.SHA256()), key)

    def write_proxy(self, path: Path, lifetime_s: float, user: str = SUBJECT) -> Path:
        """Write the proxy of a new user certificate; a negative lifetime makes an expired one."""
        return self.issue_user_certificate(user).write_proxy(path, lifetime_s)

    def publish(self, folder: Path) -> None:
        """Copy the file that clients need to a folder of hashed names."""
        name = run_program(["openssl", "x509", "-noout", "-subject_hash", "-in", str(self.ca)])
        shutil.copy(self.ca, folder / f"{name.strip()}.0")

    def _make_builder(
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
            # Attribute certificates of VOMS refer to it.
        ).add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)

    def _write_certificate(self, path: Path, builder: x509.CertificateBuilder) -> None:
        signed = builder.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        path.chmod(0o644)  # public, whatever the umask is


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(*purposes: str) -> x509.KeyUsage:
    names = inspect.signature(x509.KeyUsage).parameters
    return x509.KeyUsage(**{name: name in purposes for name in names})


def _encode_key(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, form: serialization.PrivateFormat
) -> str:
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return text.decode("ascii")


@dataclass(frozen=True)
class UserCertificate:
    """Certificate of a person, and its key."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey

    def write(self, certificate: Path, key: Path) -> None:
        """Write certificate and key, which has no pass phrase."""
        write_secret(key, _encode_key(self.key, serialization.PrivateFormat.TraditionalOpenSSL))
        certificate.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def write_proxy(
        self, path: Path, lifetime_s: float, *extensions: x509.UnrecognizedExtension
    ) -> Path:
        """Write a proxy; a negative lifetime makes an expired one."""
        key = rsa.generate_private_key(65537, _KEY_BITS)
        issuer, serial = self.certificate.subject, x509.random_serial_number() % 10**9
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=lifetime_s)
        proxy = x509.CertificateBuilder(
            issuer_name=issuer,
            subject_name=x509.Name([*issuer, *_common_name(str(serial))]),
            public_key=key.public_key(),
            serial_number=serial,
            not_valid_before=end - _DAY,
            not_valid_after=end,
        )
        proxy = proxy.add_extension(_PROXY_CERT_INFO, critical=True).add_extension(
            _key_usage("digital_signature", "key_encipherment", "data_encipherment"), critical=True
        )
        for extension in extensions:
            proxy = proxy.add_extension(extension, critical=False)
        signed = proxy.sign(self.key, hashes.SHA256())
        pem = serialization.Encoding.PEM
        chain = [part.public_bytes(pem).decode("ascii") for part in (signed, self.certificate)]
        private = _encode_key(key, serialization.PrivateFormat.TraditionalOpenSSL)
        write_secret(path, private.join(chain))
        return path


@dataclass(frozen=True)
class TokenIssuer:
    """An issuer of WLCG tokens.

    Attributes:
        url: its identity, below which its public documents are.
        folder: of its key.
    """

    url: str
    folder: Path

    @classmethod
    def load(cls, box: Workspace, folder: Path, option: str) -> TokenIssuer:
        """Load the issuer of a running testbed.

        Raises:
            TestbedError: the testbed was started without the option.
        """
        try:
            url = (folder / _URL_FILE).read_text(encoding="utf-8")
        except OSError:
            hint = f"Start it with treehammer testbed up {option}."
            raise TestbedError(
                "has no such token issuer", where=f"testbed {box.name}", hint=hint
            ) from None
        return cls(url, folder)

    @classmethod
    def create(cls, box: Workspace, folder: Path, host: str) -> TokenIssuer:
        """Create an issuer at a free port of a host, with documents by which servers verify tokens."""
        (port,) = find_free_ports(1)
        issuer = cls(f"https://{host}:{port}", box.make_folder(folder))
        box.write_file(folder / _URL_FILE, issuer.url)
        issuer._publish_documents(box.make_folder(folder / "served"))
        return issuer

    def daemon(self, box: Workspace, name: str, certificate: Path, key: Path) -> DaemonSpec:
        """Return the server of the public documents."""
        script = Path(document_server.__file__).read_text(encoding="utf-8")
        program = box.write_file(self.folder / "document_server.py", script)
        port = self.url.rpartition(":")[2]
        return DaemonSpec(
            name,
            [NODE_PYTHON, str(program), port, str(certificate), str(key)],
            {"PATH": "/usr/bin:/bin", "HOME": str(self.folder)},
            self.folder / "served",
        )

    @property
    def _key_file(self) -> Path:
        return self.folder / "issuer.key"

    def _publish_documents(self, served: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        write_secret(self._key_file, _encode_key(key, serialization.PrivateFormat.PKCS8))
        public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        keys = [{**public, "alg": _ALGORITHM, "kid": _KEY_ID, "use": "sig"}]
        well_known = served / ".well-known"
        well_known.mkdir(exist_ok=True)
        (served / "jwks").write_text(json.dumps({"keys": keys}), encoding="utf-8")
        # Clients of OpenID Connect read the other endpoints, too, although nothing answers there.
        document = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/jwks",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [_ALGORITHM],
        }
        path = well_known / "openid-configuration"
        path.write_text(json.dumps(document), encoding="utf-8")

    def write_token(
        self,
        path: Path,
        scope: str,
        lifetime_s: float,
        *,
        subject: str = SUBJECT,
        audience: str = ANY_AUDIENCE,
    ) -> Path:
        """Write a token that only its owner can read; a negative lifetime makes an expired one."""
        now = int(time.time())
        claims = {
            "wlcg.ver": "1.0",
            "iss": self.url,
            "sub": subject,
            "aud": audience,
            "scope": scope,
            "iat": now - _CLOCK_SKEW_S,
            "nbf": now - _CLOCK_SKEW_S,
            "exp": now + round(lifetime_s),
            "jti": str(uuid.uuid4()),
        }
        key = self._key_file.read_text(encoding="ascii")
        token = jwt.encode(claims, key, _ALGORITHM, headers={"kid": _KEY_ID})
        part = path.with_name(f".{path.name}.new")
        write_secret(part, f"{token}\n")
        part.replace(path)
        return path
