"""Submit descriptions of clusters: exact, shared by their jobs, and checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from plan_factory import READING_TEST, SHELL_TEST, make_grid_plan, make_grid_site, make_local_plan

from treehammer.errors import ConfigError
from treehammer.submit.campaigns import job_rendering
from treehammer.submit.campaigns.job_rendering import render_jobs
from treehammer.submit.planning.plan import Plan, plan_clusters
from treehammer.submit.planning.submission_options import JobCredentials, Pace, SubmissionOptions
from treehammer.submit.sites.site_model import Ceilings
from treehammer.submit.templates import template_engine
from treehammer.text_formatting import JobRamp

GOLDEN = Path(__file__).with_name("golden")


@pytest.fixture(autouse=True)
def _someone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_rendering, "submitter_contact", lambda: "someone@host.example")


def _texts(plan: Plan, folder: Path) -> list[str]:
    folder.mkdir()
    return list(dict.fromkeys(item.text for item in render_jobs(plan, folder, environ={})))


#: Golden file -> grid resource.
REMOTE = {
    "grid": "condor schedd@far collector.far",
    "arc": "arc https://ce.far.example/arex/rest/1.0",
}


@pytest.mark.parametrize("universe", ["vanilla", *REMOTE])
def test_description_equals_golden_file(tmp_path: Path, universe: str) -> None:
    """Changes of the template require a change of the golden file."""
    options = SubmissionOptions(
        Pace(4, 3600, JobRamp(2, 60)), credentials=JobCredentials(Path("/p"), Path("/t"))
    )
    site = make_grid_site(cvmfs="/my/cvmfs", submit={"accounting_group": "group_io"})
    if universe in REMOTE:
        options, site = SubmissionOptions(), replace(site, grid_resource=REMOTE[universe])
    plan = replace(
        make_grid_plan(tmp_path / "test", READING_TEST, site, options=options), campaign_name="C"
    )
    (text,) = _texts(plan, tmp_path / "out")
    assert text == (GOLDEN / f"{universe}.sub").read_text(encoding="utf-8")


def test_jobs_of_a_door_share_description_and_files(tmp_path: Path) -> None:
    text = READING_TEST.replace("[matrix]", '[matrix]\ndoor = ["root", "other"]')
    plan = make_grid_plan(
        tmp_path / "test", text, make_grid_site("root", "other"), make_grid_site(name="SITE_B")
    )
    (tmp_path / "out").mkdir()
    found = list(render_jobs(plan, tmp_path / "out", environ={"SECRET": "s3cret"}))
    assert len({item.text for item in found}) == 3, "two doors of one site, one of the other"
    assert len(found) == len(plan.jobs)
    assert len({item.inputs["job.json"] for item in found}) == len(found)
    assert len({item.inputs["worker.pyz"] for item in found}) == 1
    assert not any("s3cret" in item.text for item in found)


def test_hostile_campaign_name_stays_a_value(tmp_path: Path) -> None:
    hostile = 'a"b\nqueue 7\n$(x) $$(y) \\'
    plan = replace(
        make_grid_plan(
            tmp_path / "test", SHELL_TEST.replace("[matrix]", '[matrix]\nroot=["none"]')
        ),
        campaign_name=hostile,
    )
    (text,) = _texts(plan, tmp_path / "out")
    assert not any(line.startswith("queue") for line in text.splitlines())
    assert "$(x)" not in text.split("universe")[1]
    assert "$$(y)" not in text.split("universe")[1]


def test_paired_mode_requests_memory_for_two_processes(tmp_path: Path) -> None:
    text = READING_TEST.replace("[matrix]", 'mode = "paired"\n[matrix]')
    assert "request_memory = 3000 MB" in "".join(
        _texts(make_grid_plan(tmp_path, text), tmp_path / "out")
    )
    small = text.replace("[matrix]", "memory_limit_mb = 700\n[matrix]")
    plan = make_grid_plan(tmp_path / "small", small)
    assert "request_memory = 1400 MB" in "".join(_texts(plan, tmp_path / "out2"))


def test_site_template_extends_shipped_one(tmp_path: Path) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / template_engine.HTCONDOR_TEMPLATE).write_text(
        '{% extends "shipped/htcondor.sub.j2" %}\n'
        '{% block resources %}\n{{ super() }}\nrequest_cpus = 2\n+JobFlavour = "long"\n{% endblock %}\n'
    )
    plan = make_grid_plan(tmp_path / "test", READING_TEST, make_grid_site(templates=folder))
    (text,) = _texts(plan, tmp_path / "out")
    assert '+JobFlavour = "long"' in text
    assert "request_memory = 2000 MB" in text


@pytest.mark.parametrize(
    "text, message",
    [
        ("reqest_cpus = 1\n", "no submit command 'reqest_cpus'\n.*'request_cpus'"),
        ("request_cpus = {{ cores }}\n", "'cores' is undefined.*SITE_A"),
        ("{% if %}", "htcondor.sub.j2:1"),
        ('{% extends "shipped/other.j2" %}', "shipped/other.j2: template not found"),
        (None, r"htcondor\.sub\.j2: template not found"),
    ],
)
def test_invalid_site_template_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / template_engine.HTCONDOR_TEMPLATE).write_text(text)
    plan = make_grid_plan(tmp_path / "test", READING_TEST, make_grid_site(templates=tmp_path))
    with pytest.raises(ConfigError, match=message):
        _texts(plan, tmp_path / "out")


def test_unknown_site_command_is_refused(tmp_path: Path) -> None:
    plan = make_grid_plan(
        tmp_path / "test", READING_TEST, make_grid_site(submit={"acounting_group": "x"})
    )
    with pytest.raises(ConfigError, match=r"site SITE_A: submit.*acounting_group"):
        _texts(plan, tmp_path / "out")


@pytest.mark.parametrize(
    "requested, ceiling, expected",
    [(1, 0, {1}), (8, 0, {8}), (8, 6, {3}), (8, 2, {1}), (8, 1, {1}), (1, 50, {1})],
)
def test_cluster_concurrency_respects_ceiling(
    tmp_path: Path, requested: int, ceiling: int, expected: set[int]
) -> None:
    text = READING_TEST.replace("[matrix]", '[matrix]\ndoor = ["root", "other"]')
    site = make_grid_site("root", "other", ceilings=Ceilings(in_flight=ceiling))
    plan = make_grid_plan(tmp_path / "test", text, site, options=SubmissionOptions(Pace(requested)))
    clusters = plan_clusters(plan)
    assert {item.in_flight for item in clusters} == expected
    assert sum(item.in_flight for item in clusters) <= (ceiling or 99)
    assert sum(item.jobs for item in clusters) == len(plan.jobs)


def test_staged_files_increase_disk_request(tmp_path: Path) -> None:
    direct = make_grid_plan(tmp_path / "a", READING_TEST)
    staged = make_grid_plan(
        tmp_path / "b", READING_TEST.replace("[matrix]", '[matrix]\naccess = ["direct", "staged"]')
    )
    (one,), (other,) = map(plan_clusters, (direct, staged))
    assert other.disk_bytes - one.disk_bytes == 100_000_000


def test_mixed_plan_renders_local_and_grid_jobs(tmp_path: Path) -> None:
    text = SHELL_TEST.replace("[matrix]", '[matrix]\nroot = ["none"]')
    here, there = make_local_plan(tmp_path / "a", text).sites[0], make_grid_site()
    plan = make_grid_plan(tmp_path / "b", text, here, there)
    (tmp_path / "out").mkdir()
    kinds = {item.text.splitlines()[2] for item in render_jobs(plan, tmp_path / "out", environ={})}
    assert kinds == {"[job]", "universe = vanilla"}
