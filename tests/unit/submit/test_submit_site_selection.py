"""Sites, doors, options and credentials of a submission."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from credential_factory import SECRET, write_proxy, write_token
from measurement_factory import make_campaign_row
from plan_factory import READING_TEST, make_grid_plan, make_grid_site
from submission_desk import SubmissionDesk, list_doors

from treehammer.collectors.worker.probes.proxy_certificates import ProxyDetails
from treehammer.errors import ConfigError
from treehammer.submit.campaigns.campaign_outcome import rerun_command
from treehammer.submit.cli.command_options import submission_click_options
from treehammer.submit.planning import cost_estimate, submission_options
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import (
    JobCredentials,
    Pace,
    SubmissionOptions,
    site_credentials,
)
from treehammer.submit.sites.site_model import Ceilings, Door
from treehammer.text_formatting import JobRamp, parse_duration


@pytest.fixture
def desk(tmp_path: Path) -> SubmissionDesk:
    return SubmissionDesk(tmp_path)


def test_unknown_site_cannot_be_included(desk: SubmissionDesk) -> None:
    with pytest.raises(ConfigError, match="the request has no site 'SITE_X'") as caught:
        desk.plan("SITE_X")
    assert "It has: SITE_A, SITE_B." in caught.value.hint


def test_doors_that_a_request_excludes_are_not_included(desk: SubmissionDesk) -> None:
    plan = desk.plan("all", excluded={"SITE_A:root": "probe only", "SITE_B:other": "probe only"})
    assert list_doors(plan) == ["SITE_A:https", "SITE_B:root"]
    assert plan.make_campaign_row().plan.excluded == {"SITE_A:root": "probe only"}


A, B, C = (make_grid_site(name=f"SITE_{letter}") for letter in "ABC")


def remote_plan(folder: Path, **changes: Any) -> Plan:
    """Plan jobs at A and C that read the storage of A and B; ``changes`` apply to B."""
    return make_grid_plan(folder, READING_TEST, A, B.replace(**changes), from_sites=(A, C))


def test_each_site_reads_each_storage_site(tmp_path: Path) -> None:
    plan = remote_plan(tmp_path)
    pairs = {(job.spec.site, job.spec.storage_site, job.spec.door_url) for job in plan.jobs}
    assert pairs == {
        (site, storage.name, storage.doors[0].prefix)
        for site in ("SITE_A", "SITE_C")
        for storage in (A, B)
    }
    assert [site.name for site in plan.sites] == ["SITE_A", "SITE_C"]
    assert len({job.spec.job_id for job in plan.jobs}) == len(plan.jobs)
    row = make_campaign_row(plan=plan.make_campaign_row().plan)
    assert "--sites SITE_A,SITE_B --from SITE_A,SITE_C" in rerun_command(row)
    for job in plan.jobs:
        (execution, *_) = job.spec.executions
        assert execution.identity["site"] == job.spec.site
        assert execution.identity["storage_site"] == job.spec.storage_site
        assert execution.files[0].url.startswith(job.spec.door_url)
    assert {(cluster.site.name, *cluster.doors) for cluster in plan.clusters} == {
        ("SITE_A", "root"),
        ("SITE_A", "SITE_B:root"),
        ("SITE_C", "SITE_A:root"),
        ("SITE_C", "SITE_B:root"),
    }


def test_traffic_counts_at_storage_and_jobs_at_reader(tmp_path: Path) -> None:
    def violations(plan: Plan) -> list[str]:
        costs = cost_estimate.estimate_site_costs(plan, {})
        return cost_estimate.list_ceiling_violations(plan, costs)

    limits = Ceilings(jobs=1, bytes_per_day=10**9)
    (traffic,) = violations(remote_plan(tmp_path, ceilings=limits))
    # 5 GB for each of two sites.
    assert "SITE_B allows at most 1 GB a day" in traffic
    assert "10 GB are planned" in traffic
    reader = C.replace(ceilings=Ceilings(jobs=9, bytes_per_day=10**9))
    (jobs,) = violations(make_grid_plan(tmp_path, READING_TEST, A, B, from_sites=(reader,)))
    assert "SITE_C allows at most 9 jobs in one campaign (ceilings.jobs); 10 are planned" in jobs


def test_rate_at_storage_sums_its_readers(tmp_path: Path) -> None:
    def violations(mb_per_s: float) -> list[str]:
        plan = remote_plan(tmp_path, ceilings=Ceilings(mb_per_s=mb_per_s))
        costs = cost_estimate.estimate_site_costs(plan, {})
        return cost_estimate.list_ceiling_violations(plan, costs)

    plan = make_grid_plan(tmp_path, READING_TEST, B)
    (cost,) = cost_estimate.estimate_site_costs(plan, {})
    one_reader = (cost.read_bytes or 0) / (cost.wall_s or 1) / 1e6
    # Jobs at two sites, each of which reads two storage sites in turn at two jobs at a time.
    assert violations(0.99 * 2 * one_reader)
    assert not violations(1.01 * 2 * one_reader)


def test_remote_jobs_avoid_paths_by_default(tmp_path: Path) -> None:
    doors = (Door(name="disk", protocol="file", prefix="/disk"), *B.doors)
    plan = remote_plan(tmp_path, doors=doors)
    assert {job.spec.door for job in plan.jobs} == {"root"}
    assert not plan.notes
    (job, *_) = make_grid_plan(tmp_path, READING_TEST, B.replace(doors=doors)).jobs
    assert job.spec.door == "disk"
    notes = remote_plan(tmp_path, doors=doors[:1]).notes
    assert len(notes) == 2
    assert "Door disk of site SITE_B is a path, which the nodes of site SITE_A" in notes[0]


def _typed(*arguments: str, **env: str) -> SubmissionOptions:
    parsed: list[SubmissionOptions] = []

    @click.command()
    @submission_click_options
    def command(options: Any) -> None:
        parsed.append(options)

    CliRunner().invoke(command, arguments, env=env, standalone_mode=False, catch_exceptions=False)
    return parsed[0]


def test_options_are_parsed(tmp_path: Path) -> None:
    assert _typed() == SubmissionOptions()
    typed = _typed(
        *("--in-flight", "9", "--spread", "24h", "--ramp", "3/10m", "--include-excluded", "A, B"),
        *("--proxy", str(tmp_path / "p")),
        BEARER_TOKEN_FILE=str(tmp_path / "t"),
    )
    assert typed.pace == Pace(9, 86400, JobRamp(3, 600))
    assert typed.include_excluded == ("A", "B")
    assert typed.credentials == JobCredentials(tmp_path / "p", tmp_path / "t")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--in-flight", "0"), "--in-flight 0: must be at least 1"),
        (("--ramp", "3/10m"), "--in-flight N"),
        (("--spread", "soon"), "--spread: 'soon' is not a duration"),
    ],
)
def test_invalid_option_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _typed(*arguments)
    assert message in str(caught.value)


def test_durations_and_ramps_are_parsed() -> None:
    durations = {"90s": 90, " 2 m": 120, "24h": 86400, "2d": 172800}
    assert {text: parse_duration(text, "--spread") for text in durations} == durations
    for text in ("", "24", "h", "-1h", "0h", "1.5h", "24 hours", "36501d"):
        with pytest.raises(ConfigError, match=r"--spread.*not a duration\n.* up to 36500d"):
            parse_duration(text, "--spread")
    assert JobRamp.parse("5/10m", "--ramp") == JobRamp(5, 600)
    for text in ("5", "0/1m", "x/1m", "5/", "5/0s", "/5m"):
        with pytest.raises(ConfigError, match="--ramp"):
            JobRamp.parse(text, "--ramp")


@pytest.mark.parametrize(
    "pace, in_flight, expected",
    [
        (Pace(), 1, [0, 0, 0, 0, 0, 0]),
        (Pace(spread_s=60), 1, [0, 10, 20, 30, 40, 50]),
        (Pace(ramp=JobRamp(2, 60)), 6, [0, 0, 60, 60, 120, 120]),
        (Pace(ramp=JobRamp(2, 60)), 3, [0, 0, 60, 60, 60, 60]),
        (Pace(spread_s=60, ramp=JobRamp(1, 100)), 2, [0, 110, 120, 130, 140, 150]),
    ],
)
def test_delay_expression_evaluates_in_htcondor(
    pace: Pace, in_flight: int, expected: list[int]
) -> None:
    os.environ.setdefault("CONDOR_CONFIG", "/dev/null")
    import classad2

    delay = classad2.ExprTree(pace.delay_expression(6, in_flight))
    delays = [delay.eval(classad2.ClassAd({"ProcId": number})) for number in range(6)]
    assert delays == expected


NOW = float(int(time.time()))


def test_credentials_valid_until_end_are_accepted(tmp_path: Path) -> None:
    both = JobCredentials(
        write_proxy(tmp_path / "p", NOW + 100), write_token(tmp_path / "t", NOW + 200)
    )
    both.check_validity(NOW, NOW + 99)
    both.check_validity(NOW, None)
    JobCredentials().check_validity(NOW, NOW + 10**9)
    assert both.sandbox_inputs() == {
        "x509-proxy.pem": tmp_path / "p",
        "storage-token": tmp_path / "t",
    }
    assert SECRET not in str(both.environment())


@pytest.mark.parametrize(
    "left, message", [(-1, "expired at 20"), (50, "expires at .* expected to end at")]
)
@pytest.mark.parametrize("make", [write_proxy, write_token])
def test_expiring_credential_is_refused(
    tmp_path: Path, make: object, left: int, message: str
) -> None:
    assert callable(make)
    path = make(tmp_path / "c", NOW + left)
    credentials = JobCredentials(path) if make is write_proxy else JobCredentials(token=path)
    with pytest.raises(ConfigError, match=message) as caught:
        credentials.check_validity(NOW, NOW + 100)
    assert str(path) in str(caught.value)
    assert ("--proxy" in str(caught.value)) is (make is write_proxy)
    assert SECRET not in str(caught.value)


def test_unreadable_credential_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        JobCredentials(tmp_path / "none").check_validity(NOW, None)
    (tmp_path / "p").write_text(SECRET)
    with pytest.raises(ConfigError, match="contains no certificate") as caught:
        JobCredentials(tmp_path / "p").check_validity(NOW, None)
    assert SECRET not in str(caught.value)


def test_s3_keys_travel_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"[default]\naws_access_key_id = key\naws_secret_access_key = {SECRET}\n")
    credentials = JobCredentials(s3=path)
    credentials.check_validity(NOW, NOW + 10**9)
    assert credentials.sandbox_inputs() == {"s3-credentials": path}
    assert credentials.environment() == {"AWS_SHARED_CREDENTIALS_FILE": "s3-credentials"}
    path.write_text(SECRET)
    with pytest.raises(ConfigError, match=r"--s3-credentials .* no file of sections") as caught:
        credentials.check_validity(NOW, None)
    assert SECRET not in str(caught.value)


def test_site_commands_name_credentials() -> None:
    credentials = site_credentials({"X509UserProxy": "/my/proxy", "scitokens_file": "/my/token"})
    assert credentials == JobCredentials(Path("/my/proxy"), Path("/my/token"))
    assert site_credentials({"accounting_group": "x"}) == JobCredentials()


@pytest.mark.parametrize(
    ("left", "message"),
    [(-1, "its VOMS attributes expired at"), (50, "its VOMS attributes expire at")],
)
def test_voms_attributes_that_end_first_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, message: str
) -> None:
    proxy = ProxyDetails("/CN=me", NOW + 200, ("/vo",), NOW + left)
    monkeypatch.setattr(submission_options, "read_proxy", lambda path: proxy)
    with pytest.raises(ConfigError, match=message):
        JobCredentials(tmp_path / "p").check_validity(NOW, NOW + 100)
    JobCredentials(tmp_path / "p").check_validity(NOW - 100, NOW - 50)
