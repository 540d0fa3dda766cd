"""A real Slurm cluster of one node beside a test, from Debian's packages, without accounting."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from captured_runs import run_captured
from machine_requirements import skip_or_fail
from polling import wait_until

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.testbed.debian_packages import PackageTree
from treehammer.testbed.network import find_free_ports

PARTITION = "short"
# The name of the package slurm-wlm is that of the folder of Slurm's own library.
_PACKAGES = PackageTree(
    "slurm",
    programs=("slurmctld", "slurmd", "slurm-client", "slurm-wlm", "slurm-wlm-basic-plugins"),
)
_CONFIG = """
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
PluginDir={plugins}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=sched_interval=2,bf_interval=2
KillWait=5
ReturnToService=2
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=8000 State=UNKNOWN
PartitionName={partition} Nodes=node1 Default=YES MaxTime=INFINITE State=UP
PartitionName=closed Nodes=node1 State=DOWN
"""


@contextmanager
def run_slurm(folder: Path) -> Iterator[Mapping[str, str]]:
    """Run a cluster; yield the variables by which commands find it."""
    try:
        root = _PACKAGES.unpack(config.load_settings().cache_dir / "testbed", print)
    except TestbedError as error:
        skip_or_fail(f"no Slurm: {error}")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    for name in ("slurmctld", "slurmd", "slurmstepd"):  # which look at their own name
        (folder / name).symlink_to(root / f"usr/sbin/{name}-wlm")
    text = _CONFIG.format(
        user=getpass.getuser(),
        plugins=next(root.glob("usr/lib/*/slurm-wlm")),
        ports=find_free_ports(2),
        folder=folder,
        host=socket.gethostname().partition(".")[0],
        partition=PARTITION,
    )
    (folder / "slurm.conf").write_text(text)
    variables = {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PATH": f"{root / 'usr/bin'}:{os.environ['PATH']}",
    }
    environment = {**os.environ, **variables}
    # Jobs and their supervisors outlive slurmd, but not the first process of their namespace.
    user = [] if os.getuid() == 0 else ["--user", "--map-current-user"]
    alone = ["unshare", *user, "--pid", "--fork", "--kill-child", "--mount-proc"]
    commands = {
        "slurmctld": [f"{folder}/slurmctld", "-D", "-i"],
        "slurmd": [*alone, f"{folder}/slurmd", "-D", "-d", f"{folder}/slurmstepd"],
    }
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                mortal = ["setpriv", "--pdeathsig", "KILL", *command]
                daemons.append(
                    subprocess.Popen(mortal, env=environment, stdout=log, stderr=log, cwd=folder)
                )

        def run(*command: str) -> str:
            return run_captured(command, env=environment, timeout=30).stdout

        wait_until(lambda: "idle" in run("sinfo", "-h", "-o", "%t"), "a node", 30)
        yield variables
        run("scancel", "--me")
        wait_until(lambda: not run("squeue", "-h", "--me"), "all jobs have ended", 30)
    finally:
        for daemon in reversed(daemons):
            with suppress(ProcessLookupError):
                daemon.kill()
        for daemon in daemons:
            daemon.wait(20)
