"""The sites file, and the sites and doors that a request selects."""

from __future__ import annotations

import json
import os
import time
import tomllib
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from click.testing import CliRunner
from credential_factory import SECRET, write_proxy, write_token
from measurement_factory import make_campaign_row
from plan_factory import READING_TEST, make_grid_plan, make_grid_site
from submission_desk import SubmissionDesk, list_doors

from treehammer import submit
from treehammer.collectors.http_requests import TOKEN_POOLS_VARIABLE
from treehammer.collectors.worker.probes.proxy_certificates import ProxyDetails
from treehammer.errors import ConfigError, SitesError
from treehammer.submit.batch.htcondor.pool import HTCondorPool
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
from treehammer.submit.sites import site_model, sites_file
from treehammer.submit.sites.site_model import (
    Ceilings,
    Door,
    DoorCache,
    Site,
    SitesDocument,
    token_pool_environment,
)
from treehammer.text_formatting import JobRamp, parse_duration


@pytest.fixture
def desk(tmp_path: Path) -> SubmissionDesk:
    return SubmissionDesk(tmp_path)


def test_sites_and_doors_outside_a_request_are_not_included(desk: SubmissionDesk) -> None:
    with pytest.raises(ConfigError, match="the request has no site 'SITE_X'") as caught:
        desk.plan("SITE_X")
    assert "It has: SITE_A, SITE_B." in caught.value.hint
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


PUBLISHED = Path(submit.__file__).parent / "sites" / "sites.schema.json"

EVERYTHING = r"""
[pools.testbed]
config = "condor_config"
collector = "127.0.0.1:9618"
schedd = "schedd@host"
token_dir = "~/tokens"
submit_dir = "/submit"
[pools.default]
[sites.SITE_A]
pool = "testbed"
requirements = 'TARGET.GLIDEIN_Site == "SITE_A"'
storage = "XRootD"
cvmfs = "/path/cvmfs"
python = "/usr/bin/python3.9"
python_views = ["LCG_106/x86_64-el9-gcc13-opt"]
labels = ["near"]
software = { "*" = "cvmfs:ROOT/{version}/x86_64-debian12-gcc12-opt" }
submit = { accounting_group = "group_io", request_gpus = 1, "+WantX" = true }
environment = { https_proxy = "http://squid.example.org:3128" }
templates = "templates"
ceilings = { jobs = 1000, in_flight = 50, bytes_per_day = "10 TB", mb_per_s = 100 }
[[sites.SITE_A.doors]]
name = "root"
protocol = "root"
prefix = "root://127.0.0.1:1094//store/treehammer/"
middleware = "XRootD"
version = "5.8.1"
[[sites.SITE_A.doors]]
name = "https"
protocol = "https"
prefix = "https://127.0.0.1:1095/store"
token_pools = ["pool*.example.org", "[::1]:1"]
[[sites.SITE_A.doors]]
name = "rucio"
protocol = "root"
rse = "A_DISK"
cache = {}
[[sites.SITE_A.doors]]
name = "pinned"
protocol = "root"
rse = "A_DISK"
prefix = "root://r//store/A/"
cache = { evict = "rm -f /c{path}", files = "/c", monitor = "[::1]:9931" }
[sites.DESK]
doors = [{ name = "file", protocol = "file", prefix = "data" }]
[sites.HPC]
doors = [{ name = "file", protocol = "file", prefix = '/a "b" \ü' }]
"""


def read(folder: Path, text: str) -> SitesDocument:
    path = folder / "sites.toml"
    path.write_text(text, encoding="utf-8")
    return sites_file.read_sites_file(path)


def test_complete_file_is_parsed_and_written(tmp_path: Path) -> None:
    sites = read(tmp_path, EVERYTHING)
    assert sites.pools["testbed"] == HTCondorPool(
        name="testbed",
        config=tmp_path / "condor_config",
        collector="127.0.0.1:9618",
        schedd="schedd@host",
        token_dir=Path.home() / "tokens",
        submit_dir=Path("/submit"),
    )
    assert sites.pools["default"] == HTCondorPool(name="default")
    assert sites.sites["SITE_A"] == Site(
        name="SITE_A",
        batch="htcondor@testbed",
        doors=(
            Door(
                name="root",
                protocol="root",
                prefix="root://127.0.0.1:1094//store/treehammer",
                middleware="XRootD",
                version="5.8.1",
            ),
            Door(
                name="https",
                protocol="https",
                prefix="https://127.0.0.1:1095/store",
                token_pools=("pool*.example.org", "[::1]:1"),
            ),
            Door(name="rucio", protocol="root", rse="A_DISK", cache=DoorCache()),
            Door(
                name="pinned",
                protocol="root",
                rse="A_DISK",
                prefix="root://r//store/A",
                cache=DoorCache(evict="rm -f /c{path}", files="/c", monitor="[::1]:9931"),
            ),
        ),
        ceilings=Ceilings(
            jobs=1000, in_flight=50, bytes_per_day=10_000_000_000_000, mb_per_s=100.0
        ),
        storage="XRootD",
        requirements='TARGET.GLIDEIN_Site == "SITE_A"',
        software={"*": "cvmfs:ROOT/{version}/x86_64-debian12-gcc12-opt"},
        cvmfs="/path/cvmfs",
        python="/usr/bin/python3.9",
        python_views=("LCG_106/x86_64-el9-gcc13-opt",),
        templates=tmp_path / "templates",
        submit={"accounting_group": "group_io", "request_gpus": "1", "+WantX": "true"},
        environment={"https_proxy": "http://squid.example.org:3128"},
        labels=("near",),
    )
    desk = sites.sites["DESK"]
    assert (desk.batch, desk.doors[0].prefix) == ("local", str(tmp_path / "data"))
    pools = token_pool_environment(sites.sites["SITE_A"].doors)
    assert pools == {TOKEN_POOLS_VARIABLE: "127.0.0.1:1095=pool*.example.org,[::1]:1"}
    copy = tmp_path / "copy.toml"
    sites_file.write_sites_file(sites.sites.values(), sites.pools.values(), copy)
    assert sites_file.read_sites_file(copy) == sites


@pytest.mark.parametrize(
    ("protocol", "prefix", "url"),
    [
        ("root", "root://h:1//a/", "root://h:1//a/set/f.root"),
        ("root", "root://u@h", "root://u@h//set/f.root"),
        ("root", "root://h//", "root://h//set/f.root"),
        ("https", "https://h/", "https://h/set/f.root"),
        ("file", "/a/", "/a/set/f.root"),
    ],
)
def test_door_builds_file_url(tmp_path: Path, protocol: str, prefix: str, url: str) -> None:
    text = f"[sites.A]\ndoors = [{{name = 'd', protocol = '{protocol}', prefix = '{prefix}'}}]\n"
    assert read(tmp_path, text).sites["A"].doors[0].file_url("set", "f.root") == url


@pytest.mark.parametrize("content", [b"\xff", None])
def test_unreadable_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "sites.toml"
    if content:
        path.write_bytes(content)
    with pytest.raises(SitesError, match=r"sites\.toml"):
        sites_file.read_sites_file(path)


def test_published_schema_matches_models() -> None:
    published = json.loads(PUBLISHED.read_text())
    assert published == site_model.build_json_schema(), (
        "run: treehammer sites schema > submit/sites/sites.schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(published)
    jsonschema.validate(tomllib.loads(EVERYTHING), published)


@pytest.mark.parametrize(
    "text",
    [
        "[sitez.A]\n",
        "[sites.A]\n",
        "[sites.A]\ndoors = []\n",
        "[sites.A]\ndoors = [{name = 'd', protocol = 'dav', prefix = '/'}]\n",
        "[pools.p]\nspool = 1\n",
    ],
)
def test_schema_rejects_invalid_documents(tmp_path: Path, text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), site_model.build_json_schema())
    with pytest.raises(SitesError):
        read(tmp_path, text)


def test_local_batch_system_may_be_named(tmp_path: Path) -> None:
    door = 'name = "file"\nprotocol = "file"\nprefix = "/data"\n'
    text = f'[sites.HERE]\nbatch = "local"\n[[sites.HERE.doors]]\n{door}'
    (site,) = read(tmp_path, text).sites.values()
    assert site.is_local


def test_invalid_site_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    with pytest.raises(SitesError, match="reserved for this machine"):
        sites_file.write_sites_file(
            [
                Site(
                    name="local",
                    batch="local",
                    doors=(Door(name="f", protocol="file", prefix="/"),),
                )
            ],
            [],
            path,
        )
    assert not path.exists()
