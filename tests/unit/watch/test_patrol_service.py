"""Rounds of a patrol with the time and the campaigns of a test."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from captured_runs import commit_all, make_repository, run_git
from local_servers import serve_tcp
from measurement_factory import make_campaign_row

from treehammer import config
from treehammer.analysis.status.site_uses import SiteState, SiteUses, SubjectUse, Usability
from treehammer.collectors import root_releases
from treehammer.collectors.json_documents import parse_json
from treehammer.errors import BatchError, SoftwareError
from treehammer.hctests.pinned_tests import EqualCommitsError
from treehammer.sql.core.watch_rows import PatrolStartRow, ReleaseCheck
from treehammer.sql.write.store import Store
from treehammer.submit.planning.submission_options import CampaignRequest
from treehammer.watch.alarms.alarm_overview import CheckState
from treehammer.watch.changes.change_points import UpdateResult
from treehammer.watch.patrol import campaign_starts, patrol_service
from treehammer.watch.patrol.campaign_settlement import CampaignSettlement
from treehammer.watch.patrol.occasions import select_earlier_releases
from treehammer.watch.patrol.patrol_file import parse_patrol_file
from treehammer.watch.patrol.patrol_service import Patrol, open_patrol
from treehammer.watch.states.status_rules import RULES_FILE
from treehammer.watch.store.alarms import ReleaseCheckTable
from treehammer.watch.store.patrol_report import PatrolReport, load_report
from treehammer.watch.store.patrol_starts import SiteCharge

SITES_TOML = """
[sites.SITE_A]
doors = [{name = "file", protocol = "file", prefix = "/a"}]
[sites.SITE_B]
doors = [{name = "file", protocol = "file", prefix = "/b"}]
"""
HOUR_S = 3600


class SimulatedGrid:
    """Patrol whose campaigns end as the test says, at a time that the test sets."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "sites.toml").write_text(SITES_TOML)
        flags = {"data_dir": folder, "cache_dir": folder, "sites_file": folder / "sites.toml"}
        self.folder = folder
        self.settings = config.load_settings(flags, environ={}, folder=folder)
        self.now_us = 1_700_000_000 * 10**6 // (HOUR_S * 10**6) * (HOUR_S * 10**6)
        self.requests: list[CampaignRequest] = []
        self.uses: dict[tuple[str, str], SubjectUse] = {}
        self.is_running = False
        self.cpu_s = 60.0
        self.batch_answers = True
        self._patrols = ExitStack()
        monkeypatch.setattr(patrol_service, "list_uses", lambda _: SiteUses(self.uses))
        monkeypatch.setattr(campaign_starts, "plan_request", self._plan)
        monkeypatch.setattr(campaign_starts, "check_plan_limits", lambda *_: None)
        monkeypatch.setattr(campaign_starts, "submit_plan", self._submit)
        monkeypatch.setattr(
            campaign_starts, "estimate_charges", lambda plan, *_: self._estimate(plan)
        )
        monkeypatch.setattr(
            CampaignSettlement, "follow", lambda owner, start, _: self._follow(owner, start)
        )

    def open(self, text: str) -> Patrol:
        self._patrols.close()
        file = parse_patrol_file(text, self.folder / "patrol.toml")
        opened = open_patrol(self.settings, file, clock=lambda _: self.now_us)
        return self._patrols.enter_context(opened)

    def close(self) -> None:
        self._patrols.close()

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1e6)

    def run_rounds(self, patrol: Patrol, count: int, seconds: float) -> None:
        for _ in range(count):
            self.advance(seconds)
            patrol.run_round()

    @property
    def probes(self) -> list[CampaignRequest]:
        return [request for request in self.requests if request.max_jobs]

    def report(self) -> PatrolReport:
        with Store.open(self.settings.database) as store:
            return load_report(store, lambda _: self.now_us)

    def remark(self) -> str:
        return self.report().entries[0].entry.note

    def occasions(self) -> list[str]:
        return [start.occasion for start in reversed(self.report().starts)]

    def _plan(self, request: CampaignRequest, *_: object, **__: object) -> Any:
        if not request.campaign_id:
            self.requests.append(request)
        number = len(self.requests)
        return SimpleNamespace(
            campaign_id=request.campaign_id or f"c{number}", request=request, jobs=()
        )

    def _estimate(self, plan: Any) -> dict[str, SiteCharge]:
        request = plan.request
        runners = request.from_sites or request.sites
        return {
            site: SiteCharge(self.cpu_s * (site in runners), 1000 * (site in request.sites))
            for site in {*runners, *request.sites}
        }

    def _submit(self, plan: Any, _settings: object, permit: Any) -> None:
        with Store.open(self.settings.database) as store:
            store.add_campaign(replace(make_campaign_row(), id=plan.campaign_id), [], permit)
        if not self.batch_answers:
            raise BatchError("the pool does not answer")

    def _follow(self, settlement: CampaignSettlement, start: PatrolStartRow) -> None:
        if self.is_running:
            return
        request = parse_json(campaign_starts.PatrolRequest, start.request)
        runners = request.from_sites or request.sites
        used = {
            site: SiteCharge(self.cpu_s / 2 * (site in runners), 1000)
            for site in {*runners, *request.sites}
        }
        settlement._starts.settle(start, used)

    def set_use(self, site: str, usability: Usability, kind: str = "site") -> None:
        """Set the use of a site as its state would; the rules have tests of their own."""
        state = SiteState.OK if usability is Usability.USABLE else SiteState.CRITICAL
        use = SubjectUse(
            kind, site, usability, state, "exclusion", "3 runs failed", self.now_us,
            None, "exclusion",
        )  # fmt: skip
        self.uses[kind, site] = use


@pytest.fixture
def simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedGrid]:
    grid = SimulatedGrid(tmp_path, monkeypatch)
    yield grid
    grid.close()


HOURLY = """
[entries.hourly]
test = "ttree-read"
sites = ["all"]
every = "1h"
"""


def test_each_period_starts_one_campaign(simulation: SimulatedGrid) -> None:
    patrol = simulation.open(HOURLY)
    for _ in range(3):
        assert patrol.run_round()
        simulation.advance(20)
    assert len(simulation.requests) == 1
    simulation.advance(HOUR_S)
    patrol = simulation.open(HOURLY)  # restarted
    patrol.run_round()
    simulation.advance(10 * HOUR_S)
    patrol.run_round()  # the lease had expired, and nine periods were missed
    assert len(simulation.occasions()) == len(set(simulation.occasions())) == 3
    assert {request.sites for request in simulation.requests} == {("SITE_A", "SITE_B")}
    assert (
        simulation.report().entries[0].entry.next_us
        == simulation.now_us // 3_600_000_000 * 3_600_000_000 + 3_600_000_000
    )


def test_folders_of_ended_campaigns_are_purged_after_a_time(simulation: SimulatedGrid) -> None:
    patrol = simulation.open('[patrol]\nkeep_folders = "2d"\n' + HOURLY)
    folders = {name: simulation.settings.submissions_dir / name for name in ("c1", "other")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    patrol.run_round()
    simulation.advance(5)
    patrol.run_round()
    for days, exists in ((1.9, True), (0.2, False)):
        simulation.advance(days * 24 * HOUR_S)
        patrol.run_round()
        assert folders["c1"].exists() is exists
    # The patrol did not start this one.
    assert folders["other"].exists()


def test_campaigns_in_flight_and_quiet_hours_delay_starts(simulation: SimulatedGrid) -> None:
    simulation.is_running = True
    patrol = simulation.open(HOURLY)
    patrol.run_round()
    simulation.advance(HOUR_S)
    patrol.run_round()
    assert "in_flight = 1 reached" in simulation.remark()
    simulation.is_running = False
    patrol.run_round()
    assert len(simulation.requests) == 2
    hour = simulation.now_us // 3_600_000_000 % 24
    quiet = f'[patrol]\nquiet_hours = ["{(hour + 1) % 24:02}:00-{(hour + 3) % 24:02}:00"]\n'
    patrol = simulation.open(quiet + HOURLY)
    simulation.advance(HOUR_S)
    patrol.run_round()
    assert (simulation.remark(), len(simulation.requests)) == ("quiet hours", 2)
    simulation.advance(2 * HOUR_S)
    patrol.run_round()
    assert len(simulation.requests) == 3


def test_sites_without_budget_are_left_out(simulation: SimulatedGrid) -> None:
    budget = "[budget]\ncpu_hours = 1\n[budget.sites.SITE_A]\ncpu_hours = 0.02\n"
    simulation.now_us = simulation.now_us // 86_400_000_000 * 86_400_000_000
    patrol = simulation.open(budget + HOURLY)
    for _ in range(3):
        patrol.run_round()
        simulation.advance(HOUR_S)
    chosen = [request.sites for request in simulation.requests]
    # Reserved are 60 s, used 30 s; SITE_A has 72 s.
    assert chosen[0] == ("SITE_A", "SITE_B")
    assert chosen[-1] == ("SITE_B",)
    site_a, site_b = simulation.report().sites
    assert (site_a.use.cpu_s, site_b.use.cpu_s) == (30.0, 120.0)
    simulation.advance(86_400)
    patrol.run_round()
    assert simulation.requests[-1].sites == ("SITE_A", "SITE_B")


def test_critical_site_gets_probes_only_and_returns_by_itself(simulation: SimulatedGrid) -> None:
    patrol = simulation.open(HOURLY)
    patrol.run_round()
    simulation.set_use("SITE_A", Usability.PROBE_ONLY)
    begin_us = simulation.now_us
    for _ in range(3):
        simulation.advance(15 * 60)
        patrol.run_round()
        patrol.run_round()
    probes = [(request.sites, request.max_jobs) for request in simulation.probes]
    assert probes == [(("SITE_A",), 1)] * 3
    assert simulation.probes[0].overrides == {"repeats": "1"}
    due = [f"probe:SITE_A:{begin_us + number * 900 * 10**6}" for number in (1, 2, 3)]
    assert [occasion for occasion in simulation.occasions() if occasion.startswith("probe:")] == due
    simulation.run_rounds(patrol, 1, 15 * 60)
    assert [request.sites for request in simulation.requests if not request.max_jobs][1:] == [
        ("SITE_B",)
    ]
    assert "without SITE_A: probe only since" in simulation.remark()
    assert "critical by exclusion: 3 runs failed" in simulation.remark()
    simulation.uses.clear()
    simulation.run_rounds(patrol, 1, HOUR_S)
    assert simulation.requests[-1].sites == ("SITE_A", "SITE_B")


DOORS_TEST = """
[test]
name = "doors"
payload = "read.py"
[matrix]
door = ["root", "file"]
"""


@pytest.mark.parametrize("by_test", [False, True], ids=["entry", "test"])
def test_critical_door_is_left_out_and_probed_by_entries_that_name_it(
    simulation: SimulatedGrid, by_test: bool
) -> None:
    named = HOURLY.replace("hourly", "named")
    if by_test:
        (simulation.folder / "test.toml").write_text(DOORS_TEST)
        (simulation.folder / "read.py").write_text("print()\n")
        named = named.replace("ttree-read", str(simulation.folder))
    else:
        named += 'axes = {door = ["root", "file"]}\n'
    patrol = simulation.open(HOURLY + named)
    simulation.set_use("SITE_A:file", Usability.PROBE_ONLY, "door")
    begin_us = simulation.now_us
    for _ in range(2):
        simulation.advance(15 * 60)
        patrol.run_round()
        patrol.run_round()
    probes = [(item.sites, item.axes["door"], item.excluded) for item in simulation.probes]
    assert probes == [(("SITE_A",), ("file",), {})] * 2
    due = [f"probe:SITE_A:file:{begin_us + number * 900 * 10**6}" for number in (1, 2)]
    assert [occasion for occasion in simulation.occasions() if occasion.startswith("probe:")] == due
    full_requests = [request for request in simulation.requests if not request.max_jobs]
    assert {request.sites for request in full_requests} == {("SITE_A", "SITE_B")}
    assert {tuple(request.excluded) for request in full_requests} == {("SITE_A:file",)}


def test_probe_of_a_storage_reads_through_a_door_that_works(simulation: SimulatedGrid) -> None:
    patrol = simulation.open(HOURLY)
    simulation.set_use("SITE_A", Usability.PROBE_ONLY, "storage_site")
    simulation.set_use("SITE_A:bad", Usability.PROBE_ONLY, "door")
    simulation.set_use("SITE_A:closed", Usability.EXCLUDED, "door")
    simulation.run_rounds(patrol, 1, 15 * 60)
    simulation.set_use("SITE_A:good", Usability.USABLE, "door")
    simulation.run_rounds(patrol, 1, 15 * 60)
    assert [sorted(request.excluded) for request in simulation.probes] == [
        ["SITE_A:closed"],
        ["SITE_A:bad", "SITE_A:closed"],
    ]


def test_excluded_site_gets_nothing(simulation: SimulatedGrid) -> None:
    simulation.set_use("SITE_A", Usability.EXCLUDED, "storage_site")
    patrol = simulation.open(HOURLY)
    for _ in range(3):
        patrol.run_round()
        simulation.advance(HOUR_S)
    assert {request.sites for request in simulation.requests} == {("SITE_B",)}


def test_probe_waits_for_the_one_before(simulation: SimulatedGrid) -> None:
    simulation.set_use("SITE_A", Usability.PROBE_ONLY)
    simulation.is_running = True
    patrol = simulation.open(HOURLY)
    simulation.run_rounds(patrol, 4, 20 * 60)
    assert len(simulation.probes) == 1


def test_only_the_named_tests_probe(simulation: SimulatedGrid) -> None:
    rules = RULES_FILE.read_text(encoding="utf-8")
    simulation.folder.joinpath("rules.toml").write_text(
        rules.replace("tests = []", 'tests = ["other"]')
    )
    simulation.settings = replace(
        simulation.settings, status_rules=simulation.folder / "rules.toml"
    )
    simulation.set_use("SITE_A", Usability.PROBE_ONLY)
    simulation.run_rounds(simulation.open(HOURLY), 1, HOUR_S)
    assert [request.max_jobs for request in simulation.requests] == [0]


def test_interrupted_submission_is_completed_with_the_same_identity(
    simulation: SimulatedGrid,
) -> None:
    simulation.batch_answers = False
    patrol = simulation.open(HOURLY)
    patrol.run_round()
    (start,) = simulation.report().starts
    assert (start.state, start.campaign_id) == ("stored", "c1")
    simulation.batch_answers = True
    patrol = simulation.open(HOURLY)  # restarted
    patrol.run_round()
    (start,) = simulation.report().starts
    assert (start.state, start.campaign_id) == ("finished", "c1")
    assert len(simulation.requests) == 1


def add_commit(repository: Path) -> str:
    """Add a commit to a repository, which is made first if it does not exist; return its hash."""
    if not repository.exists():
        make_repository(repository)
    return commit_all(repository)


BRANCH = """
[patrol]
look_every = "10s"
[entries.branch]
repository = "./client"
branch = "main"
sites = ["all"]
"""


def follow_branch(simulation: SimulatedGrid, text: str, rounds: int = 4) -> None:
    simulation.run_rounds(simulation.open(text), rounds, 11)


def test_new_commits_are_compared_in_turns(simulation: SimulatedGrid) -> None:
    commits = [add_commit(simulation.folder / "client")]
    follow_branch(simulation, BRANCH)
    assert simulation.occasions() == [f"commit:{commits[0]}"]
    for _ in range(2):
        commits.append(add_commit(simulation.folder / "client"))
        follow_branch(simulation, BRANCH)
    first, second, third = commits
    assert simulation.occasions() == [
        f"commit:{first}",
        *(f"commit:{second}", f"turns:{second}"),
        *(f"commit:{third}", f"turns:{third}"),
    ]
    compared = [request for request in simulation.requests if "turns" in request.name]
    assert [request.axes for request in compared] == [
        {"commit": (first, second)},
        {"commit": (second, third)},
    ]
    (request, _) = compared
    assert request.test_spec == f"{simulation.folder / 'client'}@{second}:."
    assert request.overrides == {"rounds": "4", "mode": "paired"}
    assert request.sites == ("SITE_A",)
    assert simulation.requests[0].sites == ("SITE_A", "SITE_B")


@pytest.mark.parametrize(
    "key, sites",
    [
        ("", ("SITE_B",)),
        ('compare_at = ["SITE_B"]', ("SITE_B",)),
        ('compare_at = ["SITE_A"]', None),
        ('compare_at = ["all"]\nfrom = ["SITE_B"]', ("SITE_B",)),
        ("compare_at = []", None),
    ],
)
def test_commits_are_compared_at_usable_sites(
    simulation: SimulatedGrid, key: str, sites: tuple[str, ...] | None
) -> None:
    simulation.set_use("SITE_A", Usability.EXCLUDED)
    simulation.set_use("SITE_A", Usability.EXCLUDED, "storage_site")
    for _ in range(2):
        add_commit(simulation.folder / "client")
        follow_branch(simulation, BRANCH + key)
    compared = [request.sites for request in simulation.requests if "turns" in request.name]
    assert compared == ([sites] if sites else [])


def test_commits_that_do_not_touch_the_test_are_compared_once_at_the_next_change(
    simulation: SimulatedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = [add_commit(simulation.folder / "client")]
    follow_branch(simulation, BRANCH)
    attempts = []

    def refuse(request: CampaignRequest, *_: object, **__: object) -> Any:
        if "turns" in request.name:
            attempts.append(request)
            raise EqualCommitsError("both hold the same payload, files and settings")
        return simulation._plan(request)

    commits.append(add_commit(simulation.folder / "client"))
    with monkeypatch.context() as patched:
        patched.setattr(campaign_starts, "plan_request", refuse)
        follow_branch(simulation, BRANCH, 8)
    assert len(attempts) == 1
    commits.append(add_commit(simulation.folder / "client"))
    follow_branch(simulation, BRANCH)
    assert simulation.requests[-1].axes == {"commit": (commits[1], commits[2])}


def test_commits_tags_and_releases_start_campaigns(simulation: SimulatedGrid) -> None:
    repository, releases = simulation.folder / "client", simulation.folder / "releases"
    add_commit(repository)
    run_git(repository, "tag", "v1")
    (releases / "6.40.00").mkdir(parents=True)
    text = f"""
[patrol]
look_every = "10s"
[releases]
source = "{releases}"
look_every = "10s"
compare = true
[entries.branch]
repository = "{repository}"
branch = "main"
sites = ["all"]
[entries.tags]
repository = "{repository}"
tags = "v*"
sites = ["all"]
[entries.releases]
test = "ttree-read"
releases = true
sites = ["all"]
"""
    patrol = simulation.open(text)
    patrol.run_round()
    assert [name.partition(":")[0] for name in simulation.occasions()] == ["commit"]
    commit = add_commit(repository)
    run_git(repository, "tag", "v2")
    run_git(repository, "tag", "other")
    (releases / "6.40.02").mkdir()
    (releases / "notes").mkdir()
    simulation.advance(11)
    patrol = simulation.open(text)  # restarted
    for _ in range(3):
        patrol.run_round()
        simulation.advance(11)
    started = sorted(simulation.occasions()[1:])
    assert started == [f"commit:{commit}", "release:6.40.02", "tag:v2", f"turns:{commit}"]
    specs = {request.name.split()[0]: request for request in simulation.requests}
    assert specs["branch"].test_spec == specs["tags"].test_spec == f"{repository}@{commit}:."
    assert specs["releases"].axes == {
        "root": (f"path:{releases}/6.40.00", f"path:{releases}/6.40.02")
    }


@pytest.mark.parametrize(
    ("version", "earlier"),
    [
        ("6.40.02", ["6.38.04", "6.40.00"]),
        ("6.40.00", ["6.38.04"]),
        ("6.36.00", []),
        ("6.42.00", ["6.40.02"]),
    ],
)
def test_release_is_compared_with_the_series_and_patch_before(
    version: str, earlier: list[str]
) -> None:
    versions = ["6.36.00", "6.38.00", "6.38.04", "6.40.00", "6.40.02", "6.40.01rc1", "6.42.00"]
    assert select_earlier_releases(version, versions) == earlier


def test_earlier_release_that_cannot_be_set_up_is_left_out(
    simulation: SimulatedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one is not held up; it is recorded as failing only if it is the broken one itself."""
    (simulation.folder / "releases").write_text("6.38.00\n6.40.00\n")
    broken = "ROOT 6.40.00"

    def plan(request: CampaignRequest, *arguments: object, **options: object) -> Any:
        if broken.removeprefix("ROOT ") in request.axes["root"]:
            raise SoftwareError("does not start", where=broken)
        return simulation._plan(request, *arguments, **options)

    monkeypatch.setattr(campaign_starts, "plan_request", plan)
    patrol = simulation.open("""
[releases]
source = "releases"
compare = true
look_every = "10s"
[entries.release]
test = "ttree-read"
releases = true
sites = ["all"]
""")
    patrol.run_round()
    for release, started in (("6.40.02", 1), ("6.42.00", 1)):
        (simulation.folder / "releases").write_text(f"6.38.00\n6.40.00\n6.40.02\n{release}\n")
        simulation.run_rounds(patrol, 3, 61)
        assert len(simulation.requests) == started
        broken = "ROOT 6.42.00"
    assert simulation.requests[0].axes["root"] == ("6.38.00", "6.40.02")
    with Store.open(simulation.settings.database) as store:
        checks = ReleaseCheckTable(store).list_checks()
    assert [(check.b, check.state, check.text) for check in checks] == [
        ("6.42.00", CheckState.FAILED, "does not start")
    ]


def test_site_is_published_after_each_check_of_a_release(
    simulation: SimulatedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[tuple[Path, str]] = []

    def update_site(_: config.Settings, folder: Path, address: str) -> str:
        published.append((folder, address))
        return "1 page"

    part = SimpleNamespace(update_site=update_site)
    monkeypatch.setattr(patrol_service, "import_parts", lambda _: [part])
    patrol = simulation.open(
        """
[patrol]
publish = "site"
publish_address = "https://example.org/root/"
[entries.daily]
test = "ttree-read"
every = "6h"
sites = ["all"]
"""
    )
    patrol.run_round()
    assert published == []
    check = ReleaseCheck("1", "c", "ttree-read", "6.38.00", "6.40.00", CheckState.CLEAR)
    with Store.open(simulation.settings.database) as store:
        ReleaseCheckTable(store).add_checks([replace(check, changed_us=simulation.now_us)])
    simulation.run_rounds(patrol, 3, 61)
    assert published == [(simulation.folder / "site", "https://example.org/root/")]


def test_new_wheels_start_campaigns_without_a_change_here(
    simulation: SimulatedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the package's version names the release or not."""
    wheels = ["0.1a12", "0.1a10"]
    monkeypatch.setattr(
        root_releases, "run_tool", lambda *_: f"Available versions: {', '.join(wheels)}"
    )
    patrol = simulation.open("""
[releases]
source = "pypi"
look_every = "10s"
[entries.release]
test = "ttree-read"
releases = true
sites = ["all"]
""")
    patrol.run_round()
    assert not simulation.occasions()
    wheels[:0] = ["6.42.0", "0.1a14"]
    simulation.run_rounds(patrol, 3, 11)
    assert sorted(simulation.occasions()) == ["release:6.42.00", "release:wheel:0.1a14"]
    roots = {request.axes["root"] for request in simulation.requests}
    assert roots == {("6.42.00",), ("wheel:0.1a14",)}


def test_new_server_versions_start_campaigns(simulation: SimulatedGrid) -> None:
    """The first command plants a release, as one would upgrade a server; each version starts once."""
    versions, planted = {"cache": b"v5.8.1", "origin": b"v5.8.1"}, simulation.folder / "planted"

    def answer(name: str) -> Callable[[socket.socket], None]:
        def serve(connection: socket.socket) -> None:
            if planted.exists():
                versions["cache"] = b"v6.2.0"
            for body in (struct.pack(">ii", 0x520, 1), bytes(16), *[versions[name]] * 3):
                connection.recv(1000)
                connection.sendall(struct.pack(">2sHi", b"th", 0, len(body)) + body)

        return serve

    with serve_tcp(answer("cache")) as cache, serve_tcp(answer("origin")) as origin:
        (simulation.folder / "sites.toml").write_text(
            "[[sites.SITE_A.doors]]\nname = 'cache'\nprotocol = 'root'\n"
            f"prefix = 'root://127.0.0.1:{cache}//a'\norigin = 'root://127.0.0.1:{origin}'\n"
        )
        text = """
[servers]
look_every = "10s"
update = ["{command}"]
[entries.cache]
test = "ttree-read"
servers = true
sites = ["all"]
"""
        patrol = simulation.open(text.format(command=f"touch {planted}"))
        patrol.run_round()
        assert planted.exists()
        assert simulation.occasions() == []  # versions at the first look start nothing
        patrol.run_round()
        assert simulation.occasions() == ["server:SITE_A:cache XRootD v6.2.0"]
        simulation.run_rounds(patrol, 3, 11)
        assert len(simulation.occasions()) == 1
        versions["origin"] = b"v6.2.0"
        patrol = simulation.open(text.format(command="sh -c 'echo no network >&2; exit 4'"))
        simulation.run_rounds(patrol, 2, 11)
        assert simulation.occasions()[1:] == ["server:SITE_A:cache origin XRootD v6.2.0"]
        assert "exit code 4 no network" in simulation.remark()
        assert simulation.report().entries[0].entry.follows == "server versions"


def test_changes_are_searched_once_a_day(
    simulation: SimulatedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[tuple[int, str]] = []

    def search(_: Store, now: datetime, *, control: str) -> UpdateResult:
        searched.append((round(now.timestamp() * 1e6), control))
        return UpdateResult(days=7, series=4, new=1, changes=2)

    monkeypatch.setattr(patrol_service, "update_changes", search)
    simulation.settings = replace(simulation.settings, control_release="6.36.00")
    patrol = simulation.open(HOURLY)
    expected = []
    for hours, is_searched in ((0, False), (1, True), (1, False), (22, False), (1, True)):
        simulation.advance(hours * HOUR_S)
        patrol.run_round()
        expected += [(simulation.now_us, "6.36.00")] * is_searched
        assert searched == expected


#: Jobs on this machine read the storage of both sites.
ELSEWHERE = HOURLY.replace('["all"]', '["SITE_A", "SITE_B"]\nfrom = ["local"]')


def list_places(simulation: SimulatedGrid) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(request.sites, request.from_sites) for request in simulation.requests]


def test_budgets_count_for_the_site_of_the_job_and_for_the_storage(
    simulation: SimulatedGrid,
) -> None:
    budget = "[budget.sites.local]\ncpu_hours = 0.03\n[budget.sites.SITE_A]\nbytes = 1500\n"
    simulation.now_us = simulation.now_us // 86_400_000_000 * 86_400_000_000
    patrol = simulation.open(budget + ELSEWHERE)
    for _ in range(4):
        patrol.run_round()
        patrol.run_round()
        simulation.advance(HOUR_S)
    # SITE_A has bytes for one campaign; this machine has 108 s: each reserves 60
    # and uses 30.
    started = [start.request for start in reversed(simulation.report().starts)]
    parsed = [parse_json(campaign_starts.PatrolRequest, text) for text in started]
    assert [(request.sites, request.from_sites) for request in parsed] == [
        (("SITE_A", "SITE_B"), ("local",)),
        (("SITE_B",), ("local",)),
    ]
    assert "waits: the day's budget is used up: SITE_A, SITE_B, local" in simulation.remark()
    assert simulation.report().entries[0].entry.sites == "SITE_A, SITE_B from local"
    limits = {row.site.site: row.site.cpu_limit_s for row in simulation.report().sites}
    assert limits["local"] == 108.0


def test_critical_storage_is_probed_from_the_site_of_the_jobs(simulation: SimulatedGrid) -> None:
    patrol = simulation.open(ELSEWHERE)
    patrol.run_round()
    simulation.set_use("SITE_A", Usability.PROBE_ONLY, "storage_site")
    simulation.set_use("SITE_B", Usability.PROBE_ONLY, "site")  # its storage serves
    simulation.advance(HOUR_S)
    patrol.run_round()
    assert list_places(simulation)[1:] == [(("SITE_A",), ("local",)), (("SITE_B",), ("local",))]
    assert [request.max_jobs for request in simulation.requests] == [0, 1, 0]
    simulation.uses.clear()
    patrol.run_round()
    simulation.advance(HOUR_S)
    patrol.run_round()
    assert list_places(simulation)[-1] == (("SITE_A", "SITE_B"), ("local",))
