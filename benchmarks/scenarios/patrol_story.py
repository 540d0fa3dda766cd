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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import RatioFigure, print_table, write_results
from benchmarks.scenarios.story_examination import (
    BROKEN,
    CHANGED,
    IN_DOWNTIME,
    OVERRIDDEN,
    SLOWED,
    UPGRADED,
    StoryExamination,
)
from treehammer import config
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.errors import TreehammerError
from treehammer.sql.write.store import Store
from treehammer.testbed import faults, lifecycle, workspace
from treehammer.testbed.component import Component
from treehammer.testbed.components import site_list, xrootd_storage
from treehammer.testbed.components.site_list import sites_file_path
from treehammer.testbed.workspace import Workspace

SITES = 6
#: Suite of Debian to which a server is upgraded.
NEW_SUITE = "sid"
DATASET = "reference-small"
GIT_AUTHOR = ("-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false")
#: Seconds for which a slow server does not answer, and answers, in turn.
STOPPED_S, RUNNING_S = 0.95, 0.05
#: Share of the story for which a site is in a downtime.
DOWNTIME_SHARE = 0.2
#: Minutes that the whole story needs at least.
MIN_MINUTES = 20

#: The reference of the rule for speed is more than twice as long as the server is slow, because a
#: site that stays slow becomes its own reference.
RULES_TOML = """
step = "15s"
reevaluate = "2h"

[probes]
every = "1m"

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
branches = [0.02]
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
        with Store.open(story.settings.database) as store:
            examination = StoryExamination(
                store, story.planted, receiver.received, story.slower_commit
            )
            rows, unplanned = examination.examine(box.sites)
            unplanned += examination.list_jobs_at_excluded_sites()
    table = [{**asdict(row), "correct": row.correct} for row in rows]
    write_results("patrol-story", table)
    print_table(table)
    print(*unplanned, sep="\n")
    wrong = sum(not row.correct for row in rows)
    if wrong or unplanned:
        raise TreehammerError(
            f"{wrong} verdicts are missing or wrong, {len(unplanned)} have no cause",
            where="patrol story",
        )
    return [
        RatioFigure("patrol story: missing or wrong verdicts", wrong, upper_bound=0),
        RatioFigure("patrol story: verdicts that nothing caused", len(unplanned), upper_bound=0),
    ]


@contextmanager
def _story_testbed() -> Iterator[tuple[Workspace, list[Component]]]:
    """Run a testbed with the data at each site, and the newer server unpacked."""
    settings = config.load_settings()
    box = workspace.define_workspace(f"story{os.getpid()}", SITES, settings)
    parts = site_list.build_components(box)
    xrootd_storage.install_servers(NEW_SUITE, box.cache, _say)
    with lifecycle.run_testbed(box, parts, _say):
        site_list.place_dataset(DATASET, FolderCatalogue(settings.datasets_dir), box)
        yield box, parts


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
        self.planted: dict[str, int] = {}
        self.slower_commit = ""
        self._minutes = 0.0
        self._repository = folder / "repository"
        self._repository.mkdir()
        self._run_git("init", "--quiet", "--initial-branch=main")
        self._write_files()
        self.settings: Settings = config.load_settings(environ={}, folder=folder)

    # Files

    def _write_files(self) -> None:
        sites = sites_file_path(self._box)
        (self._folder / "rules.toml").write_text(RULES_TOML)
        (self._folder / "treehammer.toml").write_text(
            f'sites_file = "{sites}"\ndata_dir = "{self._folder / "data"}"\n'
            f'cache_dir = "{config.load_settings().cache_dir}"\n'
            f'status_rules = "{self._folder / "rules.toml"}"\n'
            f'alarm_webhook_url = "{self._receiver.url}"\n'
        )
        names = json.dumps(list(self._box.sites))
        (self._folder / "patrol.toml").write_text(PATROL_TOML.format(sites=names, changed=CHANGED))
        self._write_test("read", "6.40.00", repeats=1, passes=2, turns=0, more=0)
        self._write_idea(0)
        self._commit("first idea")

    def _write_idea(self, more: int) -> None:
        self._write_test("idea", "6.38.00", "6.40.00", repeats=3, passes=3, turns=TURNS, more=more)

    def _write_test(
        self, name: str, *releases: str, repeats: int, passes: int, turns: int, more: int
    ) -> None:
        folder = self._repository / name
        folder.mkdir(exist_ok=True)
        definition = TEST_TOML.format(
            name=name,
            dataset=DATASET,
            repeats=repeats,
            passes=passes,
            releases=", ".join(f'"{release}"' for release in releases),
        )
        payload = READ_PY.replace("MORE_TURNS", str(more)).replace("TURNS", str(turns))
        files = {"test.toml": definition, "read.py": payload, "read.sh": READ_SH}
        for file, text in files.items():
            (folder / file).write_text(text)
        (folder / "read.sh").chmod(0o755)

    def _commit(self, text: str) -> str:
        """Commit everything; return the commit."""
        self._run_git("add", "--all")
        self._run_git("commit", "--quiet", "--message", text)
        return self._run_git("rev-parse", "HEAD")

    def _run_git(self, *arguments: str) -> str:
        command = ("git", *GIT_AUTHOR, *arguments)
        completed = subprocess.run(command, cwd=self._repository, check=True, capture_output=True)
        return completed.stdout.decode().strip()

    # The patrol and the events

    def run(self, minutes: float) -> None:
        """Let the patrol run for some minutes while events are planted."""
        self._minutes = minutes
        events = {
            0.17: self._break_site,
            0.25: self._commit_slower_payload,
            0.30: self._upgrade_site,
            0.45: self._repair_site,
            0.50: self._slow_site,
            0.55: self._override_state,
            0.58: self._announce_downtime,
            0.72: self._restore_speed,
            0.75: self._end_override,
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
                for stack in self._faults.values():
                    stack.close()
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
        self.planted[event] = _now_us()
        _say(event)

    def _break_site(self) -> None:
        self._mark("break")
        self._faults[BROKEN].enter_context(
            faults.stop_daemon(self._box, self._parts, f"xrootd-{BROKEN}")
        )

    def _repair_site(self) -> None:
        self._faults[BROKEN].close()
        self._mark("repair")

    def _commit_slower_payload(self) -> None:
        self._write_idea(MORE_TURNS)
        self.slower_commit = self._commit("a slower idea")
        self._mark("commit")

    def _upgrade_site(self) -> None:
        command = [sys.executable, "-m", "treehammer", "testbed", "upgrade"]
        command += [UPGRADED, "root", NEW_SUITE, "--name", self._box.name]
        subprocess.run(command, check=True)
        self._mark("upgrade")

    def _slow_site(self) -> None:
        self._mark("slow")
        self._faults[SLOWED].enter_context(
            faults.slow_daemon(
                self._box, f"xrootd-{SLOWED}", stopped_s=STOPPED_S, running_s=RUNNING_S
            )
        )

    def _override_state(self) -> None:
        self._mark("override")
        reason = ("--why", "disk server burns", "--until", "1d")
        self._run_command("sites", "override", OVERRIDDEN, "critical", *reason)

    def _end_override(self) -> None:
        self._mark("end override")
        self._run_command("sites", "end-override", OVERRIDDEN)

    def _announce_downtime(self) -> None:
        now = round(time.time())
        end = now + round(60 * self._minutes * DOWNTIME_SHARE)
        entry = {"site": IN_DOWNTIME, "start": now, "end": end, "description": "new disks"}
        (self._folder / "downtimes.json").write_text(json.dumps([entry]))
        self._run_command("sites", "downtimes", "import", "downtimes.json")
        _say("downtime")
        self.planted |= {"downtime": now * 1_000_000, "downtime ends": end * 1_000_000}

    def _run_command(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "treehammer", *arguments]
        subprocess.run(command, check=True, cwd=self._folder)

    def _restore_speed(self) -> None:
        self._faults[SLOWED].close()
        self._mark("restore")


def _now_us() -> int:
    return time.time_ns() // 1000
