"""Sites that submissions leave out by their states."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from cli_verbs import find_command
from click.testing import CliRunner, Result
from plan_factory import SHELL_TEST

from treehammer.config import load_settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_request import CampaignRequest, plan_request
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import SubmissionOptions

SITES_TOML = """
[pools.pool]
[sites.SITE_A]
pool = "pool"
doors = [{name = "root", protocol = "root", prefix = "root://a.example//data"},
         {name = "https", protocol = "https", prefix = "https://a.example/data"}]
[sites.SITE_B]
pool = "pool"
doors = [{name = "root", protocol = "root", prefix = "root://b.example//data"}]
"""
TEST = SHELL_TEST.replace("[matrix]", '[matrix]\nroot = ["none"]')


class Desk:
    """Folder of a user with two sites."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sites.toml").write_text(SITES_TOML)
        (folder / "test").mkdir()
        (folder / "test" / "test.toml").write_text(TEST)
        (folder / "test" / "run.sh").write_text("#!/bin/sh\n")
        (folder / "test" / "run.sh").chmod(0o755)
        flags = {"data_dir": folder, "cache_dir": folder, "sites_file": folder / "sites.toml"}
        self.settings = load_settings(flags, environ={}, folder=folder)
        Store.open(self.settings.database).close()

    def run(self, command: str, *arguments: str) -> Result:
        runner = CliRunner()
        return runner.invoke(find_command(command), arguments, obj=self.settings)

    def announce_downtime(self, site: str) -> None:
        now = round(time.time())
        entry = {"site": site, "start": now - 60, "end": now + 3600, "description": "power cut"}
        (self.folder / "downtimes.json").write_text(json.dumps([entry]))
        done = self.run("sites", "downtimes", "import", str(self.folder / "downtimes.json"))
        assert done.exit_code == 0, done.output

    def override(self, site: str, state: str = "critical", *options: str) -> None:
        arguments = ("override", site, state, "--why", "disk burns", "--until", "1h", *options)
        done = self.run("sites", *arguments, "--by", "ada")
        assert done.exit_code == 0, done.output

    def plan(
        self,
        *include: str,
        sites: tuple[str, ...] = ("all",),
        from_sites: tuple[str, ...] = (),
        doors: tuple[str, ...] = (),
        excluded: Mapping[str, str] = MappingProxyType({}),
    ) -> Plan:
        options = SubmissionOptions(include_excluded=include)
        request = CampaignRequest(
            str(self.folder / "test"),
            axes={"door": doors} if doors else {},
            sites=sites,
            from_sites=from_sites,
            options=options,
            excluded=excluded,
        )
        return plan_request(request, self.settings, fetch=False)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def names(plan: Plan) -> list[str]:
    return [site.name for site in plan.sites]


def test_site_in_downtime_is_left_out_and_the_plan_says_so(desk: Desk) -> None:
    desk.announce_downtime("SITE_B")
    plan = desk.plan()
    assert names(plan) == ["SITE_A"]
    (note,) = plan.notes
    assert note.startswith("Site SITE_B is left out: jobs and storage excluded since ")
    assert note.endswith("downtimes.json: power cut.")
    assert [*json.loads(plan.make_campaign_row().plan)["excluded"]] == ["SITE_B"]
    done = desk.run("submit", str(desk.folder / "test"), "--sites", "all", "--dry-run")
    assert (done.exit_code, "SITE_B is left out" in done.output) == (0, True), done.output


def test_nothing_is_planned_where_all_sites_are_excluded(desk: Desk) -> None:
    desk.announce_downtime("SITE_B")
    desk.override("SITE_A")
    with pytest.raises(NothingToDoError, match="no site of this request may be used") as caught:
        desk.plan()
    assert "critical by ada: disk burns" in caught.value.message
    assert "--include-excluded all" in caught.value.hint


@pytest.mark.parametrize("include", ["SITE_A", "all"])
def test_site_is_included_on_request_and_marked(desk: Desk, include: str) -> None:
    desk.override("SITE_A")
    plan = desk.plan(include)
    assert names(plan) == ["SITE_A", "SITE_B"]
    assert plan.notes[0].startswith(
        "Site SITE_A is used nevertheless: jobs and storage excluded since"
    )
    assert [*json.loads(plan.make_campaign_row().plan)["included"]] == ["SITE_A"]


def test_unknown_site_cannot_be_included(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="the request has no site 'SITE_X'") as caught:
        desk.plan("SITE_X")
    assert "It has: SITE_A, SITE_B." in caught.value.hint


def test_jobs_and_storage_are_excluded_apart(desk: Desk) -> None:
    desk.override("SITE_A", "critical", "--storage")
    assert names(desk.plan(sites=("SITE_B",), from_sites=("SITE_A",))) == ["SITE_A"]
    with pytest.raises(NothingToDoError):
        desk.plan(sites=("SITE_A",), from_sites=("SITE_B",))
    assert names(desk.plan()) == ["SITE_B"]


def test_fresh_installation_excludes_nothing(desk: Desk) -> None:
    plan = desk.plan()
    assert (names(plan), plan.notes) == (["SITE_A", "SITE_B"], ())
    assert "excluded" not in json.loads(plan.make_campaign_row().plan)


def test_states_and_uses_are_shown_with_their_end_and_author(desk: Desk) -> None:
    desk.override("SITE_A")
    (row, *_) = json.loads(desk.run("sites", "status", "--json").stdout)
    assert (row["use"], row["who"]) == ("excluded", "ada")
    assert row["until"] > row["since"]
    assert "excluded" in desk.run("sites", "status").output


def doors(plan: Plan) -> list[str]:
    return sorted({f"{job.access.storage.name}:{job.access.door.name}" for job in plan.jobs})


def test_first_usable_door_is_read(desk: Desk) -> None:
    desk.override("SITE_A", "critical", "--door", "root")
    for plan in (desk.plan(), desk.plan(from_sites=("SITE_B",))):
        assert doors(plan) == ["SITE_A:https", "SITE_B:root"]
        assert plan.notes[0].startswith("Door root of site SITE_A is left out: excluded since ")
        assert [*json.loads(plan.make_campaign_row().plan)["excluded"]] == ["SITE_A:root"]


def test_named_door_is_left_out(desk: Desk) -> None:
    desk.override("SITE_A", "critical", "--door", "https")
    assert (doors(desk.plan()), desk.plan().notes) == (["SITE_A:root", "SITE_B:root"], ())
    plan = desk.plan(sites=("SITE_A",), doors=("root", "https"))
    assert doors(plan) == ["SITE_A:root"]
    (note,) = plan.notes
    assert note.startswith("Door https of site SITE_A is left out: excluded since ")


def test_site_without_usable_door_is_left_out(desk: Desk) -> None:
    desk.override("SITE_A", "critical", "--door", "https")
    with pytest.raises(NothingToDoError, match="no usable door: door https excluded since"):
        desk.plan(sites=("SITE_A",), doors=("https",))
    desk.override("SITE_A", "critical", "--door", "root")
    left = desk.plan()
    assert names(left) == ["SITE_B"]
    assert [*json.loads(left.make_campaign_row().plan)["excluded"]] == ["SITE_A"]


@pytest.mark.parametrize("include", ["SITE_A", "all"])
def test_door_is_included_on_request(desk: Desk, include: str) -> None:
    desk.override("SITE_A", "critical", "--door", "root")
    plan = desk.plan(include)
    assert doors(plan) == ["SITE_A:root", "SITE_B:root"]
    assert plan.notes[0].startswith("Door root of site SITE_A is used nevertheless: excluded since")
    assert [*json.loads(plan.make_campaign_row().plan)["included"]] == ["SITE_A:root"]


def test_doors_that_a_request_excludes_are_not_included(desk: Desk) -> None:
    plan = desk.plan("all", excluded={"SITE_A:root": "probe only", "SITE_B:other": "probe only"})
    assert doors(plan) == ["SITE_A:https", "SITE_B:root"]
    assert json.loads(plan.make_campaign_row().plan)["excluded"] == {"SITE_A:root": "probe only"}


def test_override_of_a_door_is_shown_and_ends(desk: Desk) -> None:
    desk.override("SITE_A", "critical", "--door", "https")
    rows = json.loads(desk.run("sites", "status", "--site", "SITE_A", "--json").stdout)
    assert [(row["site"], row["of"], row["use"]) for row in rows] == [
        ("SITE_A:https", "door", "excluded")
    ]
    ended = desk.run("sites", "end-override", "SITE_A", "--door", "https")
    assert ended.output.strip() == "SITE_A:https follows the rules again"
    assert desk.plan(sites=("SITE_A",), doors=("https",)).notes == ()


@pytest.mark.parametrize("command", ["override", "end-override"])
def test_unknown_door_cannot_be_overridden(desk: Desk, command: str) -> None:
    words = ("critical", "--why", "x", "--until", "1h") if command == "override" else ()
    error = desk.run("sites", command, "SITE_A", *words, "--door", "htps").exception
    assert isinstance(error, ConfigError)
    assert error.message == "site SITE_A has no door 'htps'"
    assert error.hint == "Did you mean 'https'? Known: root, https."
    both = desk.run("sites", command, "SITE_A", *words, "--door", "https", "--jobs").exception
    assert isinstance(both, ConfigError)
