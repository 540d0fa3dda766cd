"""Patrol files and their check, cost of campaigns, and reruns of suspected regressions."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from zoneinfo import ZoneInfo

import jsonschema
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from repository_code import call_command
from simulated_campaign import START_US, SimulatedCampaign, add_campaign

from treehammer import config
from treehammer.analysis.comparison.comparison_result import compare_campaign_commits
from treehammer.collectors.json_documents import format_json
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.config import load_settings
from treehammer.errors import ConfigError, InvalidDocumentError
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.core.schema import patrol_start
from treehammer.sql.core.watch_rows import PatrolChargeRow, PatrolStartRow
from treehammer.sql.engine.database_engine import read_clock
from treehammer.sql.read.stored_comparisons import list_latest_comparisons
from treehammer.sql.write.store import Store
from treehammer.text_formatting import SECOND_US
from treehammer.watch import patrol
from treehammer.watch.alarms.alarm_overview import CheckState
from treehammer.watch.alarms.release_checks import requested_reruns, watch_campaigns
from treehammer.watch.cli import patrol_commands as cli
from treehammer.watch.patrol.campaign_settlement import CampaignSettlement, measure_use, tally_sites
from treehammer.watch.patrol.campaign_starts import PatrolRequest, find_reruns, record_reruns
from treehammer.watch.patrol.patrol_file import (
    PatrolFile,
    PatrolFileError,
    QuietHours,
    StartTimes,
    build_patrol_schema,
    parse_patrol_file,
)
from treehammer.watch.states.status_rules import parse_status_rules
from treehammer.watch.store.alarms import ReleaseCheckTable
from treehammer.watch.store.patrol_starts import (
    CLAIMED,
    FINISHED,
    SUBMITTED,
    PatrolLease,
    PatrolStarts,
    SiteCharge,
    SiteLimits,
)

PATH = Path("/somewhere/patrol.toml")
#: Every kind of mistake in a patrol file and in a file of status rules, with its full text.
MISTAKES = Path(__file__).with_name("mistakes.jsonl")
PUBLISHED = Path(patrol.__file__).parent / "patrol.schema.json"
GUIDE = Path(__file__).parents[3] / "docs" / "patrol.md"
FULL = """
[patrol]
timezone = "Europe/Zurich"
quiet_hours = ["22:00-06:00"]
jitter = "5m"
time_limit = "12h"

[releases]
source = "pypi"

[budget]
cpu_hours = 20
bytes = "2 TB"
[budget.sites.SITE_A]
cpu_hours = 5

[entries.hourly]
test = "ttree-read"
sites = ["all"]
every = "1h"
axes = {cache_mb = [0, 30], root = ["6.40.00"]}
set = {repeats = 2}

[entries.idea]
repository = "../client"
path = "tests/read"
branch = "main"
sites = ["label:eos", "SITE_A"]
in_flight = 2
jitter = "0m"

[entries.release]
test = "ttree-read"
releases = true
sites = ["SITE_A"]
from = ["SITE_B", "SITE_C"]
"""


def parse(text: str) -> PatrolFile:
    return parse_patrol_file(text, PATH)


def list_mistakes(text: str) -> str:
    with pytest.raises(PatrolFileError) as caught:
        parse(text)
    return "\n".join(caught.value.problems)


def test_values_and_defaults() -> None:
    content = parse(FULL)
    hourly, idea, release = content.entries.values()
    assert hourly.times is not None
    assert (hourly.times.every_s, hourly.times.jitter_s) == (3600, 300)
    assert hourly.axes == {"cache_mb": ("0", "30"), "root": ("6.40.00",)}
    assert hourly.overrides == {"repeats": "2"}
    assert (hourly.time_limit_s, hourly.quiet.timezone) == (43_200, "Europe/Zurich")
    assert idea.spec_at("a" * 40) == f"/client@{'a' * 40}:tests/read"
    assert (idea.times, idea.in_flight, idea.follows) == (None, 2, "branch main")
    assert (release.follows, release.spec_at("")) == ("ROOT releases", "ttree-read")
    assert (release.from_sites, idea.from_sites) == (("SITE_B", "SITE_C"), ())
    assert release.shown_sites == "SITE_A from SITE_B, SITE_C"
    assert content.budget.limits_of("SITE_A") == SiteLimits(5 * 3600, 2 * 10**12)
    assert content.budget.limits_of("SITE_B") == SiteLimits(20 * 3600, 2 * 10**12)
    assert [entry.test_name for entry in content.entries.values()] == [
        "ttree-read",
        "read",
        "ttree-read",
    ]


@pytest.mark.parametrize("file", ["patrol", "rules"])
def test_mistakes_are_reported_with_line_key_and_remedy(file: str) -> None:
    """Each line of the corpus replaces a line of a valid file, or holds a file of its own."""
    header, *cases = map(json.loads, MISTAKES.read_text(encoding="utf-8").splitlines())
    valid = FULL if file == "patrol" else header["rules"]
    for case in (case for case in cases if case["file"] == file):
        lines = [case["by"] if line == case.get("line") else line for line in valid.splitlines()]
        text = case.get("text", "\n".join(lines))
        with pytest.raises(InvalidDocumentError) as caught:
            parse(text) if file == "patrol" else parse_status_rules(text, str(PATH))
        problems = [problem.removeprefix(f"{PATH}:") for problem in caught.value.problems]
        assert {**case, "problems": problems} == case


def test_all_mistakes_are_reported_at_once() -> None:
    text = FULL.replace('"all"', "1").replace("in_flight = 2", "in_flight = 0")
    assert len(list_mistakes(text).splitlines()) == 2
    assert "has no entry" in list_mistakes("[patrol]\n")
    assert ":1: not valid TOML" in list_mistakes("[patrol\n")
    assert 'Text needs quotes: jitter = "10m"' in list_mistakes(
        "[patrol]\njitter = 10m # a while\n"
    )
    assert "quotes" not in list_mistakes("[patrol]\njitter = 10\njitter = 20\n")


def test_published_schema_is_up_to_date() -> None:
    published = json.loads(PUBLISHED.read_text())
    assert published == build_patrol_schema(), (
        "run: treehammer patrol schema > watch/patrol/patrol.schema.json"
    )
    assert json.loads(CliRunner().invoke(cli.patrol, ["schema"]).stdout) == published
    jsonschema.Draft202012Validator.check_schema(published)
    example = GUIDE.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    for text in (FULL, example):
        jsonschema.validate(tomllib.loads(text), published)
        parse(text)


def test_schema_rejects_mistakes() -> None:
    for text in (
        "[entriez.daily]\n",
        "[entries.daily]\ntest = 'ttree-read'\n",
        "[entries.daily]\nsites = ['all']\nin_flight = 0\n",
        "[budget]\ncpu_hours = 0\n",
        "[patrol]\nlook_every = 60\n",
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tomllib.loads(text), build_patrol_schema())
        list_mistakes(text)


HOUR_US = 3600 * SECOND_US


@given(st.integers(10**15, 2 * 10**15), st.integers(1, 100_000), st.integers(0, 100_000))
def test_slots_follow_each_other(now_us: int, every_s: int, jitter_s: int) -> None:
    times = StartTimes("entry", every_s, min(jitter_s, every_s))
    latest, following = times.latest_slot(now_us), times.next_slot(now_us)
    assert latest.due_us <= now_us < following.due_us
    assert times.latest_slot(following.due_us) == following
    assert following.due_us - latest.due_us <= 2 * every_s * SECOND_US


def test_delays_are_stable_and_spread() -> None:
    same = StartTimes("a", 3600, 600), StartTimes("a", 3600, 600)
    first = [times.next_slot(10**15).due_us for times in same]
    assert first[0] == first[1]
    delays = {StartTimes(f"e{n}", 3600, 600).next_slot(10**15).due_us % HOUR_US for n in range(50)}
    assert len(delays) == 50
    assert 0 <= min(delays) < 120 * SECOND_US < 480 * SECOND_US < max(delays) < 600 * SECOND_US
    assert StartTimes("a", 3600).latest_slot(10**15).name == "time:2001-09-09T01:00:00Z"


@pytest.mark.parametrize(
    "moment, end",
    [
        ("2026-03-28 21:59:30", "2026-03-28 21:59:30"),
        ("2026-03-28 22:00:00", "2026-03-29 06:00:00"),
        ("2026-03-29 05:59:59", "2026-03-29 06:00:00"),
        ("2026-10-24 23:30:00", "2026-10-25 06:00:00"),
        ("2026-03-29 12:10:00", "2026-03-29 12:15:00"),
    ],
)
def test_quiet_hours_end_by_local_time(moment: str, end: str) -> None:
    zone = ZoneInfo("Europe/Zurich")
    now, expected = (datetime.fromisoformat(text).replace(tzinfo=zone) for text in (moment, end))
    quiet = QuietHours(((22 * 60, 6 * 60), (12 * 60, 12 * 60 + 15)), "Europe/Zurich")
    assert (
        quiet.end_of_quiet(round(now.timestamp()) * SECOND_US)
        == round(expected.timestamp()) * SECOND_US
    )


def test_quiet_hours_may_cover_the_whole_day() -> None:
    assert QuietHours(((0, 720), (720, 0))).end_of_quiet(10**15) == 0
    assert QuietHours().end_of_quiet(10**15) == 10**15


def check_file(text: str, folder: Path) -> list[str]:
    """Check a file that cannot start; return the lines of the message."""
    (folder / "patrol.toml").write_text(text)
    settings = config.load_settings({"data_dir": folder / "data"}, environ={}, folder=folder)
    with pytest.raises(ConfigError) as raised:
        call_command("patrol", settings, "check", str(folder / "patrol.toml"))
    return str(raised.value).splitlines()


def test_release_is_checked_beside_the_one_that_it_is_compared_with(tmp_path: Path) -> None:
    for version in ("6.38.00", "6.40.00"):
        (tmp_path / "releases" / version).mkdir(parents=True)
    (tmp_path / "patrol.toml").write_text(
        '[releases]\nsource = "./releases"\ncompare = true\n'
        '[entries.day]\ntest = "ttree-read"\nreleases = true\nsites = ["local"]\n'
        'set = {mode = "paired"}\n'
    )
    settings = config.load_settings({"data_dir": tmp_path / "data"}, environ={}, folder=tmp_path)
    result = call_command("patrol", settings, "check", str(tmp_path / "patrol.toml"))
    assert "ROOT releases" in result.output


DAILY = '[entries.daily]\ntest = "ttree-read"\nevery = "1d"\nsites = ["local"]\n'
FOLLOWING = '[entries.idea]\nrepository = "./moved"\nbranch = "main"\nsites = ["local"]\n'


@pytest.mark.parametrize(
    "text, lines",
    [
        (
            f'[releases]\nsource = "./releases.txt"\n{FOLLOWING}'
            '[entries.release]\ntest = "ttree-read"\nreleases = true\nsites = ["local"]\n',
            [
                "2 entries cannot start",
                "idea: {folder}/moved: no such repository. Name a test",
                "release: releases.source {folder}/releases.txt: "
                "cannot be read (No such file or directory)",
            ],
        ),
        (
            DAILY + 'axes = {cache = ["hot"]}\nset = {repeat = 3}\n',
            [
                "entries.daily.axes.cache: unknown value 'hot'",
                "entries.daily.set.repeat: unknown key",
            ],
        ),
        (DAILY + 'from = ["SITE_Z"]\n', ["daily: entries.daily.from: unknown site 'SITE_Z'"]),
        (FOLLOWING + 'compare_at = ["SITE_Z"]\n', ["entries.idea.compare_at"]),
        (
            DAILY + "[budget.sites.lokal]\ncpu_hours = 1\n",
            ["budget.sites: unknown site 'lokal'", "Did you mean 'local'?"],
        ),
    ],
)
def test_problems_are_lines_that_begin_with_keys_of_the_file(
    tmp_path: Path, text: str, lines: list[str]
) -> None:
    message = "\n".join(check_file(text, tmp_path))
    for line in lines:
        assert line.format(folder=tmp_path) in message


NEVER_TOML = """
[budget]
cpu_hours = 0.001
[entries.awake]
test = "./shell"
every = "1d"
sites = ["local"]
quiet_hours = ["00:00-12:00", "12:00-00:00"]
[entries.large]
test = "./shell"
every = "1d"
sites = ["local"]
[entries.paced]
test = "./shell"
every = "1d"
sites = ["local"]
jobs_in_flight = 3
[entries.small]
test = "./shell"
every = "1d"
sites = ["local"]
set = {wall_limit_s = "1", repeats = "1"}
"""


def test_entries_that_never_start_are_refused(tmp_path: Path) -> None:
    (tmp_path / "shell").mkdir()
    (tmp_path / "shell" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "shell" / "run.sh").chmod(0o755)
    (tmp_path / "shell" / "test.toml").write_text(
        '[test]\nname = "shell"\npayload = "run.sh"\nwall_limit_s = 60\n[matrix]\nroot = ["none"]\n'
    )
    lines = [line.strip() for line in check_file(NEVER_TOML, tmp_path)]
    assert lines[0].endswith("3 entries cannot start")
    assert lines[1].startswith("awake: entries.awake.quiet_hours: never starts: its quiet hours")
    assert "large: entries.large: never starts: a campaign needs more than the budget" in lines[2]
    assert lines[4].startswith("paced: --spread, --ramp, --in-flight: jobs of site local")


def add_jobs(store: Store, site: str, storage: str, failures: Sequence[str]) -> None:
    """Add a job with a measurement for each failure class; '' is a good one, "lost" none at all."""
    for number, failure in enumerate(failures):
        name = f"{site}-{storage}-{number}"
        store.set_jobs([make_job_row(name, site=site, planned_measurements=1)])
        store.set_attempts([AttemptRow(name, 1, "done", 1, 2, 0, "", "")])
        if failure == "lost":
            continue
        measured: dict[str, Any] = {"failure_class": failure} if failure else {"bytes_read": 100}
        store.add(
            [
                make_measurement(
                    name, site=site, storage_site=storage, plausible=True, passes_done=1,
                    payload_user_s=2.0, payload_sys_s=1.0, **measured,
                )
            ]
        )  # fmt: skip


def test_cpu_is_charged_to_the_job_site_and_bytes_to_the_storage(store: Store) -> None:
    store.add_campaign(make_campaign_row(), [])
    add_jobs(store, "J", "S", ["", ""])
    add_jobs(store, "J", "T", ["", "lost"])
    charges = [
        PatrolChargeRow("campaign", site, 1, cpu_s, size)
        for site, cpu_s, size in (("J", 40.0, 0), ("S", 0.0, 400), ("T", 0.0, 800))
    ]
    tallies = tally_sites(store, "campaign")
    # One of four measurements is missing: a quarter of each reservation is charged for it.
    assert measure_use(charges, tallies, reads_elsewhere=True) == {
        "J": SiteCharge(19.0, 0),
        "S": SiteCharge(0.0, 300),
        "T": SiteCharge(0.0, 300),
    }
    use = measure_use(charges, {}, reads_elsewhere=True)
    assert use["T"] == SiteCharge(0.0, 800)


def make_settlement(store: Store, folder: Path, **starts: Any) -> CampaignSettlement:
    """Make a settlement whose starts have no charges; ``starts`` are their further methods."""
    settings = load_settings({"data_dir": folder}, environ={}, folder=folder)
    methods = {"charges": lambda _campaign: [], "settle": lambda *_, **__: True, **starts}
    return CampaignSettlement(settings, store, cast(Any, SimpleNamespace(**methods)))


def make_start(occasion: str, campaign: str, request: PatrolRequest) -> PatrolStartRow:
    text = format_json(request)
    return PatrolStartRow("idea", occasion, campaign, "finished", 1, 10, 20, 1, "h", text, "")


def test_failing_payloads_are_named_as_failures_of_the_campaign(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.add_campaign(make_campaign_row(created_us=current_us()), [])
    add_jobs(store, "J", "J", ["payload", "payload", "", "lost"])
    # Their queue was removed with its folder.
    store.set_jobs(
        [replace(job, state="running", batch_id="1.0") for job in store.jobs("campaign")]
    )
    results: list[str] = []
    settlement = make_settlement(
        store, tmp_path, settle=lambda *_, state, message: results.append(f"{state}, {message}")
    )
    start = make_start("time:1", "campaign", PatrolRequest("ttree-read", sites=("J",)))
    open_start = replace(start, state="submitted", finished_us=None)
    assert settlement.follow_all([open_start], 20) == {}
    assert results == ["finished, failed: 2 × payload, 1 missing (of 4 measurements)"]
    assert "failed: 2 × payload" in caplog.text


def test_consecutive_commits_of_an_entry_are_compared(store: Store, tmp_path: Path) -> None:
    commits = {"first": "a" * 40, "second": "b" * 40}
    for number, (name, commit) in enumerate(commits.items()):
        campaign = SimulatedCampaign(
            name=name, roots=("6.40.00",), hosts=1, job_noise=0.001, loop_s=10 + number
        )
        rows = [
            row | {"commit_id": commit, "test_hash": commit, "test_path": "read", "dirty": False}
            for row in campaign.rows()
        ]
        id_ = str(rows[0]["campaign_id"])
        store.add_campaign(make_campaign_row(id_, name=name, commit_id=commit), [])
        store.add(map(Measurement, rows))
    request = PatrolRequest("read", sites=("T2_A",))
    first, second = (
        make_start(f"commit:{commit}", store.campaign(name).id, request)
        for name, commit in commits.items()
    )
    settlement = make_settlement(
        store, tmp_path, find_earlier_start=lambda start, _: first if start is second else None
    )
    assert settlement.follow_all([first, second], 30) == {}
    (summary,) = list_latest_comparisons(store, 9, axis="commit")
    assert (summary.first_verdict.a, summary.first_verdict.b) == tuple(commits.values())
    assert summary.first_verdict.verdict == "slower"
    assert not list_latest_comparisons(store, 9, axis="root")
    # A commit that does not touch the test is not compared.
    simulation = SimulatedCampaign(name="third", roots=("6.40.00",), hosts=1)
    rows = [row | {"commit_id": "d" * 40, "test_hash": "b" * 40} for row in simulation.rows()]
    third = str(rows[0]["campaign_id"])
    store.add_campaign(make_campaign_row(third, name="third", commit_id="d" * 40), [])
    store.add(map(Measurement, rows))
    assert compare_campaign_commits(store, second.campaign_id, third, 40) is None


def test_commits_in_turns_are_compared_within_their_campaign(store: Store, tmp_path: Path) -> None:
    commits = {"6.38.00": "a" * 40, "6.40.00": "b" * 40}
    rows = [
        row
        | {"commit_id": commits[row["axis_root"]], "test_hash": commits[row["axis_root"]]}
        | {"test_path": "read", "dirty": False, "axis_root": "6.40.00", "root_version": "6.40.00"}
        | {"variant": row["variant"].replace("6.38.00", "6.40.00"), "root_commit": "6-40-00"}
        for row in SimulatedCampaign(hosts=1, effect=0.05).rows()
    ]
    campaign = str(rows[0]["campaign_id"])
    store.add_campaign(make_campaign_row(campaign, commit_id="b" * 40), [])
    store.add(map(Measurement, rows))
    axes = {"commit": tuple(commits.values())}
    start = make_start(f"turns:{'b' * 40}", campaign, PatrolRequest("read", axes, sites=("T2_A",)))
    assert make_settlement(store, tmp_path).follow_all([start], 30) == {}
    (summary,) = list_latest_comparisons(store, 9, axis="commit")
    assert (summary.first_verdict.a, summary.first_verdict.b) == axes["commit"]
    assert summary.first_verdict.verdict == "slower"
    assert not summary.first_verdict.evidence.unpaired


AXES = {"root": ("6.38.00", "6.40.00")}


def add_start(store: Store, occasion: str, campaign_id: str, state: str) -> None:
    request = PatrolRequest("repository@c0ffee:ttree-read", AXES, sites=("T2_A",))
    start = make_start(occasion, campaign_id, request)
    row = replace(start, entry="nightly", state=state, finished_us=None)
    with store.writing_connection() as connection:
        same = patrol_start.c.occasion == occasion
        connection.execute(sa.delete(patrol_start).where(same))
        connection.execute(sa.insert(patrol_start), [asdict(row)])


def test_rerun_is_an_occasion_of_the_entry_that_raised_it(store: Store) -> None:
    starts = PatrolStarts(store, PatrolLease(store, "host", 60, read_clock))
    first = add_campaign(store, "nightly", 0.08)
    add_start(store, "time:1", first, FINISHED)
    watch_campaigns(store, START_US)
    ((entry, occasions),) = find_reruns(store, starts, 7).items()
    assert entry == "nightly"
    (occasion,) = occasions
    assert occasion.name.startswith("rerun:")
    # The same commit and axes, whatever the entry follows now.
    assert (occasion.spec, occasion.axes) == ("repository@c0ffee:ttree-read", AXES)
    campaign_id = add_campaign(store, "again", 0.08, seed=2)
    add_start(store, occasion.name, campaign_id, CLAIMED)
    record_reruns(store, starts, 8)
    assert requested_reruns(store)
    add_start(store, occasion.name, campaign_id, SUBMITTED)
    for _ in range(2):
        record_reruns(store, starts, 8)
    (check,) = ReleaseCheckTable(store).list_checks()
    assert (check.state, check.rerun_id) == (CheckState.RERUNNING, campaign_id)
    assert find_reruns(store, starts, 9) == {}
    (check,) = watch_campaigns(store, START_US)
    assert check.state == CheckState.CONFIRMED


def test_campaign_of_a_person_is_not_repeated(store: Store) -> None:
    starts = PatrolStarts(store, PatrolLease(store, "host", 60, read_clock))
    add_campaign(store, "by hand", 0.08)
    watch_campaigns(store, START_US)
    assert requested_reruns(store)
    assert find_reruns(store, starts, 7) == {}
