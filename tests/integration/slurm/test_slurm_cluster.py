"""Jobs of a real Slurm cluster without accounting, which one machine runs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from local_user import LocalUser
from polling import wait_until
from slurm_cluster import PARTITION, run_slurm

from treehammer.collectors.job_spec import JobState
from treehammer.errors import BatchError
from treehammer.slurm.slurm_arrays import read_end
from treehammer.slurm.slurm_batch import SlurmBatch
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import JobDescription, JobStatus
from treehammer.submit.sites.site_model import Door, Site

_SITES = """
[sites.HPC]
batch = "slurm"
submit = {{ partition = "{partition}" }}
[[sites.HPC.doors]]
name = "file"
protocol = "file"
prefix = "/nowhere"
"""
_SCRIPT = """#!/bin/sh
#SBATCH --array=0-9%2
#SBATCH --mem=100M
#SBATCH --export=NIL
job=jobs/$SLURM_ARRAY_TASK_ID
number=$(($(cat previous_attempts) + ${SLURM_RESTART_COUNT:-0} + 1))
mkdir -p $job/output/attempt-$number
echo $SLURMD_NODENAME $SLURM_ARRAY_JOB_ID >$job/output/attempt-$number/node
read -r action <$job/inputs/job.json
case $action-$number in
  fail-1) exit 3 ;;
  killed-1) kill -9 $$ ;;
  nap*) sleep 300 ;;
esac
"""


@pytest.fixture(scope="module", autouse=True)
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("slurm")
    with run_slurm(folder) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def describe_jobs(
    folder: Path, actions: Sequence[str], text: str = _SCRIPT
) -> list[JobDescription]:
    jobs = []
    for action in actions:
        (folder / action).write_text(f"{action}\n")
        jobs.append(JobDescription(action, text, {"job.json": folder / action}))
    return jobs


def test_jobs_end_are_cancelled_removed_and_queued_again(tmp_path: Path) -> None:
    batch = SlurmBatch(tmp_path / "slurm")
    jobs = describe_jobs(tmp_path, ["fail", "killed", "nap", "nap2"])
    ids = batch.submit("c", jobs)
    assert batch.submit("c", jobs) == ids

    def find_statuses() -> dict[str, JobStatus]:
        statuses = batch.query(ids.values())
        return {job_id: statuses[batch_id] for job_id, batch_id in ids.items()}

    wait_until(
        lambda: {s.state.value for s in find_statuses().values()} == {"done", "running"},
        "two have ended and two run",
        30,
    )
    # A submitter that was killed has recorded nothing.
    (record,) = (tmp_path / "slurm").glob("c/*/array.json")
    record.unlink()
    assert SlurmBatch(batch.root).find(ids) == ids
    assert batch.submit("c", jobs) == ids
    assert batch.cancel([ids["nap"]]) == 1
    subprocess.run(["scancel", ids["nap2"].partition("@")[0]], check=True)
    wait_until(lambda: all(s.state.is_final for s in find_statuses().values()), "all ended", 30)
    ended = find_statuses()
    assert [ended[name].attempts[0].exit_code for name in ("fail", "killed")] == [3, -9]
    assert (ended["nap"].state, ended["nap2"].state) == (JobState.CANCELLED, JobState.LOST)
    (_, folder, _, task), *_ = batch.locate_all([ids["nap2"]])
    wait_until(lambda: "CANCELLED" in str(read_end(folder, task)), "Slurm's own words", 30)
    attempt = ended["fail"].attempts[0]
    assert 0 < attempt.started_us <= attempt.ended_us
    assert attempt.host == "node1"
    assert list(batch.sandboxes(ids["fail"])) == [1]

    requeued = batch.requeue({ids["fail"]: 1}, lambda _job, inputs: inputs)
    assert batch.requeue({ids["fail"]: 1}, lambda _job, inputs: inputs) == requeued
    assert batch.find(["fail"]) == {"fail": requeued[ids["fail"]]}
    failed = requeued[ids["fail"]]
    wait_until(lambda: batch.query([failed])[failed].state is JobState.DONE, "again", 30)
    (attempt,) = batch.query([failed])[failed].attempts
    assert (attempt.number, attempt.exit_code) == (2, 0)
    assert batch.purge([*ids.values(), *requeued.values()]) > 0
    assert batch.list_campaigns() == frozenset()


def test_held_job_is_released_and_refused_jobs_leave_nothing(tmp_path: Path) -> None:
    batch = SlurmBatch(tmp_path / "slurm")
    (batch_id,) = batch.submit(
        "h", describe_jobs(tmp_path, ["hold"], extend_script("hold"))
    ).values()
    status = batch.query([batch_id])[batch_id]
    assert status.state is JobState.HELD
    assert status.hold
    assert status.hold.reason == "JobHeldUser"
    assert batch.release([batch_id]) == 1
    wait_until(lambda: batch.query([batch_id])[batch_id].state is JobState.DONE, "released", 30)
    with pytest.raises(BatchError, match="invalid partition specified: nope"):
        batch.submit("x", describe_jobs(tmp_path, ["fail"], extend_script("partition=nope")))
    assert not list(batch.root.glob("x/*"))


def extend_script(option: str) -> str:
    return _SCRIPT.replace("#SBATCH --mem", f"#SBATCH --{option}\n#SBATCH --mem")


def test_site_whose_jobs_would_not_start_is_told(tmp_path: Path) -> None:
    batch, doors = SlurmBatch(tmp_path / "slurm"), (Door(name="file", protocol="file", prefix="/"),)
    for key, value, finding in (
        ("time", "1", f"{PARTITION}* (up): 1 nodes idle"),
        ("partition", "closed", "no job starts in closed (down)"),
        ("mem", "1T", "configuration is not available"),
    ):
        site = Site(name="HPC", doors=doors, submit={key: value})
        assert finding in [probe.finding for probe in batch.probe([site])][1]


def test_campaign_runs_from_command_to_database(local_user: LocalUser) -> None:
    (local_user.folder / "sites.toml").write_text(_SITES.format(partition=PARTITION))
    local_user.settings = replace(local_user.settings, sites_file=local_user.folder / "sites.toml")
    output = local_user.submit_test("--sites", "HPC", "--in-flight", "2", "--wait")
    assert "4 of 4 measured" in output
    assert {row["failure_class"] for row in local_user.read_measurements()} == {None}
    with Store.open(local_user.settings.database) as store:
        (campaign,) = store.campaigns()
        assert {job.batch_system for job in store.jobs(campaign.id)} == {"slurm"}
