"""Jobs of a real pool that report to a real service while they run."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from grid_user import GridUser
from service_process import ServiceProcess

from treehammer.collectors.job_spec import TOKEN_FILE
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import INPUT_ARCHIVE
from treehammer.submit.campaigns.campaign_polling import make_tracker

#: Seconds, longer than the worker's interval between uploads.
NAP_S = 11


@pytest.fixture
def service(user: GridUser, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service that shares the user's database."""
    made = ServiceProcess(tmp_path / "served", database=user.settings.database)
    made.start()
    yield made
    made.end_process()


def test_killed_service_and_lost_sandboxes_lose_nothing(
    user: GridUser, service: ServiceProcess
) -> None:
    site = user.grid.box.sites[0]
    user.settings = service.settings_for_user(user.settings)
    top = "../../../.."
    user.set_payload(
        f"test -e {top}/job.json -a ! -e {top}/{TOKEN_FILE} || exit 9\nsleep {NAP_S}; env"
    )
    campaign = user.submit_campaign("--sites", f"{site},FAR", "-S", "repeats=1")
    user.grid.wait_until(user.read_measurements, "the first result is reported")
    sites = json.loads(user.invoke_command("status", campaign, "--json").stdout)
    assert sum(one["running"] for one in sites) >= 1, "reported before the job ended"
    with Store.open(user.settings.database) as store:
        done = (
            make_tracker(store, user.settings)
            .compute_progress(store.campaign(campaign))
            .total.measured
        )
    assert 1 <= done < 4
    service.end_process()
    held = list(user.grid.submit_dir.rglob(TOKEN_FILE))
    assert len(held) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in held} == {0o600}
    secrets = [path.read_text().strip().rpartition(".")[2] for path in held]
    secrets.append(service.key.read_text().strip().rpartition(".")[2])
    service.start()
    user.grid.wait_until(
        lambda: len(user.read_measurements()) == 4, "all measurements are reported"
    )
    user.grid.wait_until(lambda: not _queue(user, campaign), "the jobs have left the queue")

    told = user.grid.run_condor_command("condor_history", "-name", user.grid.pool.schedd_name, "-l")
    assert not [secret for secret in secrets if secret in told]
    outputs = list(user.grid.submit_dir.glob(f"{campaign}/*/jobs/*/output/*"))
    assert outputs
    for folder in (user.grid.box.folder, user.settings.data_dir):
        holders = [
            (name, mode)
            for parent, _, names in os.walk(folder)  # rglob fails where folders are removed
            for name in names
            if (mode := _mode_of_holder(Path(parent, name), secrets)) is not None
        ]
        assert {name for name, _ in holders} <= {TOKEN_FILE, INPUT_ARCHIVE}
        assert {mode for _, mode in holders} <= {0o600}
    for output in outputs:
        shutil.rmtree(output)
    sites = json.loads(user.invoke_command("status", campaign, "--json").stdout)
    assert [(one["done"], one["lost"], one["failures"]) for one in sites] == [(1, 0, {})] * 2
    assert "0 new measurements" in user.invoke_command("collect", campaign).output
    rows = user.read_measurements()
    assert len({row["measurement_id"] for row in rows}) == len(rows) == 4
    assert {row["failure_class"] for row in rows} == {None}


def test_requeued_jobs_report_with_new_tokens(user: GridUser, service: ServiceProcess) -> None:
    site = user.grid.box.sites[0]
    user.settings = service.settings_for_user(user.settings)
    user.set_payload('test -e "$HOME" || exit 3')
    campaign = user.submit_campaign("--sites", site, "-S", "repeats=1", "--wait")
    first = {path.read_text() for path in user.grid.submit_dir.rglob(TOKEN_FILE)}
    before = len(user.read_measurements())
    assert user.invoke_command("resume", campaign, "--failed").exception is None
    user.grid.wait_until(
        lambda: len(user.read_measurements()) == 2 * before, "the second attempt has reported"
    )
    tokens = {path.read_text() for path in user.grid.submit_dir.rglob(TOKEN_FILE)}
    assert len(tokens - first) == 1


def _queue(user: GridUser, campaign: str) -> str:
    constraint = f'TreehammerCampaign == "{campaign}"'
    return user.grid.run_condor_command(
        "condor_q",
        "-name",
        user.grid.pool.schedd_name,
        "-constraint",
        constraint,
        "-af",
        "ClusterId",
    ).strip()


def _mode_of_holder(path: Path, secrets: list[str]) -> int | None:
    """Return the mode of a file with a secret; None of others and of files that HTCondor removed."""
    if not path.is_file():
        return None
    try:
        mode, content = path.stat().st_mode, path.read_bytes()
    except FileNotFoundError:
        return None
    return stat.S_IMODE(mode) if any(secret.encode() in content for secret in secrets) else None
