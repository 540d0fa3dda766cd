"""The HTCondor pool of a testbed: collector, negotiator, schedd and one startd per site."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treehammer.errors import TestbedError
from treehammer.testbed import debian_packages, mount_namespace
from treehammer.testbed.components import arc_element
from treehammer.testbed.workspace import (
    ENVIRONMENT_MARK,
    Component,
    DaemonSpec,
    ProgressCallback,
    VisibleFolder,
    Workspace,
    render_template,
    write_secret,
)

SUITE = "trixie"
#: Libraries that HTCondor's programs load; its package depends on many more.
LIBRARIES = (
    "libcurl4t64",
    "libgssapi-krb5-2",
    "libkrb5-3",
    "libscitokens0t64",
    "libsqlite3-0",
    "libstdc++6",
    "libgomp1",
    "libcrypt1",
    "libvomsapi1t64",
    "libmunge2",
    "libuuid1",
    "libpcre2-8-0",
    "libexpat1",
    "libssl3t64",
    "zlib1g",
    "libzstd1",
)
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

#: Touches waiting jobs every few seconds, because HTCondor 23.9 can forget them in an idle pool.
KEEPALIVE_SCRIPT = """#!/bin/sh
export _CONDOR_SEC_TOKEN_DIRECTORY={tokens} _CONDOR_SEC_TOKEN_SYSTEM_DIRECTORY={tokens}
while sleep 4; do
  {programs}/condor_qedit >/dev/null 2>&1 -constraint \\
    'JobStatus == 1 && JobPrio =?= 0 && time() - EnteredCurrentStatus > 4' JobPrio 0
done
"""


@dataclass(frozen=True)
class PoolLayout:
    """Paths, addresses and environments of a pool.

    Attributes:
        name: of its folder in the testbed's.
        workspace: the testbed.
        sites: names of its sites.
        visible_folders: folders that jobs see in addition to HTCondor's needs.
        slots: jobs that a site runs at once.
    """

    name: str
    workspace: Workspace
    sites: tuple[str, ...]
    visible_folders: tuple[VisibleFolder, ...] = ()
    slots: int = 1

    @property
    def folder(self) -> Path:
        """Folder of the daemons' files and configuration."""
        return self.workspace.folder / self.name

    @property
    def config_file(self) -> Path:
        """Configuration of the daemons."""
        return self.folder / "etc/condor_config"

    @property
    def token_folder(self) -> Path:
        """Tokens of the daemons except startds."""
        return self.folder / "tokens.d"

    @property
    def startd_token_folder(self) -> Path:
        """Tokens of startds, valid only for advertising to the collector.

        Jobs can read them, because they run as the same user.
        """
        return self.folder / "etc/tokens.d"

    @property
    def keepalive_folder(self) -> Path:
        """Folder of the keepalive script; see :data:`KEEPALIVE_SCRIPT`.

        Hidden from jobs, because it holds a user's token.
        """
        return self.folder / "stir"

    @property
    def user_map_file(self) -> Path:
        """Map of SciToken subjects to users."""
        return self.folder / "etc/users"

    @property
    def key_cache(self) -> Path:
        """Cache of the SciToken issuers' keys."""
        return self.folder / "run/cache"

    @property
    def client_folder(self) -> Path:
        """Folder of the user's files: ``condor_config`` and ``tokens.d``."""
        return self.workspace.folder / (
            "client" if self.name == FIRST_POOL else f"client-{self.name}"
        )

    @property
    def client_config(self) -> Path:
        """Value of CONDOR_CONFIG for users."""
        return self.client_folder / "condor_config"

    @property
    def admin_token_folder(self) -> Path:
        """Tokens that may stop and start daemons."""
        return self.client_folder / "admin.d"

    @property
    def schedd_name(self) -> str:
        """Name of the schedd."""
        return f"{self.name}@{self.domain}"

    @property
    def routes(self) -> bool:
        """Whether a job router stands between submitted jobs and those that run."""
        return self.name == SECOND_POOL

    @property
    def user(self) -> str:
        """User that submitters' tokens are mapped to.

        A job router that is not root routes only the jobs of its own user.
        """
        if not self.routes:
            return CONDOR_USER
        uid = os.getuid() if self.workspace.user is None else self.workspace.user[0]
        return pwd.getpwuid(uid).pw_name

    @property
    def scitoken_user(self) -> str:
        """User that the SciTokens of :data:`SCITOKEN_USER` are mapped to."""
        return self.user if self.routes else SCITOKEN_USER

    @property
    def domain(self) -> str:
        """Domain of users and machines."""
        return f"{self.name}.testbed"

    @property
    def release_root(self) -> Path:
        """Root of the unpacked packages."""
        return self.workspace.cache / f"condor-{SUITE}" / "root"

    @property
    def daemon_env(self) -> dict[str, str]:
        """Environment of the daemons, in the local time zone."""
        environment = {name: os.environ[name] for name in ("TZ",) if name in os.environ}
        authorities = arc_element.authorities_folder(self.workspace)
        if authorities.exists():
            environment["X509_CERT_DIR"] = str(authorities)
        return {
            **environment,
            "PATH": PATH,
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "CONDOR_CONFIG": str(self.config_file),
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

    def site_folder(self, site: str) -> Path:
        """Return the folder of a site's startd: ``log``, ``execute`` and the jobs' ``/tmp``.

        If ``execute_mb`` exists at the start, it limits ``execute`` to that many MiB.
        """
        return self.folder / "sites" / site


def submit_folder(box: Workspace) -> Path:
    """Return the folder of job inputs and outputs, writable by their owner."""
    return box.folder / "submit"


def first_pool_layout(box: Workspace, views: Sequence[VisibleFolder] = ()) -> PoolLayout:
    """Return the pool of the testbed's sites."""
    return PoolLayout(FIRST_POOL, box, box.sites, tuple(views), box.slots)


def second_pool_layout(box: Workspace, views: Sequence[VisibleFolder] = ()) -> PoolLayout:
    """Return the pool behind the grid universe."""
    return PoolLayout(SECOND_POOL, box, (SECOND_SITE,), tuple(views))


def grid_resource_of(box: Workspace) -> str:
    """Return the ``grid_resource`` that leads into the running second pool."""
    pool = second_pool_layout(box)
    return f"condor {pool.schedd_name} 127.0.0.1:{pool.collector_port}"


class CondorPool(Component):
    """Component for one HTCondor pool."""

    def __init__(self, pool: PoolLayout, sends_to: PoolLayout | None = None) -> None:
        self.pool = pool
        self.sends_to = sends_to
        self.name = pool.name

    def install(self, say: ProgressCallback) -> None:
        """Unpack Debian's HTCondor; both pools share it.

        Raises:
            TestbedError: it cannot be fetched.
        """
        if self.name != FIRST_POOL:
            return
        cache = self.pool.workspace.cache
        debian_packages.unpack_packages("condor", LIBRARIES, SUITE, cache, say, alone=["condor"])

    def configure(self) -> None:
        """Write keys, tokens, configuration and the startds' mount namespaces."""
        pool, box = self.pool, self.pool.workspace
        for name in (
            "",
            "etc",
            "etc/tokens.d",
            "tokens.d",
            "keys",
            "stir",
            "stir/tokens.d",
            "cred",
            "log",
            "spool",
            "run",
            "s",
        ):
            box.make_folder(pool.folder / name, mode=0o700)
        for name in ("startd", "sites"):
            box.make_folder(pool.folder / name)
        pool.client_folder.mkdir()
        pool.client_folder.chmod(
            0o755
        )  # as root, HTCondor's commands read it as the testbed's user
        for folder in (pool.client_folder / "tokens.d", pool.admin_token_folder):
            folder.mkdir(mode=0o700)
        box.make_folder(submit_folder(box))
        for site in pool.sites:
            self._configure_site(site)
        box.write_file(pool.config_file, self._render_pool())
        identity = re.escape(f"{ISSUER},{SCITOKEN_USER}")
        box.write_file(
            pool.user_map_file, f"SCITOKENS ^{identity}$ {pool.scitoken_user}@{pool.domain}\n"
        )
        key = pool.folder / "keys/POOL"
        key.touch(mode=0o600)
        key.write_bytes(bytes(1 + secrets.randbelow(255) for _ in range(KEY_BYTES)))
        box.change_owner(key)
        daemon_token = self._create_token(DAEMON_USER)
        box.write_file(pool.token_folder / "condor", daemon_token, mode=0o600)
        startd_token = self._create_token(
            DAEMON_USER, "-authz", "ADVERTISE_STARTD", "-authz", "READ"
        )
        box.write_file(pool.startd_token_folder / "startd", startd_token, mode=0o600)
        write_secret(pool.admin_token_folder / "condor", daemon_token)
        user_token = self._create_token(pool.user)
        write_secret(pool.client_folder / "tokens.d/user", user_token)
        box.write_file(pool.keepalive_folder / "tokens.d/user", user_token, mode=0o600)
        keepalive_script = KEEPALIVE_SCRIPT.format(
            programs=pool.release_root / "usr/bin", tokens=pool.keepalive_folder / "tokens.d"
        )
        box.write_file(pool.keepalive_folder / "stir", keepalive_script, mode=0o755)

    def _configure_site(self, site: str) -> None:
        pool, box = self.pool, self.pool.workspace
        folder = box.make_folder(pool.site_folder(site))
        for name in ("log", "execute"):
            box.make_folder(folder / name)
        temporary = box.make_folder(folder / "tmp", mode=0o1777)
        show = [
            VisibleFolder(pool.release_root, pool.release_root),
            VisibleFolder(pool.config_file.parent, pool.config_file.parent),
            *(
                VisibleFolder(path, path, True)
                for path in (pool.folder / "s", pool.folder / "run", folder)
            ),
            VisibleFolder(temporary, Path("/tmp"), True),  # noqa: S108 - the jobs' /tmp
            *pool.visible_folders,
        ]
        # Starters asked for their capabilities have no local name and inherit this log.
        startd = [
            "env",
            f"_CONDOR_LOG={folder}/log",
            str(pool.release_root / "usr/sbin/condor_startd"),
        ]
        small = [f"if [ -f {folder}/execute_mb ]; then"]
        small += [
            f'mount -t tmpfs -o size="$(cat {folder}/execute_mb)m" none {folder}/execute',
            "fi",
        ]
        mount_namespace.write_job_wrapper(
            box, pool.folder / "startd" / site, show, startd, setup_lines=small
        )

    def _render_pool(self) -> str:
        """Render the configuration of the pool's daemons."""
        pool = self.pool
        sites = [
            {
                "name": site,
                "folder": pool.site_folder(site),
                "program": pool.folder / "startd" / site,
            }
            for site in pool.sites
        ]
        return render_template(
            "pool.j2",
            release=pool.release_root,
            domain=pool.domain,
            schedd=pool.schedd_name,
            folder=pool.folder,
            sockets=pool.folder / "s",
            keys=pool.folder / "keys",
            tokens=pool.token_folder,
            startd_tokens=pool.startd_token_folder,
            users=pool.user_map_file,
            stir=pool.keepalive_folder,
            sites=sites,
            slots=pool.slots,
            routes=pool.routes,
            mark=f"{ENVIRONMENT_MARK}={pool.workspace.folder}",
        )

    def _render_client(self) -> str:
        """Render the configuration of the pool's users."""
        pool = self.pool
        return render_template(
            "client.j2",
            release=pool.release_root,
            domain=pool.domain,
            schedd=pool.schedd_name,
            config=pool.client_config,
            folder=pool.client_folder,
            pool=pool.folder,
            port=pool.collector_port,
            tokens=pool.client_folder / "tokens.d",
            ids=".".join(map(str, pool.workspace.user or ())),
        )

    def _create_token(self, user: str, *limits: str) -> str:
        pool = self.pool
        program = str(pool.release_root / "usr/bin/condor_token_create")
        command = [program, "-identity", f"{user}@{pool.domain}", "-key", "POOL", *limits]
        done = subprocess.run(
            [*mount_namespace.daemon_wrapper_command(pool.workspace), *command],
            env=pool.daemon_env,
            cwd=pool.folder,
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise TestbedError(f"no token for {user}: {done.stderr.strip()}", where=pool.name)
        return done.stdout

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return the master, which starts and restarts the other daemons."""
        pool = self.pool
        master = str(pool.release_root / "usr/sbin/condor_master")
        return [
            DaemonSpec(pool.name, [master, "-f"], pool.daemon_env, pool.folder, stop_signal=SIGQUIT)
        ]

    def describe_missing(self) -> str:
        """List daemons that have not reported to the collector."""
        pool = self.pool
        if not pool.collector_port:
            return "the collector"
        if not pool.client_config.exists():
            pool.client_config.write_text(self._render_client(), encoding="utf-8")
        done = subprocess.run(
            ["condor_status", "-any", "-af", "MyType", "Name", "GLIDEIN_Site"],
            executable=pool.release_root / "usr/bin/condor_status",
            env=pool.client_env,
            check=False,
            capture_output=True,
            text=True,
        )
        lines = [line.split() for line in done.stdout.splitlines()]
        reported = {line[2] for line in lines if line[0] == "Machine"}
        reported |= {line[0] for line in lines}
        return ", ".join(
            name for name in ("Scheduler", "Negotiator", *pool.sites) if name not in reported
        )

    def finish_setup(self) -> None:
        """Allow this pool's schedd to submit to the other pool."""
        if self.sends_to is not None:
            token = (self.sends_to.client_folder / "tokens.d/user").read_text(encoding="utf-8")
            path = self.pool.token_folder / self.sends_to.name
            self.pool.workspace.write_file(path, token, mode=0o600)
