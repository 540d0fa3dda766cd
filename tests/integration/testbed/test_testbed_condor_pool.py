"""The testbed's real HTCondor pool."""

from __future__ import annotations

import os
from pathlib import Path

from grid_fixtures import Grid

import treehammer
from treehammer import config

SUBMIT = """
executable = {folder}/probe.sh
should_transfer_files = YES
when_to_transfer_output = ON_EXIT
transfer_output_files = said
output = out
error = err
log = log
request_disk = 10MB
request_memory = 100
{more}
queue
"""


def run(grid: Grid, name: str, script: str, more: str = "") -> Path:
    """Submit a job that writes to ``said``; return its folder."""
    folder = grid.submit_dir / name
    folder.mkdir()
    folder.chmod(0o777)
    probe = folder / "probe.sh"
    probe.write_text(f"#!/bin/sh\nexec > said\n{script}\n")
    probe.chmod(0o755)
    (folder / "job.sub").write_text(
        SUBMIT.format(folder=folder, more=f"{more}\ninitialdir = {folder}")
    )
    grid.run_condor_command("condor_submit", str(folder / "job.sub"))
    return folder


def said(grid: Grid, folder: Path, patience_s: float = 60.0) -> list[str]:
    """Wait for the job; return its output."""
    log = folder / "log"
    grid.wait_until(lambda: "Job terminated" in log.read_text(), "the job ends", patience_s)
    return (folder / "said").read_text().splitlines()


def test_job_runs_at_requested_site(pool: Grid) -> None:
    site = pool.box.sites[2]
    folder = run(
        pool,
        f"site-{site}",
        'sed -n "s/^GLIDEIN_Site = //p" "$_CONDOR_MACHINE_AD"',
        f'requirements = TARGET.GLIDEIN_Site == "{site}"',
    )

    assert said(pool, folder) == [f'"{site}"']


def test_job_cannot_see_user_files(pool: Grid, tmp_path: Path) -> None:
    settings = config.load_settings()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    secret = pool.pool.client_folder / "tokens.d/user"
    hidden = {
        "checkout": Path(treehammer.__file__).resolve(),
        "this test": Path(__file__),
        "home": Path.home() / ".bashrc",
        "ROOT releases": settings.software_dir,
        "datasets": settings.datasets_dir,
        "packages": pool.box.cache / "debs",
        "results": settings.data_dir,
        "inputs of others": pool.submit_dir / "private",
        "token": secret,
        "temporary files": tmp_path,
        "key of the pool": pool.pool.folder / "keys/POOL",
        "tokens of daemons": pool.pool.folder / "tokens.d/condor",
        "token of stir": pool.pool.folder / "stir/tokens.d/user",
    }
    folder = run(
        pool,
        "private",
        "\n".join(
            [
                f"ls -dA {p}/. {p} >&2 && ls -A {p} && echo '{what} seen'"
                for what, p in hidden.items()
            ]
            + ["id -u", "touch /tmp/left", "echo end"]
        ),
    )

    lines = said(pool, folder)
    uid = pool.box.user[0] if pool.box.user else os.getuid()
    assert lines == [str(uid), "end"]
    assert secret.exists()
    assert not Path("/tmp/left").exists()
