"""An ARC computing element: A-REX in a root folder of its own, which runs its jobs by itself."""

from __future__ import annotations

import os
import shutil
import ssl
import urllib.error
from collections.abc import Sequence
from pathlib import Path

from treehammer.collectors.http_requests import Deadline, send_request
from treehammer.errors import TestbedError
from treehammer.testbed.component import Component, DaemonSpec, render_template
from treehammer.testbed.components.secure_storage import SecureStorage
from treehammer.testbed.credentials import SUBJECT, CertificateAuthority
from treehammer.testbed.debian_packages import PackageTree
from treehammer.testbed.network import find_free_ports
from treehammer.testbed.workspace import ProgressCallback, Workspace, run_program, write_secret

SYSTEM = PackageTree(
    "arc",
    ("nordugrid-arc-arex", "nordugrid-arc-arcctl", "nordugrid-arc-plugins-needed", "tar"),
    is_system=True,
)
#: Path of ARC's REST interface below its server.
REST_PATH = "/arex/rest/1.0"
#: Site behind the computing element.
ARC_SITE = "ARC_SITE"
#: Operations that the user's token permits, in the scopes of WLCG tokens.
SUBMIT_SCOPE = "compute.create compute.read compute.modify compute.cancel"
CREDENTIAL_LIFETIME_S = 24 * 3600.0
_TIMEOUT_S = 2.0


def arc_folder(box: Workspace) -> Path:
    """Return the folder of the computing element's files."""
    return box.folder / "arc"


def authorities_folder(box: Workspace) -> Path:
    """Return the folder of the authorities that the computing element and its clients trust."""
    return arc_folder(box) / "etc/grid-security/certificates"


def proxy_file(box: Workspace) -> Path:
    """Return the proxy of a user who may submit, owned by the testbed's user for HTCondor."""
    return box.folder / "client/x509-proxy.pem"


def token_file(box: Workspace) -> Path:
    """Return the token of a user who may submit, like :func:`proxy_file`."""
    return box.folder / "client/arc-token"


class ArcElement(Component):
    """Component for an ARC computing element; it needs root, for chroot and other users' jobs.

    Args:
        box: the testbed.
        secure: configured earlier; tokens of its issuer are accepted as well as x509 proxies.
    """

    name = "arc"
    packages = (SYSTEM,)

    def __init__(self, box: Workspace, secure: SecureStorage | None = None) -> None:
        super().__init__(box)
        self.secure = secure
        self._port = 0

    @property
    def grid_resource(self) -> str:
        """Grid resource of HTCondor that leads to it."""
        return f"arc https://localhost:{self._port}{REST_PATH}"

    @property
    def submit_commands(self) -> dict[str, str]:
        """Submit commands that name the user's credential: the token, or the proxy without an issuer."""
        if self.secure is not None:
            return {"scitokens_file": str(token_file(self.box))}
        return {"x509userproxy": str(proxy_file(self.box))}

    def install(self, say: ProgressCallback) -> None:
        """Unpack Debian's ARC with the system that it needs.

        Raises:
            TestbedError: the user is not root, or packages cannot be fetched.
        """
        if os.geteuid() != 0:
            raise TestbedError(
                "an ARC computing element needs root: it runs in a root folder of its own",
                hint="Run the testbed as root, or leave ARC out.",
            )
        super().install(say)

    def configure(self) -> None:
        """Write certificates, a proxy, and configuration."""
        folder, system = arc_folder(self.box), SYSTEM.root(self.box.cache)
        (self._port,) = find_free_ports(1)
        for name in ("root", "home"):
            (folder / name).mkdir(parents=True)
        # What is written to; relative links and owners matter there.
        run_program(["cp", "-a", str(system / "etc"), str(system / "var"), str(folder)])
        self._write_certificates()
        issuer = self.secure.issuer.url if self.secure else ""
        text = render_template("arc.conf.j2", port=self._port, user=SUBJECT, issuer=issuer)
        (folder / "etc/arc.conf").write_text(text, encoding="utf-8")
        text = render_template(
            "arc.sh.j2",
            folder=str(folder),
            mount=str(folder / "root"),
            system=str(system),
            views=self.job_views,
        )
        (folder / "run.sh").write_text(text, encoding="utf-8")

    def _write_certificates(self) -> None:
        folder = arc_folder(self.box)
        authority = CertificateAuthority(folder / "authority", "Treehammer testbed ARC")
        trusted = authorities_folder(self.box)
        trusted.mkdir(parents=True)
        authority.publish(trusted)
        certificate, key = authority.issue_server_certificate("localhost", use_rsa=True)
        shutil.copy(certificate, trusted.parent / "hostcert.pem")
        write_secret(trusted.parent / "hostkey.pem", key.read_text(encoding="ascii"))
        authority.write_proxy(proxy_file(self.box), CREDENTIAL_LIFETIME_S)
        self.box.change_owner(proxy_file(self.box))
        if self.secure is not None:
            # The issuer's keys are fetched over https, with the system's authorities.
            for certificates in (trusted, folder / "etc/ssl/certs"):
                certificates.mkdir(parents=True, exist_ok=True)
                self.secure.authority.publish(certificates)
            token = token_file(self.box)
            self.secure.issuer.write_token(token, SUBMIT_SCOPE, CREDENTIAL_LIFETIME_S)
            self.box.change_owner(token)

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return A-REX and its web server, as one."""
        folder = arc_folder(self.box)
        command = ["unshare", "--mount", "--propagation", "private", "bash", str(folder / "run.sh")]
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        return [DaemonSpec(self.name, command, env, folder, privileged=True)]

    def describe_missing(self) -> str:
        """Check that the REST interface answers."""
        trusted = ssl.create_default_context(capath=str(authorities_folder(self.box)))
        trusted.load_cert_chain(proxy_file(self.box))
        url = f"https://localhost:{self._port}{REST_PATH}/jobs"
        try:
            send_request("GET", url, Deadline(_TIMEOUT_S), context=trusted).close()
            return ""
        except urllib.error.HTTPError as error:
            return f"REST interface: {error}"
        except OSError:
            return "REST interface"
