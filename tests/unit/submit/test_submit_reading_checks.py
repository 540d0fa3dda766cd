"""Doors that a release cannot read, and software that no node has, known before a job is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_factory import SHELL_TEST
from repository_code import invoke_command

from treehammer.config import load_settings
from treehammer.errors import ConfigError, DefinitionError
from treehammer.submit.campaigns import campaign_request
from treehammer.submit.campaigns.campaign_request import plan_request
from treehammer.submit.planning import reading_checks
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import CampaignRequest

SITES = """
[sites.BOTH]
ceilings = {jobs = 3}
doors = [{name = "http", protocol = "http", prefix = "http://a.example/d", load = {opens_per_s = 1e6, clients = 1000}},
         {name = "root", protocol = "root", prefix = "root://a.example//d"},
         {name = "disk", protocol = "file", prefix = "/d"}]
[sites.WEB]
doors = [{name = "http", protocol = "http", prefix = "http://b.example/d"}]
"""
LOAD = "\n[load]\nduration_s = 1\nceiling = {opens_per_s = 1, clients = 1}\n"


def plan(folder: Path, text: str, payload: str = "run.sh", site: str = "BOTH") -> Plan:
    """Plan a test of a text, whose payload has the content of the file in the folder."""
    test = folder / "test"
    test.mkdir(exist_ok=True)
    (test / "test.toml").write_text(text.replace("run.sh", payload))
    for name in ("run.sh", "read.py"):
        (test / name).touch()
        (test / name).chmod(0o755)
    (folder / "sites.toml").write_text(SITES)
    flags = {"data_dir": folder, "cache_dir": folder, "sites_file": folder / "sites.toml"}
    settings = load_settings(flags, environ={}, folder=folder)
    return plan_request(CampaignRequest(str(test), sites=(site,)), settings, bars=None)


def with_matrix(lines: str) -> str:
    return SHELL_TEST.replace("[matrix]", f"[matrix]\n{lines}\n")


@pytest.mark.parametrize(
    ("matrix", "site", "door", "note"),
    [
        ('root = ["6.38.00"]', "BOTH", "http", ""),
        (
            'root = ["6.38.00", "6.40.00"]',
            "BOTH",
            "root",
            "Door http of site BOTH is passed over for door root: ROOT 6.40.00 from PyPI: no class "
            "that reads HTTP.",
        ),
        ('root = ["6.40.00"]\naccess = ["staged"]', "BOTH", "http", ""),
        ('root = ["none"]\naccess = ["staged"]', "BOTH", "http", ""),
        (
            'root = ["6.40.00"]\ndoor = ["http"]',
            "BOTH",
            "http",
            "Door http of site BOTH: ROOT 6.40",
        ),
        ('root = ["6.40.00"]', "WEB", "http", "Door http of site WEB: ROOT 6.40.00 from PyPI"),
        (
            'root = ["none"]\naccess = ["staged"]\ndoor = ["root"]',
            "BOTH",
            "root",
            "no XRootD client",
        ),
    ],
)
def test_the_first_door_that_all_releases_read_is_taken(
    tmp_path: Path, matrix: str, site: str, door: str, note: str
) -> None:
    planned = plan(tmp_path, with_matrix(matrix), site=site)
    assert {job.access.door.name for job in planned.jobs} == {door}
    notes = [line for line in planned.notes if line.startswith("Door ")]
    assert len(notes) == bool(note)
    assert note in "".join(notes)


@pytest.mark.parametrize(
    ("matrix", "payload", "message"),
    [
        ('root = ["none"]', "treehammer_kit.run('')", "no ROOT"),
        ('root = ["xrootd:6.2.1", "6.40.00"]', "columns.run_dataframe()", "no ROOT"),
        ('root = ["none"]', "columns.run_uproot()", ""),
        ('root = ["pypi:uproot==5.7.6"]', "columns.run_dataframe()", ""),
        ('root = ["pypi:uproot==5.7.6"]', "columns.run_dataframe(CODE)", "no ROOT"),
        ('root = ["6.40.00"]', "treehammer_kit.run('')", ""),
        ('root = ["none"]\ndoor = ["http"]', "treehammer_load.run(x)", "no client of http://"),
        ('root = ["none"]\ndoor = ["root"]', "treehammer_load.run(x)", "no client of root://"),
        ('root = ["none"]\ndoor = ["disk"]', "treehammer_load.run(x)", ""),
        ('root = ["none"]\ndoor = ["http"]', "treehammer_load.run_log_parser()", ""),
        ('root = ["xrootd:6.2.1"]\ndoor = ["http"]', "treehammer_load.run(x)", ""),
    ],
)
def test_software_that_no_node_has_is_refused(
    tmp_path: Path, matrix: str, payload: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_checks, "find_spec", lambda _: None)
    monkeypatch.setattr(campaign_request, "has_vertical", lambda _: True)
    text = with_matrix(matrix) + (LOAD if "load" in payload else "")
    (tmp_path / "test").mkdir()
    (tmp_path / "test/read.py").write_text(payload)
    if not message:
        assert [*plan(tmp_path, text, "read.py").jobs]
        return
    with pytest.raises(DefinitionError, match=message) as caught:
        plan(tmp_path, text, "read.py")
    assert "-P root=" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        (SHELL_TEST + LOAD, "load/"),
        ('[test]\nname = "x"\npayload = "any"\n[settings]\ncommand = "true"\n', "tracer/"),
    ],
)
def test_test_is_refused_without_its_vertical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, folder: str
) -> None:
    monkeypatch.setattr(campaign_request, "has_vertical", lambda _: False)
    with pytest.raises(DefinitionError, match=f"does not perform it: it lacks the folder {folder}"):
        plan(tmp_path, text)


def test_software_of_this_machine_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_checks, "find_spec", lambda name: name)
    (tmp_path / "test").mkdir()
    (tmp_path / "test/read.py").write_text("treehammer_kit.run('')")
    assert [*plan(tmp_path, with_matrix('root = ["none"]'), "read.py").jobs]


def test_a_refused_dry_run_fails(tmp_path: Path) -> None:
    plan(tmp_path, with_matrix('root = ["none"]\nevents = [0.1, 0.2, 0.3, 0.4]'))
    flags = {"data_dir": tmp_path, "cache_dir": tmp_path, "sites_file": tmp_path / "sites.toml"}
    settings = load_settings(flags, environ={}, folder=tmp_path)
    words = (str(tmp_path / "test"), "--sites", "BOTH", "--dry-run")
    done = invoke_command("submit", settings, *words)
    assert isinstance(done.exception, ConfigError)
    assert "BOTH allows at most 3 jobs in one campaign" in done.exception.hint
    assert "shell" in done.stdout, "the plan is printed nevertheless"
    (tmp_path / "sites.toml").write_text(SITES.replace("ceilings = {jobs = 3}", 'templates = "."'))
    done = invoke_command("submit", settings, *words)
    assert isinstance(done.exception, ConfigError)
    assert done.exception.message == "template local.job.j2 not found"
