"""Patrol over a testbed while one site breaks and recovers, one is upgraded and one becomes slow.

Six sites with XRootD servers behind an HTCondor pool. A patrol runs a reading test at each of them
every two minutes, and a second test at each commit of a Git repository. A script plants events; the
history of states must then show these events, in order, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.harness.ratio_figures import RatioFigure, write_rows
from treehammer import config
from treehammer.analysis.alarms.release_state import CheckState
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.errors import TreehammerError
from treehammer.sql.core.rows import ReleaseCheck, StatusChangeRow
from treehammer.sql.read.measurement_selection import Condition, Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch.patrol_lease import PatrolLease
from treehammer.sql.watch.patrol_report import fetch_report
from treehammer.sql.watch.patrol_starts import PatrolStarts
from treehammer.sql.watch.release_checks import ReleaseCheckTable
from treehammer.sql.watch.state_history import SUBJECT_KINDS, list_state_changes
from treehammer.sql.write.store import Store
from treehammer.testbed.components import component_list, replica_files, xrootd_storage
from treehammer.testbed.core import fault_injection, lifecycle, workspace
from treehammer.testbed.core.component import Component, Workspace

SITES = 6
BROKEN, UPGRADED, SLOWED, CHANGED = "SITE_B", "SITE_C", "SITE_D", "SITE_A"
#: Suite of Debian to which a server is upgraded.
NEW_SUITE = "sid"
DATASET = "reference-small"
#: Seconds for which a slow server does not answer, and answers, in turn.
STOPPED_S, RUNNING_S = 0.95, 0.05
#: Minutes that the whole story needs at least.
MIN_MINUTES = 20
_US = 1_000_000

#: The reference of the rule for speed is more than twice as long as the server is slow, because a
#: site that stays slow becomes its own reference.
RULES_TOML = """
step = "15s"
reevaluate = "2h"

[rules.exclusion]
kind = "tests"
window = "15m"
failed_runs = 2
failing_tests = 1
recovery_runs = 2
hold = "1m"
forget = "20m"

[rules.speed]
kind = "speed"
window = "6m"
reference = "30m"
min_runs = 2
max_ratio = 6.0
clear_below = 3.0
"""
PATROL_TOML = """
[patrol]
look_every = "30s"
time_limit = "30m"
[budget]
cpu_hours = 4
[backoff]
first = "1m"
ceiling = "2m"
[entries.read]
test = "./repository/read"
sites = {sites}
every = "2m"
in_flight = 8
[entries.idea]
repository = "./repository"
path = "idea"
branch = "main"
sites = ["{changed}"]
in_flight = 2
"""
#: A server that is down fails a job within seconds; clients of a restarting one reconnect.
TEST_TOML = """
[test]
name = "{name}"
payload = "read.sh"
files = ["read.py"]
dataset = "{dataset}"
tree = "events"
repeats = {repeats}
rounds = 1
passes = {passes}
wall_limit_s = 240
[matrix]
root = [{releases}]
branches = [{branches}]
cache_mb = [0]
cache = ["warm"]
bundle = ["root"]
[environment]
XRD_CONNECTIONWINDOW = "10"
XRD_CONNECTIONRETRY = "1"
XRD_STREAMERRORWINDOW = "20"
"""
#: An executable, for which no checksum job is planned: half of the CPU time.
READ_SH = """#!/bin/sh
PYTHONPATH=$TREEHAMMER_KIT:$PYTHONPATH exec python3 "$(dirname "$0")/read.py"
"""
READ_PY = '''import treehammer_kit

treehammer_kit.run(
    """
    #include <RVersion.h>
    void read(treehammer::Pass &pass)
    {
       volatile unsigned long value = 1;
       for (Long64_t entry : pass.entries) {
          pass.Add(pass.tree->GetEntry(entry));
          unsigned long turns = TURNS;
    #if ROOT_VERSION_CODE >= ROOT_VERSION(6, 40, 0)
          turns += MORE_TURNS;
    #endif
          for (unsigned long turn = 0; turn < turns; turn++)
             value = value * 3 + turn;
       }
    }
    """
)
'''
#: Turns of the loop per entry, enough for the 2 s of CPU that a verdict needs, and those that the
#: slower commit adds with the newer release.
TURNS, MORE_TURNS = 150_000, 75_000


@dataclass(frozen=True)
class StoryRow:
    """Planted event with its verdict.

    Attributes:
        minute: time of the event since the patrol began.
        planted: the event, at which site.
        expected: the verdict that it should have; '' for none.
        verdict: the verdict that was found.
        holds_after_s: delay of the time since which the verdict holds.
        decided_after_s: delay of its recording.
        reason: the engine's reason.
    """

    minute: float
    planted: str
    expected: str
    verdict: str
    holds_after_s: float | None
    decided_after_s: float | None
    reason: str

    @property
    def correct(self) -> bool:
        """Whether the expected verdict was found, and not before the event."""
        return self.expected == self.verdict and (self.holds_after_s or 0) >= 0

    def __str__(self) -> str:
        times = [
            "" if one is None else f"{one:.0f} s"
            for one in (self.holds_after_s, self.decided_after_s)
        ]
        mark = "" if self.correct else f"  EXPECTED {self.expected} after the event"
        return (
            f"{self.minute:6.1f}  {self.planted:42}  {self.verdict:10}  {times[0]:>6}  {times[1]:>6}"
            f"  {self.reason}{mark}"
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--patrol-minutes",
        type=float,
        default=60,
        help=f"patrol-story: length, at least {MIN_MINUTES} for the whole story (default: 60)",
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Run the patrol over a testbed, plant the events and compare the history with them."""
    with (
        _story_testbed() as (box, parts),
        _WebhookReceiver() as receiver,
        tempfile.TemporaryDirectory() as name,
    ):
        story = PatrolStory(Path(name), box, parts, receiver)
        story.run(float(options.patrol_minutes))
        rows, others = story.examine()
    write_rows("patrol-story", [asdict(row) for row in rows])
    print("minute  planted                                     verdict      holds  decided  reason")
    for line in (*rows, *others):
        print(line)
    if _count_wrong(rows) or others:
        raise TreehammerError(
            f"{_count_wrong(rows)} verdicts are missing or wrong, {len(others)} have no cause",
            where="patrol story",
        )
    return [
        RatioFigure("patrol story: missing or wrong verdicts", _count_wrong(rows), upper_bound=0),
        RatioFigure("patrol story: verdicts that nothing caused", len(others), upper_bound=0),
    ]


def _count_wrong(rows: Sequence[StoryRow]) -> int:
    return sum(not row.correct for row in rows)


@contextmanager
def _story_testbed() -> Iterator[tuple[Workspace, list[Component]]]:
    """Run a testbed with the data at each site, and the newer server unpacked."""
    settings = config.load_settings()
    box = workspace.define_workspace(f"story{os.getpid()}", SITES, settings)
    parts = component_list.build_components(box)
    xrootd_storage.install_servers(NEW_SUITE, box.cache, _say)
    lifecycle.bring_up(box, parts, _say)
    try:
        replica_files.place_dataset(DATASET, FolderCatalogue(settings.datasets_dir), box)
        yield box, parts
    finally:
        lifecycle.take_down(box, parts, _say)


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)


class _WebhookReceiver:
    """Receives the messages of alarms, with their time."""

    def __init__(self) -> None:
        self.received: list[tuple[int, dict[str, Any]]] = []
        receiver = self

        class WebhookHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.received.append((_now_us(), json.loads(body)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), WebhookHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> _WebhookReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class PatrolStory:
    """A patrol in a folder of its own, and the events that are planted while it runs.

    Args:
        folder: an empty folder.
        box: a running testbed of :data:`SITES` sites.
        parts: its components.
        receiver: receives the messages.
    """

    def __init__(
        self, folder: Path, box: Workspace, parts: Sequence[Component], receiver: _WebhookReceiver
    ) -> None:
        self._folder = folder
        self._box = box
        self._parts = parts
        self._receiver = receiver
        self._faults = {BROKEN: ExitStack(), SLOWED: ExitStack()}
        self._planted: dict[str, int] = {}
        self._slower_commit = ""
        self._write_files()
        self.settings: Settings = config.load_settings(environ={}, folder=folder)

    # Files

    def _write_files(self) -> None:
        sites = component_list.sites_file_path(self._box)
        (self._folder / "rules.toml").write_text(RULES_TOML)
        (self._folder / "treehammer.toml").write_text(
            f'sites_file = "{sites}"\ndata_dir = "{self._folder / "data"}"\n'
            f'cache_dir = "{config.load_settings().cache_dir}"\n'
            f'status_rules = "{self._folder / "rules.toml"}"\n'
            f'alarm_webhook_url = "{self._receiver.url}"\n'
        )
        names = json.dumps(list(self._box.sites))
        (self._folder / "patrol.toml").write_text(PATROL_TOML.format(sites=names, changed=CHANGED))
        self._write_test("read", "6.40.00", repeats=1, passes=2, branches=0.02, turns=0, more=0)
        self._write_idea(0)
        self._git("init", "--quiet", "--initial-branch=main")
        self._commit("first idea")

    def _write_idea(self, more: int) -> None:
        self._write_test(
            "idea", "6.38.00", "6.40.00", repeats=3, passes=3, branches=0.02, turns=TURNS, more=more
        )

    def _write_test(
        self,
        name: str,
        *releases: str,
        repeats: int,
        passes: int,
        branches: float,
        turns: int,
        more: int,
    ) -> None:
        folder = self._folder / "repository" / name
        folder.mkdir(parents=True, exist_ok=True)
        text = TEST_TOML.format(
            name=name,
            dataset=DATASET,
            repeats=repeats,
            passes=passes,
            branches=branches,
            releases=", ".join(f'"{one}"' for one in releases),
        )
        (folder / "test.toml").write_text(text)
        payload = READ_PY.replace("MORE_TURNS", str(more)).replace("TURNS", str(turns))
        (folder / "read.py").write_text(payload)
        (folder / "read.sh").write_text(READ_SH)
        (folder / "read.sh").chmod(0o755)

    def _commit(self, text: str) -> None:
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", text)

    def _git(self, *arguments: str) -> str:
        who = ("-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false")
        command, folder = ["git", *who, *arguments], self._folder / "repository"
        done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()

    # The patrol and the events

    def run(self, minutes: float) -> None:
        """Let the patrol run for some minutes while events are planted."""
        events = {
            0.17: self._break_site,
            0.25: self._commit_slower_payload,
            0.30: self._upgrade_site,
            0.45: self._repair_site,
            0.50: self._slow_site,
            0.72: self._restore_speed,
        }
        log = self._folder / "patrol.log"
        command = [sys.executable, "-m", "treehammer", "patrol", "run", "patrol.toml"]
        begin = time.monotonic()
        self._mark("begin")
        with log.open("w") as stream:
            patrol = subprocess.Popen(command, cwd=self._folder, stderr=stream)
            try:
                for share, plant in events.items():
                    self._wait(patrol, begin + 60 * minutes * share)
                    plant()
                self._wait(patrol, begin + 60 * minutes)
            finally:
                for faults in self._faults.values():
                    faults.close()
                patrol.send_signal(signal.SIGTERM)
                try:
                    patrol.wait(60)
                except subprocess.TimeoutExpired:
                    patrol.kill()
                    patrol.wait()
                print(log.read_text())

    def _wait(self, patrol: subprocess.Popen[bytes], until: float) -> None:
        """Wait until a time; a patrol that ends before is an error."""
        try:
            patrol.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return
        raise RuntimeError(f"the patrol ended with exit code {patrol.returncode}")

    def _mark(self, event: str) -> None:
        self._planted[event] = _now_us()
        _say(event)

    def _break_site(self) -> None:
        self._mark("break")
        self._faults[BROKEN].enter_context(
            fault_injection.stop_daemon(self._box, self._parts, f"xrootd-{BROKEN}")
        )

    def _repair_site(self) -> None:
        self._faults[BROKEN].close()
        self._mark("repair")

    def _commit_slower_payload(self) -> None:
        self._write_idea(MORE_TURNS)
        self._commit("a slower idea")
        self._slower_commit = self._git("rev-parse", "HEAD")
        self._mark("commit")

    def _upgrade_site(self) -> None:
        command = [sys.executable, "-m", "treehammer", "testbed", "upgrade"]
        command += [UPGRADED, "root", NEW_SUITE, "--name", self._box.name]
        subprocess.run(command, check=True)
        self._mark("upgrade")

    def _slow_site(self) -> None:
        self._mark("slow")
        self._faults[SLOWED].enter_context(
            fault_injection.slow_daemon(
                self._box, f"xrootd-{SLOWED}", stopped_s=STOPPED_S, running_s=RUNNING_S
            )
        )

    def _restore_speed(self) -> None:
        self._faults[SLOWED].close()
        self._mark("restore")

    # Examination

    def examine(self) -> tuple[list[StoryRow], list[str]]:
        """Return the events with their verdicts, and the verdicts that no event caused."""
        with Store.open(self.settings.database) as store:
            rows, others = self._compare_states(list_state_changes(store))
            rows += [self._find_version_mark(store), *self._follow_regression(store)]
            _print_cost(store)
        return sorted(rows, key=lambda row: row.minute), others

    def _compare_states(
        self, changes: Sequence[StatusChangeRow]
    ) -> tuple[list[StoryRow], list[str]]:
        """Compare each site's states, of jobs and of storage, with the planted ones."""
        expected = {
            BROKEN: (("break", "critical", "storage stopped"), ("repair", "ok", "repaired")),
            SLOWED: (("slow", "warning", "storage slowed"), ("restore", "ok", "full speed again")),
        }
        by_subject: Mapping[tuple[str, str], list[StatusChangeRow]] = _group_changes(changes)
        rows: list[StoryRow] = []
        others: list[str] = []
        for site in self._box.sites:
            for kind in SUBJECT_KINDS:
                wanted = (("begin", "ok", "patrol begins"), *expected.get(site, ()))
                found = iter(by_subject[site, kind])
                for event, state, text in wanted:
                    planted = f"{site}, {_KIND_NAMES[kind]}: {text}"
                    rows.append(self._compare(event, planted, state, next(found, None)))
                others += [
                    f"not planted: {site} {_KIND_NAMES[kind]}: {one.previous} -> {one.state} at "
                    f"{self._minute(one.since_us):.1f} min: {one.reason}"
                    for one in found
                ]
        others += [
            f"not planted: central event: {one.reason}"
            for one in changes
            if one.subject_kind not in SUBJECT_KINDS
        ]
        return rows, others

    def _compare(
        self, event: str, planted: str, state: str, found: StatusChangeRow | None
    ) -> StoryRow:
        if found is None:
            return self._make_row(event, planted, state, "none", None, None)
        times = found.since_us, found.decided_us
        return self._make_row(event, planted, state, found.state, *times, reason=found.reason)

    def _make_row(
        self,
        event: str,
        planted: str,
        expected: str,
        verdict: str,
        since_us: int | None,
        decided_us: int | None,
        *,
        reason: str = "",
    ) -> StoryRow:
        planted_us = self._planted[event]

        def delay(time_us: int | None) -> float | None:
            return None if time_us is None else round((time_us - planted_us) / _US, 1)

        minute = round(self._minute(planted_us), 2)
        return StoryRow(
            minute, planted, expected, verdict, delay(since_us), delay(decided_us), reason
        )

    def _minute(self, time_us: int) -> float:
        return (time_us - self._planted["begin"]) / _US / 60

    def _find_version_mark(self, store: ResultsReader) -> StoryRow:
        """Find the first measurement with the version to which the server was upgraded."""
        chosen = Selection(conditions=(Condition("site", "=", UPGRADED),))
        rows = list(store.measurements(chosen, ("server_version", "started_us", "ended_us")))
        rows.sort(key=lambda row: int(str(row["started_us"])))
        versions = list(dict.fromkeys(row["server_version"] for row in rows))
        after = [row for row in rows if row["server_version"] == versions[-1]]
        first = after[0] if len(versions) == 2 else None
        times = (
            (int(str(first[one])) for one in ("started_us", "ended_us")) if first else (None,) * 2
        )
        return self._make_row(
            "upgrade",
            f"{UPGRADED}: server upgraded",
            "mark",
            "mark" if first else "none",
            *times,
            reason=" -> ".join(map(str, versions)),
        )

    def _follow_regression(self, store: Store) -> list[StoryRow]:
        """Follow the slower commit: suspected, confirmed by the patrol's rerun, announced."""
        check = self._find_check(store)
        planted = f"{CHANGED}: slower payload committed: "
        first, rerun, message = (f"{planted}{one}" for one in ("first run", "rerun", "message"))
        if check is None:
            return [
                self._make_row("commit", first, "suspected", "none", None, None),
                self._make_row("commit", rerun, "confirmed", "none", None, None),
                self._follow_message(message, None),
            ]
        suspected = "suspected" if check.slower else str(check.state)
        reruns = (
            one.claimed_us
            for one in fetch_report(store).starts
            if one.campaign_id == check.rerun_id and one.occasion.startswith("rerun:")
        )
        rerun_us = next(reruns, None)
        confirmed_us = check.changed_us if check.state == CheckState.CONFIRMED else None
        return [
            self._make_row(
                "commit", first, "suspected", suspected, None, check.checked_us, reason=check.text
            ),
            self._make_row(
                "commit", rerun, "confirmed", str(check.state) if rerun_us else "none",
                rerun_us, check.changed_us, reason="rerun started by the patrol" if rerun_us else "",
            ),
            self._follow_message(message, confirmed_us),
        ]  # fmt: skip

    def _find_check(self, store: Store) -> ReleaseCheck | None:
        """Find the patrol's check of the slower commit."""
        starts = PatrolStarts(store, PatrolLease(store, "reader"))
        start = starts.find_start("idea", f"commit:{self._slower_commit}")
        if start is None:
            return None
        checks = ReleaseCheckTable(store).list_checks()
        return next((one for one in checks if one.campaign_id == start.campaign_id), None)

    def _follow_message(self, planted: str, confirmed_us: int | None) -> StoryRow:
        """Check that the regression was announced once, after it was confirmed."""
        sent = [at for at, one in self._receiver.received if one["kind"] == "regression"]
        once = len(sent) == 1 and confirmed_us is not None and sent[0] >= confirmed_us
        verdict = "announced once" if once else f"{len(sent)} messages"
        return self._make_row(
            "commit", planted, "announced once", verdict, None, sent[0] if sent else None
        )


_KIND_NAMES = dict(zip(SUBJECT_KINDS, ("jobs", "storage"), strict=True))


def _group_changes(
    changes: Sequence[StatusChangeRow],
) -> dict[tuple[str, str], list[StatusChangeRow]]:
    found: defaultdict[tuple[str, str], list[StatusChangeRow]] = defaultdict(list)
    for one in changes:
        found[one.site, one.subject_kind].append(one)
    return found


def _print_cost(store: Store) -> None:
    report = fetch_report(store)
    cpu_s = sum(one.use.cpu_s for one in report.sites)
    print(f"  {len(report.starts)} latest starts, {cpu_s:.0f} s of CPU charged")


def _now_us() -> int:
    return time.time_ns() // 1000
