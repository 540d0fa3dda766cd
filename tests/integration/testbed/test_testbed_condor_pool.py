"""The testbed's real HTCondor pool."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from grid_fixtures import Grid

import treehammer
from treehammer import config

SUBMIT = """
universe = {universe}
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


def run(grid: Grid, name: str, script: str, more: str, universe: str = "vanilla") -> Path:
    """Submit a job that writes to ``said``; return its folder."""
    folder = grid.submit_dir / name
    folder.mkdir()
    folder.chmod(0o777)
    probe = folder / "probe.sh"
    probe.write_text(f"#!/bin/sh\nexec > said\n{script}\n")
    probe.chmod(0o755)
    (folder / "job.sub").write_text(
        SUBMIT.format(universe=universe, folder=folder, more=f"{more}\ninitialdir = {folder}")
    )
    grid.run_condor_command("condor_submit", str(folder / "job.sub"))
    return folder


def said(grid: Grid, folder: Path, patience_s: float = 60.0) -> list[str]:
    """Wait for the job; return its output."""
    log = folder / "log"
    grid.wait_until(lambda: "Job terminated" in log.read_text(), "the job ends", patience_s)
    return (folder / "said").read_text().splitlines()


@pytest.mark.parametrize("number", [0, 2])
def test_job_runs_at_requested_site(pool: Grid, number: int) -> None:
    site = pool.box.sites[number]
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
        "tokens of daemons": pool.pool.token_folder / "condor",
        "token of stir": pool.pool.keepalive_folder / "tokens.d/user",
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
        "",
    )

    lines = said(pool, folder)
    uid = pool.box.user[0] if pool.box.user else os.getuid()
    assert lines == [str(uid), "end"]
    assert secret.exists()
    assert not Path("/tmp/left").exists()


def test_grid_universe_reaches_second_pool(pool: Grid) -> None:
    folder = run(
        pool,
        "second",
        'sed -n "s/^GLIDEIN_Site = //p" "$_CONDOR_MACHINE_AD"',
        f"grid_resource = {pool.grid_resource}",
        universe="grid",
    )

    assert said(pool, folder) == ['"POOL2_SITE"']


def test_site_can_stop_and_start(pool: Grid) -> None:
    site = pool.box.sites[1]

    with pool.without_site(site):
        assert pool.registered_sites() == set(pool.box.sites) - {site}

    assert pool.registered_sites() == set(pool.box.sites)


def test_killed_daemons_are_restarted(pool: Grid) -> None:
    site = pool.box.sites[0]
    before = pool.startd_pid(site), pool.schedd_pid()

    pool.kill_startd(site)
    pool.kill_schedd()

    pool.wait_until(pool.is_schedd_answering, "another schedd")
    pool.wait_until(lambda: site in pool.registered_sites(), "another startd")
    assert before[1] != pool.schedd_pid()
    assert before[0] != pool.startd_pid(site)


def test_site_disk_can_be_limited(pool: Grid) -> None:
    site = pool.box.sites[1]

    with pool.with_small_disk(site, 8):
        folder = run(
            pool,
            "full",
            "head -c 20000000 /dev/zero > much; failed=$?; rm much; echo $failed",
            f'requirements = TARGET.GLIDEIN_Site == "{site}"\n+RequestDisk = 1000',
        )
        lines = said(pool, folder)

    assert lines == ["1"]
