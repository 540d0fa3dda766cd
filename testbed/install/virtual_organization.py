"""A virtual organization (VO) that signs attributes of its members, as VOMS servers do."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ObjectIdentifier

from treehammer.testbed.install.certificate_authority import CertificateAuthority
from treehammer.testbed.install.proxy_certificate import UserCertificate, issue_user_certificate
from treehammer.testbed.install.token_issuer import SUBJECT

#: Debian package with the program that signs attributes without a server.
PACKAGE, PROGRAM = "voms-clients", "voms-proxy-fake"
VO_NAME = "testers"
#: Role whose members may also write.
WRITER_ROLE = "production"
#: Name in the certificate by which attributes are signed.
_SERVER = "voms.localhost"
_PORT = 15000
_ATTRIBUTES_OID = ObjectIdentifier("1.3.6.1.4.1.8005.100.100.5")


@dataclass(frozen=True)
class VirtualOrganization:
    """A VO and its signing certificate.

    Attributes:
        name: of the VO.
        authority: signs the VO's certificate and those of its members.
        certificates: folder with the authority, by hashed name.
        program: path of ``voms-proxy-fake``.
    """

    name: str
    authority: CertificateAuthority
    certificates: Path
    program: Path

    def publish_signer(self, folder: Path, authority_name: str) -> None:
        """Write the signer's names to a folder for servers, which name it in X509_VOMS_DIR."""
        self.authority.issue_server_certificate(_SERVER, use_rsa=True)
        chain = f"/CN={_SERVER}\n/CN={authority_name}\n"
        (folder / self.name).mkdir()
        (folder / self.name / f"{_SERVER}.lsc").write_text(chain, encoding="utf-8")

    def write_proxy(
        self,
        path: Path,
        attributes: Sequence[str],
        *,
        hours: int = 12,
        user: str = SUBJECT,
        expired: bool = False,
    ) -> Path:
        """Write a proxy of a new user certificate with attributes such as ``/VO/Role=NAME``.

        Attributes of another VO have a signer that servers do not know for it.
        Proxies of expired attributes are valid themselves.
        """
        issued = issue_user_certificate(self.authority, user)
        with tempfile.TemporaryDirectory() as folder:
            signed = self._sign_attributes(issued, Path(folder), attributes, hours, expired)
        return issued.write_proxy(path, hours * 3600.0, signed)

    def _sign_attributes(
        self,
        user: UserCertificate,
        folder: Path,
        attributes: Sequence[str],
        hours: int,
        expired: bool,
    ) -> x509.UnrecognizedExtension:
        """Sign attributes and return the extension of a proxy.

        The program's own proxy is signed with SHA-1, which TLS refuses today.
        """
        certificate, key, proxy = (folder / name for name in ("certificate", "key", "proxy"))
        user.write(certificate, key)
        signer = self.authority.folder / _SERVER
        options = {
            "cert": certificate,
            "key": key,
            "certdir": self.certificates,
            "out": proxy,
            "hours": hours,
            "vomslife": hours,
            "voms": attributes[0].split("/")[1],
            "uri": f"{_SERVER}:{_PORT}",
            "hostcert": f"{signer}.pem",
            "hostkey": f"{signer}.key",
        }
        command = [str(self.program), "-quiet", "-rfc", "-newformat"]
        command += [word for name, value in options.items() for word in (f"-{name}", str(value))]
        command += ["-pastac", f"{hours + 1}:00"] if expired else []
        for attribute in attributes:
            role = "" if "/Role=" in attribute else "/Role=NULL"
            command += ["-fqan", f"{attribute}{role}/Capability=NULL"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        signed_proxy = x509.load_pem_x509_certificate(proxy.read_bytes())
        extension = signed_proxy.extensions.get_extension_for_oid(_ATTRIBUTES_OID).value
        assert isinstance(extension, x509.UnrecognizedExtension)
        return extension
