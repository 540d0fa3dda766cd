"""Storage doors with TLS: WLCG tokens of the testbed's own issuer, x509 proxies and VOMS attributes.

One more XRootD server for each secure site and kind of credential exports the site's storage. They
trust the testbed's own authority only, and verify tokens with keys that the issuer serves over
https. Behind the door for VOMS, members of a virtual organization (VO) read and those with a role also
write; the VO signs attributes of its members, as VOMS servers do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ObjectIdentifier

from treehammer.submit.sites.site_model import Door
from treehammer.testbed.component import Component, DaemonSpec, VisibleFolder, render_template
from treehammer.testbed.components import xrootd_storage
from treehammer.testbed.credentials import (
    ANY_AUDIENCE,
    CertificateAuthority,
    TokenIssuer,
    UserCertificate,
)
from treehammer.testbed.debian_packages import PackageTree
from treehammer.testbed.network import find_free_ports
from treehammer.testbed.workspace import Workspace, run_program

_PACKAGES = PackageTree(
    "xrootd-credentials",
    programs=(
        *xrootd_storage.PACKAGES,
        "xrootd-scitokens-plugins",
        "xrootd-voms-plugins",
        "voms-clients",
    ),
)
#: Program that signs attributes without a server.
VOMS_PROGRAM = "voms-proxy-fake"
VO_NAME = "testers"
#: Role whose members may also write.
WRITER_ROLE = "production"
#: Name in the certificate of all servers.
HOST = "localhost"
#: Servers of a site by kind of credential, each with its doors by protocol.
_SERVERS = {
    "tokens": {"root": "roots", "https": "https"},
    "x509": {"root": "x509"},
    "voms": {"root": "voms", "https": "voms-https"},
}
#: Prefix and middleware of doors by protocol.
_FORMS = {
    "root": (f"roots://{HOST}:{{}}/{{}}", "XRootD"),
    "https": (f"https://{HOST}:{{}}{{}}", "XrdHttp"),
}
#: Names of a site's doors.
DOOR_NAMES = tuple(door for doors in _SERVERS.values() for door in doors.values())
#: Scopes that permit reading a dataset, and also writing; paths are relative to ``/store``.
READ_SCOPE = "storage.read:/treehammer"
WRITE_SCOPE = f"{READ_SCOPE} storage.modify:/treehammer"
#: Folder below the storage's datasets that only writers read through the door for VOMS.
RESTRICTED_FOLDER = "restricted"
#: Holders of proxies: member of the VO, with the role that permits writing, and without a VO.
MEMBER, WRITER, STRANGER = "member", "writer", "stranger"
#: Name in the certificate by which attributes are signed.
_SERVER = "voms.localhost"
_PORT = 15000
_ATTRIBUTES_OID = ObjectIdentifier("1.3.6.1.4.1.8005.100.100.5")
_PROXY_HOURS = 12
_AUTHORITY_NAME = "Treehammer testbed"


class SecureStorage(Component):
    """Component for the secure doors of sites.

    Args:
        box: the testbed.
        sites: names of the sites.

    Attributes:
        vo: the VO whose members the doors for VOMS admit.
    """

    name = "secure storage"
    packages = (_PACKAGES,)

    def __init__(self, box: Workspace, sites: Sequence[str]) -> None:
        super().__init__(box)
        self.sites = tuple(sites)
        self.folder = secure_folder(box)
        self.certificates = certificate_folder(box)
        self._programs = _PACKAGES.root(box.cache) / "usr/bin"

    def visible_folders(self) -> Sequence[VisibleFolder]:
        """Return the authorities, which jobs need."""
        return [VisibleFolder(self.certificates, self.certificates)]

    def configure(self) -> None:
        """Make authority, certificates, issuer and configurations."""
        for folder in (self.folder, self.certificates):
            self.box.make_folder(folder)
        self.authority = CertificateAuthority(self.folder / "authority", _AUTHORITY_NAME)
        self._certificate, self._key = self.authority.issue_server_certificate(HOST, use_rsa=True)
        for path in (self.authority.folder, self._certificate, self._key):
            self.box.change_owner(path)
        self.authority.publish(self.certificates)
        program = self._programs / VOMS_PROGRAM
        self.vo = VirtualOrganization(VO_NAME, self.authority, self.certificates, program)
        self.vo.publish_signer(self.box.make_folder(self.folder / "vomsdir"), _AUTHORITY_NAME)
        self._write_proxies()
        self.issuer = TokenIssuer.create(self.box, self.folder, HOST)
        user, authority = self.box.user, self.authority.ca
        script = render_template("with-authorities.sh.j2", authority=authority, user=user)
        self.box.write_file(self.folder / "with-authorities.sh", script)
        #: Site -> door -> port.
        self.ports = {
            site: dict(zip(DOOR_NAMES, find_free_ports(len(DOOR_NAMES)), strict=True))
            for site in self.sites
        }
        for site in self.sites:
            xrootd_storage.make_storage(self.box, site)
            for kind in _SERVERS:
                self._configure_server(kind, site)

    def _write_proxies(self) -> None:
        """Write proxies of the user: of a member of the VO, with its role, and without a VO."""
        user_proxy(self.box, "").parent.mkdir(mode=0o700)
        self.vo.write_proxy(user_proxy(self.box, MEMBER), [f"/{VO_NAME}"])
        roles = [f"/{VO_NAME}/Role={WRITER_ROLE}", f"/{VO_NAME}"]
        self.vo.write_proxy(user_proxy(self.box, WRITER), roles)
        self.authority.write_proxy(user_proxy(self.box, STRANGER), _PROXY_HOURS * 3600.0)

    def _configure_server(self, kind: str, site: str) -> None:
        folder = self.box.make_folder(self.folder / f"{site}-{kind}")
        for private in ("adm", "home"):
            self.box.make_folder(folder / private, 0o700)
        ports = {protocol: self.ports[site][door] for protocol, door in _SERVERS[kind].items()}
        for name in ("xrootd.cfg", "scitokens.cfg", "permissions"):
            text = render_template(
                f"secure-{name}.j2",
                folder=folder,
                kind=kind,
                site=site,
                port=ports["root"],
                http_port=ports.get("https", 0),
                storage=xrootd_storage.storage_folder(self.box, site),
                export=xrootd_storage.DATASET_FOLDER,
                certificate=self._certificate,
                key=self._key,
                authorities=self.certificates,
                issuer=self.issuer.url,
                audience=ANY_AUDIENCE,
                vo=VO_NAME,
                role=WRITER_ROLE,
                restricted=RESTRICTED_FOLDER,
            )
            self.box.write_file(folder / name, text)

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return the issuer first, then the servers of each site."""
        issuer = self.issuer.daemon(self.box, "token-issuer", self._certificate, self._key)
        servers = [f"{site}-{kind}" for site in self.sites for kind in _SERVERS]
        return [issuer, *map(self._daemon_spec, servers)]

    def _daemon_spec(self, name: str) -> DaemonSpec:
        folder = self.folder / name
        start = ["unshare", "--user", "--map-root-user", "--mount"]
        start += ["sh", str(self.folder / "with-authorities.sh")]
        command = [str(self._programs / "xrootd"), "-c", str(folder / "xrootd.cfg"), "-I", "v4"]
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": str(folder / "home"),
            "X509_VOMS_DIR": str(self.folder / "vomsdir"),
        }
        return DaemonSpec(f"xrootd-{name}", [*start, *command], environment, folder)

    def describe_missing(self) -> str:
        """Name a door to which nothing listens."""
        addresses = [self.issuer.url]
        addresses += [door.prefix for site in self.sites for door in self.doors(site)]
        silent = (url for url in addresses if not xrootd_storage.is_listening(url))
        return next((f"nothing listens at {url}" for url in silent), "")

    def doors(self, site: str) -> tuple[Door, ...]:
        """Return the secure doors of a site."""
        doors = []
        for protocol, name in [pair for server in _SERVERS.values() for pair in server.items()]:
            prefix, middleware = _FORMS[protocol]
            door = Door(
                name=name,
                protocol=protocol,
                prefix=prefix.format(self.ports[site][name], xrootd_storage.DATASET_FOLDER),
                middleware=middleware,
                load=xrootd_storage.PERMITTED_LOAD,
            )
            doors.append(door)
        return tuple(doors)


def secure_folder(box: Workspace) -> Path:
    """Return the folder of a testbed's authority, issuer and secure servers."""
    return box.folder / "secure"


def certificate_folder(box: Workspace) -> Path:
    """Return the folder of authorities that users of secure doors name in X509_CERT_DIR."""
    return secure_folder(box) / "certificates"


def user_proxy(box: Workspace, holder: str) -> Path:
    """Return the file of a user's proxy, valid for half a day after ``up``."""
    return secure_folder(box) / "proxies" / f"{holder}.pem"


def load_issuer(box: Workspace) -> TokenIssuer:
    """Load the token issuer of a running testbed.

    Raises:
        TestbedError: the testbed has none.
    """
    return TokenIssuer.load(box, secure_folder(box), "--secure-sites 2")


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

    def write_proxy(self, path: Path, attributes: Sequence[str], *, expired: bool = False) -> Path:
        """Write a proxy of a new user certificate with attributes such as ``/VO/Role=NAME``.

        Attributes of another VO have a signer that servers do not know for it.
        Proxies of expired attributes are valid themselves.
        """
        user = self.authority.issue_user_certificate()
        with tempfile.TemporaryDirectory() as folder:
            signed = self._sign_attributes(user, Path(folder), attributes, expired)
        return user.write_proxy(path, _PROXY_HOURS * 3600.0, signed)

    def _sign_attributes(
        self, user: UserCertificate, folder: Path, attributes: Sequence[str], expired: bool
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
            "hours": _PROXY_HOURS,
            "vomslife": _PROXY_HOURS,
            "voms": attributes[0].split("/")[1],
            "uri": f"{_SERVER}:{_PORT}",
            "hostcert": f"{signer}.pem",
            "hostkey": f"{signer}.key",
        }
        command = [str(self.program), "-quiet", "-rfc", "-newformat"]
        command += [word for name, value in options.items() for word in (f"-{name}", str(value))]
        command += ["-pastac", f"{_PROXY_HOURS + 1}:00"] if expired else []
        for attribute in attributes:
            role = "" if "/Role=" in attribute else "/Role=NULL"
            command += ["-fqan", f"{attribute}{role}/Capability=NULL"]
        run_program(command)
        signed_proxy = x509.load_pem_x509_certificate(proxy.read_bytes())
        extension = signed_proxy.extensions.get_extension_for_oid(_ATTRIBUTES_OID).value
        assert isinstance(extension, x509.UnrecognizedExtension)
        return extension
