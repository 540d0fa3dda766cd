"""Selection of sites by name and label, and opening of their batch systems."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from plan_factory import make_settings

from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode, SitesError, TreehammerError
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.write.store import Store
from treehammer.submit.cli.campaign_commands import cancel, collect, purge, status
from treehammer.submit.sites.site_registry import load_sites, open_batch_system, select_sites

FILE = """
[pools.grid]
config = "condor_config"
[sites.NEAR]
pool = "grid"
labels = ["near", "eu"]
doors = [{ name = "root", protocol = "root", prefix = "root://h//d" }]
[sites.FAR]
pool = "grid"
labels = ["us"]
doors = [{ name = "root", protocol = "root", prefix = "root://far//d" }]
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    path = tmp_path / "sites.toml"
    path.write_text(FILE, encoding="utf-8")
    return dataclasses.replace(make_settings(tmp_path), sites_file=path)


def chosen(settings: Settings, *names: str) -> list[str]:
    return [site.name for site in select_sites(names, settings)]


def test_local_site_is_always_present(settings: Settings, tmp_path: Path) -> None:
    assert list(load_sites(settings)) == ["local", "NEAR", "FAR"]
    assert list(load_sites(make_settings(tmp_path))) == ["local"]


def test_sites_are_selected_by_name_label_and_all(settings: Settings, tmp_path: Path) -> None:
    assert chosen(settings, "FAR", "local", "FAR") == ["FAR", "local"]
    assert chosen(settings, "label:eu", "label:near") == ["NEAR"]
    assert chosen(settings, "all") == ["NEAR", "FAR"]
    assert chosen(settings, "local", "all") == ["local", "NEAR", "FAR"]
    assert chosen(make_settings(tmp_path), "all") == ["local"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NAER", ("unknown site 'NAER'", "Did you mean 'NEAR'?", "Known: local, NEAR, FAR")),
        ("label:nearby", ("unknown label 'nearby'", "Did you mean 'label:near'?")),
        ("eu", ("unknown site 'eu'", "label:eu")),
        ("al", ("Did you mean 'all'?",)),
    ],
)
def test_unknown_site_error_suggests_a_name(
    settings: Settings, name: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(settings, name)
    for word in words:
        assert word in str(caught.value)


def test_unknown_site_error_mentions_missing_sites_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--sites-file"):
        chosen(make_settings(tmp_path), "NEAR")


def test_invalid_sites_file_is_refused(settings: Settings) -> None:
    assert settings.sites_file
    settings.sites_file.write_text("[sites.A]\n", encoding="utf-8")
    with pytest.raises(SitesError, match=r"sites\.A\.doors: is missing"):
        select_sites(["local"], settings)


def test_local_batch_system_needs_no_sites_file(settings: Settings) -> None:
    assert settings.sites_file
    settings.sites_file.unlink()
    assert open_batch_system("local", settings).name == "local"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("htcondor@grit", ("unknown pool 'grit'", "Did you mean 'grid'?", "left unchanged")),
        ("htcondor@grid", ("pools.grid.config", "condor_config")),
        ("slurm", ("unknown batch system 'slurm'",)),
    ],
)
def test_unknown_batch_system_is_refused(
    settings: Settings, name: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        open_batch_system(name, settings)
    assert caught.value.exit_code == ExitCode.USAGE
    for word in words:
        assert word in str(caught.value)


def test_pool_without_sites_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no sites file defines pool 'grid'"):
        open_batch_system("htcondor@grid", make_settings(tmp_path))


def test_local_batch_system_does_not_load_htcondor() -> None:
    code = (
        "import sys; from treehammer import config; "
        "from treehammer.submit.sites import site_registry; "
        "site_registry.open_batch_system('local', config.load_settings({}, environ={})); "
        "print([name for name in sys.modules if name in ('htcondor2', 'classad2')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.fixture
def campaign(settings: Settings) -> Settings:
    """A campaign with jobs in a pool missing from the sites file, and a finished one."""
    with Store.open(settings.database) as store:
        jobs = [
            make_job_row(
                "a", site="NEAR", batch_system="htcondor@gone", batch_id="1.0", state="running"
            ),
            make_job_row("b", site="NEAR", batch_system="htcondor@gone"),
        ]
        store.add_campaign(make_campaign_row(planned_jobs=2), jobs)
        store.add_campaign(make_campaign_row("other"), [make_job_row("c", campaign_id="other")])
    return settings


@pytest.mark.parametrize("verb", [status, collect, cancel])
def test_jobs_of_unknown_pool_are_unchanged(campaign: Settings, verb: click.Command) -> None:
    with pytest.raises(ConfigError, match="unknown pool 'gone'") as caught:
        CliRunner().invoke(
            verb, ["campaign"], obj=campaign, standalone_mode=False, catch_exceptions=False
        )
    assert caught.value.exit_code == ExitCode.USAGE
    with Store.open(campaign.database) as store:
        assert [(job.id, job.state) for job in store.jobs("campaign")] == [
            ("a", "running"),
            ("b", "queued"),
        ]
        assert store.attempts(["a", "b"]) == []


@pytest.fixture
def imported(tmp_path: Path) -> Settings:
    """A campaign imported from another installation, whose pool is unknown here."""
    settings = make_settings(tmp_path)
    over = {"batch_system": "htcondor@theirs", "batch_id": "1.0"}
    with Store.open(settings.database) as store:
        never_queued = make_job_row("c", state="lost", **{**over, "batch_id": ""})
        jobs = [
            make_job_row("a", state="done", **over),
            make_job_row("b", state="lost", **over),
            never_queued,
        ]
        store.add_campaign(make_campaign_row(planned_jobs=2), jobs)
        store.set_attempts(
            AttemptRow(job, number, "lost", 5, 9, None, "lost", "gone")
            for job, number in (("a", 1), ("a", 2), ("b", 1))
        )
        store.add([make_measurement(job="a"), make_measurement(job="b")])
    return settings


@pytest.mark.parametrize(
    ("verb", "code", "says"),
    [
        (status, ExitCode.DONE, "name of campaign"),
        (collect, ExitCode.DONE, "0 new measurements, 0 known"),
        (cancel, ExitCode.NOTHING, "all jobs have ended already"),
        (purge, ExitCode.NOTHING, "nothing to remove"),
    ],
)
def test_imported_campaign_needs_no_sites_file(
    imported: Settings, verb: click.Command, code: ExitCode, says: str
) -> None:
    done = CliRunner().invoke(verb, ["campaign"], obj=imported)
    error = done.exception if isinstance(done.exception, TreehammerError) else None
    assert (error.exit_code if error else done.exit_code) == code, done.exception
    assert says in f"{done.output}{error or ''}"
    # A user who submitted it from here learns which sites file is missing.
    remark = "no sites file defines pool 'theirs': the output of its jobs is not read"
    assert (remark in done.stderr) == (verb is not cancel)


def test_status_lists_campaigns_beside_one_of_unknown_pool(campaign: Settings) -> None:
    done = CliRunner().invoke(status, ["--json"], obj=campaign, catch_exceptions=False)
    assert done.exit_code == 0
    assert {row["id"] for row in json.loads(done.stdout)} == {"campaign", "other"}
    assert "campaign may have changed since the last status" in done.stderr
