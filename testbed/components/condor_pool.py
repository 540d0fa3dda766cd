"""The HTCondor pool of a testbed: collector, negotiator, schedd and one startd per site."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

from treehammer.testbed import mount_namespace
from treehammer.testbed.component import Component, DaemonSpec, VisibleFolder, render_template
from treehammer.testbed.components import arc_element
from treehammer.testbed.debian_packages import PackageTree
from treehammer.testbed.workspace import ENVIRONMENT_MARK, Workspace, run_program, write_secret

#: HTCondor, and a library that it takes for granted.
PACKAGES = PackageTree("condor", programs=("condor", "libcrypt1"))
KEY_BYTES = 48
#: The submitting user, and the user of the daemons.
CONDOR_USER, DAEMON_USER = "treehammer", "condor"
#: Issuer of accepted SciTokens, and the user they map to; no server listens there.
ISSUER, SCITOKEN_USER = "https://issuer.testbed", "alice"
#: Names of the pools.
FIRST_POOL, SECOND_POOL = "condor", "pool2"
#: Site of the second pool's jobs.
SECOND_SITE = "POOL2_SITE"
SIGQUIT = 3
#: PATH of the daemons; jobs have none.
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

#: Folders of a pool's daemons, with tokens of the daemons except startds, of startds (valid only for
#: advertising to the collector: jobs run as the same user and can read them), and of a user for the
#: keepalive script.
_FOLDERS = (
    *("", "etc", "etc/tokens.d", "tokens.d", "keys", "stir", "stir/tokens.d"),
    *("cred", "log", "spool", "run", "s"),
)


class CondorPool(Component):
    """Component for one HTCondor pool.

    Without being configured, it describes the pool of a running testbed.

    Args:
        box: the testbed.
        name: of the pool and its folder: :data:`FIRST_POOL`, or :data:`SECOND_POOL` behind the grid
            universe.
        sends_to: the pool to which its schedd may submit.

    Attributes:
        sites: names of its sites.
        routes: whether a job router stands between submitted jobs and those that run.
        domain: of users and machines.
        folder: of the daemons' files and configuration.
        release_root: root of the unpacked packages.
        key_cache: cache of the SciToken issuers' keys.
        client_folder: the user's files: ``condor_config`` and ``tokens.d``.
        client_config: value of CONDOR_CONFIG for users.
        admin_token_folder: tokens that may stop and start daemons.
    """

    def __init__(
        self, box: Workspace, name: str = FIRST_POOL, sends_to: CondorPool | None = None
    ) -> None:
        super().__init__(box)
        self.name = name
        self.sends_to = sends_to
        self.routes = name == SECOND_POOL
        self.packages = () if self.routes else (PACKAGES,)  # both pools share it
        self.sites = (SECOND_SITE,) if self.routes else box.sites
        self.slots = 1 if self.routes else box.slots
        self.domain = f"{name}.testbed"
        self.schedd_name = f"{name}@{self.domain}"
        self.folder = box.folder / name
        self.release_root = PACKAGES.root(box.cache)
        self.key_cache = self.folder / "run/cache"
        self.client_folder = box.folder / (f"client-{name}" if self.routes else "client")
        self.client_config = self.client_folder / "condor_config"
        self.admin_token_folder = self.client_folder / "admin.d"

    @property
    def user(self) -> str:
        """User that submitters' tokens are mapped to.

        A job router that is not root routes only the jobs of its own user.
        """
        if not self.routes:
            return CONDOR_USER
        uid = os.getuid() if self.box.user is None else self.box.user[0]
        return pwd.getpwuid(uid).pw_name

    @property
    def daemon_env(self) -> dict[str, str]:
        """Environment of the daemons, in the local time zone."""
        environment = {name: os.environ[name] for name in ("TZ",) if name in os.environ}
        if self.box.arc:
            authorities = arc_element.authorities_folder(self.box)
            environment["X509_CERT_DIR"] = str(authorities)
        return {
            **environment,
            "PATH": PATH,
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "CONDOR_CONFIG": str(self.folder / "etc/condor_config"),
        }

    @property
    def client_env(self) -> dict[str, str]:
        """Environment of a user's commands."""
        programs = f"{self.release_root}/usr/bin:{self.release_root}/usr/sbin"
        return {
            **self.daemon_env,
            "CONDOR_CONFIG": str(self.client_config),
            "PATH": f"{programs}:{PATH}",
        }

    @property
    def collector_port(self) -> int:
        """Port of the pool's shared-port daemon; 0 if unknown."""
        try:
            text = (self.folder / "run/.collector_address").read_text(encoding="utf-8")
        except OSError:
            return 0
        match = re.match(r"<127\.0\.0\.1:(\d+)", text)
        return int(match[1]) if match else 0

    @property
    def grid_resource(self) -> str:
        """``grid_resource`` that leads into the running pool."""
        return f"condor {self.schedd_name} 127.0.0.1:{self.collector_port}"

    def site_folder(self, site: str) -> Path:
        """Return the folder of a site's startd: ``log``, ``execute`` and the jobs' ``/tmp``."""
        return self.folder / "sites" / site

    def configure(self) -> None:
        """Write keys, tokens, configuration and the startds' mount namespaces."""
        box, folder = self.box, self.folder
        for name in _FOLDERS:
            box.make_folder(folder / name, mode=0o700)
        for name in ("startd", "sites"):
            box.make_folder(folder / name)
        box.make_folder(submit_folder(box))
        self.client_folder.mkdir(mode=0o755)
        # As root, HTCondor's commands read it as the testbed's user.
        self.client_folder.chmod(0o755)
        for private in (self.client_folder / "tokens.d", self.admin_token_folder):
            private.mkdir(mode=0o700)
        for site in self.sites:
            self._configure_site(site)
        environment_mark = f"{ENVIRONMENT_MARK}={box.folder}"
        text = render_template("pool.j2", pool=self, mark=environment_mark)
        box.write_file(folder / "etc/condor_config", text)
        identity = re.escape(f"{ISSUER},{SCITOKEN_USER}")
        user = self.user if self.routes else SCITOKEN_USER
        users = f"SCITOKENS ^{identity}$ {user}@{self.domain}\n"
        box.write_file(folder / "etc/users", users)
        key = folder / "keys/POOL"
        key.touch(mode=0o600)
        key.write_bytes(bytes(1 + secrets.randbelow(255) for _ in range(KEY_BYTES)))
        box.change_owner(key)
        self._write_tokens()
        box.write_file(folder / "stir/stir", render_template("stir.sh.j2", pool=self), mode=0o755)

    def _write_tokens(self) -> None:
        box = self.box
        daemon_token = self._create_token(DAEMON_USER)
        user_token = self._create_token(self.user)
        limits = ("-authz", "ADVERTISE_STARTD", "-authz", "READ")
        for path, token in {
            "tokens.d/condor": daemon_token,
            "etc/tokens.d/startd": self._create_token(DAEMON_USER, *limits),
            "stir/tokens.d/user": user_token,
        }.items():
            box.write_file(self.folder / path, token, mode=0o600)
        write_secret(self.admin_token_folder / "condor", daemon_token)
        write_secret(self.client_folder / "tokens.d/user", user_token)

    def _configure_site(self, site: str) -> None:
        box = self.box
        folder = box.make_folder(self.site_folder(site))
        for name in ("log", "execute"):
            box.make_folder(folder / name)
        temporary = box.make_folder(folder / "tmp", mode=0o1777)
        show = [
            VisibleFolder(self.release_root, self.release_root),
            VisibleFolder(self.folder / "etc", self.folder / "etc"),
            *(
                VisibleFolder(path, path, True)
                for path in (self.folder / "s", self.folder / "run", folder)
            ),
            VisibleFolder(temporary, Path("/tmp"), True),  # noqa: S108 - the jobs' /tmp
            *self.job_views,
        ]
        # Starters asked for their capabilities have no local name and inherit this log.
        startd = [
            "env",
            f"_CONDOR_LOG={folder}/log",
            str(self.release_root / "usr/sbin/condor_startd"),
        ]
        mount_namespace.write_job_wrapper(box, self.folder / "startd" / site, show, startd)

    def _create_token(self, user: str, *limits: str) -> str:
        program = str(self.release_root / "usr/bin/condor_token_create")
        command = [program, "-identity", f"{user}@{self.domain}", "-key", "POOL", *limits]
        command = [*mount_namespace.daemon_wrapper_command(self.box), *command]
        return run_program(command, where=program, env=self.daemon_env, folder=self.folder)

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return the master, which starts and restarts the other daemons."""
        master = str(self.release_root / "usr/sbin/condor_master")
        return [
            DaemonSpec(self.name, [master, "-f"], self.daemon_env, self.folder, stop_signal=SIGQUIT)
        ]

    def describe_missing(self) -> str:
        """List daemons that have not reported to the collector."""
        if not self.collector_port:
            return "the collector"
        if not self.client_config.exists():
            text = render_template("client.j2", pool=self)
            self.client_config.write_text(text, encoding="utf-8")
        result = subprocess.run(
            ["condor_status", "-any", "-af", "MyType", "Name", "GLIDEIN_Site"],
            executable=self.release_root / "usr/bin/condor_status",
            env=self.client_env,
            check=False,
            capture_output=True,
            text=True,
        )
        lines = [line.split() for line in result.stdout.splitlines()]
        reported = {line[2] for line in lines if line[0] == "Machine"}
        reported |= {line[0] for line in lines}
        return ", ".join(
            name for name in ("Scheduler", "Negotiator", *self.sites) if name not in reported
        )

    def finish_setup(self) -> None:
        """Allow this pool's schedd to submit to the other self."""
        if self.sends_to is not None:
            token = (self.sends_to.client_folder / "tokens.d/user").read_text(encoding="utf-8")
            self.box.write_file(self.folder / "tokens.d" / self.sends_to.name, token, mode=0o600)


def submit_folder(box: Workspace) -> Path:
    """Return the folder of job inputs and outputs, writable by their owner."""
    return box.folder / "submit"
