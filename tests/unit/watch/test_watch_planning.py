"""Plans of campaigns at sites that states exclude."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from submission_desk import SubmissionDesk, list_doors, list_sites

from treehammer.errors import ConfigError, NothingToDoError


@pytest.fixture
def desk(tmp_path: Path) -> SubmissionDesk:
    return SubmissionDesk(tmp_path)


def test_site_in_downtime_is_left_out_and_the_plan_says_so(desk: SubmissionDesk) -> None:
    desk.announce_downtime("SITE_B")
    plan = desk.plan()
    assert list_sites(plan) == ["SITE_A"]
    (note,) = plan.notes
    assert note.startswith("Site SITE_B is left out: jobs and storage excluded since ")
    assert note.endswith("downtimes.json: power cut.")
    assert [*plan.make_campaign_row().plan.excluded] == ["SITE_B"]
    done = desk.run("submit", str(desk.folder / "test"), "--sites", "all", "--dry-run")
    assert (done.exit_code, "SITE_B is left out" in done.output) == (0, True), done.output


def test_nothing_is_planned_where_all_sites_are_excluded(desk: SubmissionDesk) -> None:
    desk.announce_downtime("SITE_B")
    desk.override("SITE_A")
    with pytest.raises(NothingToDoError, match="no site of this request may be used") as caught:
        desk.plan()
    assert "critical by ada: disk burns" in caught.value.message
    assert "--include-excluded all" in caught.value.hint


@pytest.mark.parametrize("include", ["SITE_A", "all"])
@pytest.mark.parametrize(
    ("options", "subject", "note"),
    [
        ((), "SITE_A", "Site SITE_A is used nevertheless: jobs and storage excluded since"),
        (
            ("--door", "root"),
            "SITE_A:root",
            "Door root of site SITE_A is used nevertheless: excluded since",
        ),
    ],
    ids=["site", "door"],
)
def test_excluded_subject_is_included_on_request_and_marked(
    desk: SubmissionDesk, options: tuple[str, ...], subject: str, note: str, include: str
) -> None:
    desk.override("SITE_A", "critical", *options)
    plan = desk.plan(include)
    assert list_doors(plan) == ["SITE_A:root", "SITE_B:root"]
    assert plan.notes[0].startswith(note)
    assert [*plan.make_campaign_row().plan.included] == [subject]


def test_jobs_and_storage_are_excluded_apart(desk: SubmissionDesk) -> None:
    desk.override("SITE_A", "critical", "--storage")
    assert list_sites(desk.plan(sites=("SITE_B",), from_sites=("SITE_A",))) == ["SITE_A"]
    with pytest.raises(NothingToDoError):
        desk.plan(sites=("SITE_A",), from_sites=("SITE_B",))
    assert list_sites(desk.plan()) == ["SITE_B"]


def test_first_usable_door_is_read(desk: SubmissionDesk) -> None:
    desk.override("SITE_A", "critical", "--door", "root")
    for plan in (desk.plan(), desk.plan(from_sites=("SITE_B",))):
        assert list_doors(plan) == ["SITE_A:https", "SITE_B:root"]
        assert plan.notes[0].startswith("Door root of site SITE_A is left out: excluded since ")
        assert [*plan.make_campaign_row().plan.excluded] == ["SITE_A:root"]


def test_site_without_usable_door_is_left_out(desk: SubmissionDesk) -> None:
    desk.override("SITE_A", "critical", "--door", "https")
    with pytest.raises(NothingToDoError, match="no usable door: door https excluded since"):
        desk.plan(sites=("SITE_A",), doors=("https",))
    desk.override("SITE_A", "critical", "--door", "root")
    left = desk.plan()
    assert list_sites(left) == ["SITE_B"]
    assert [*left.make_campaign_row().plan.excluded] == ["SITE_A"]


def test_override_of_a_door_is_shown_and_ends(desk: SubmissionDesk) -> None:
    desk.override("SITE_A", "critical", "--door", "https")
    rows = json.loads(desk.run("sites", "status", "--site", "SITE_A", "--json").stdout)
    assert [(row["site"], row["of"], row["use"], row["who"]) for row in rows] == [
        ("SITE_A:https", "door", "excluded", "ada")
    ]
    assert rows[0]["until"] > rows[0]["since"]
    assert "excluded" in desk.run("sites", "status").output
    ended = desk.run("sites", "end-override", "SITE_A", "--door", "https")
    assert ended.output.strip() == "SITE_A:https follows the rules again"
    assert desk.plan(sites=("SITE_A",), doors=("https",)).notes == ()


@pytest.mark.parametrize("command", ["override", "end-override"])
def test_unknown_door_cannot_be_overridden(desk: SubmissionDesk, command: str) -> None:
    words = ("critical", "--why", "x", "--until", "1h") if command == "override" else ()
    error = desk.run("sites", command, "SITE_A", *words, "--door", "htps").exception
    assert isinstance(error, ConfigError)
    assert error.message == "site SITE_A has no door 'htps'"
    assert error.hint == "Did you mean 'https'? Known: root, https."
    both = desk.run("sites", command, "SITE_A", *words, "--door", "https", "--jobs").exception
    assert isinstance(both, ConfigError)
