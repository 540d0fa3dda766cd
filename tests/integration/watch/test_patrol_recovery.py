"""A site that breaks and recovers under a patrol, with real jobs and all intervals in seconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from polling import wait_until

from treehammer import config
from treehammer.analysis.status.site_uses import Usability
from treehammer.collectors.record.day_numbers import current_us
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.core.subjects import SITE, STORAGE_SITE
from treehammer.sql.read.reader import ResultsReader
from treehammer.submit.batch.local_batch import LocalBatch
from treehammer.watch.patrol import patrol_service
from treehammer.watch.patrol.patrol_file import read_patrol_file
from treehammer.watch.patrol.patrol_service import Patrol, open_patrol
from treehammer.watch.states.site_status import list_uses
from treehammer.watch.store.state_history import list_state_changes

SITES_TOML = """
[sites.SITE_A]
doors = [{name = "file", protocol = "file", prefix = "/a"}]
[sites.SITE_B]
doors = [{name = "file", protocol = "file", prefix = "/b"}]
"""
RULES_TOML = """
step = "1s"
reevaluate = "1h"
[probes]
every = "3s"
[rules.exclusion]
kind = "tests"
window = "30m"
failed_runs = 2
failing_tests = 1
recovery_runs = 2
hold = "1s"
forget = "30m"
"""
PATROL_TOML = """
[entries.read]
test = "./test"
sites = ["all"]
every = "3s"
"""
TEST_TOML = """
[test]
name = "read"
payload = "read.sh"
repeats = 2
rounds = 1
wall_limit_s = 60
"""
#: Its storage answers unless the file BROKEN exists.
READ_SH = """#!/bin/sh
failure=null
if grep -q '"site": "SITE_B"' "$TREEHAMMER_JOB" && [ -e {broken} ]; then
  failure='{{"failure_class": "open", "kind": "", "phase": "open", "message": "refused", "transient": true}}'
fi
echo '{{"format": 1, "values": {{}}, "extras": {{}}, "failure": '"$failure"'}}' > "$TREEHAMMER_RESULT"
"""


class Story:
    """A patrol over two sites of this machine.

    Attributes:
        broken: file that exists while the storage of SITE_B is broken.
    """

    def __init__(self, folder: Path) -> None:
        self.broken = folder / "broken"
        (folder / "test").mkdir()
        read = folder / "test/read.sh"
        for path, text in {
            folder / "sites.toml": SITES_TOML,
            folder / "rules.toml": RULES_TOML,
            folder / "patrol.toml": PATROL_TOML,
            folder / "test/test.toml": TEST_TOML,
            read: READ_SH.format(broken=self.broken),
        }.items():
            path.write_text(text)
        read.chmod(0o755)
        flags = {
            "data_dir": folder / "data",
            "cache_dir": folder / "cache",
            "sites_file": folder / "sites.toml",
            "status_rules": folder / "rules.toml",
            "local_slots": 4,
        }
        self.settings = config.load_settings(flags, environ={}, folder=folder)
        self.file = read_patrol_file(folder / "patrol.toml")

    def run_until(
        self, patrol: Patrol, condition: Callable[[ResultsReader], object], description: str
    ) -> None:
        """Run rounds until the database fulfills a condition."""

        def is_fulfilled() -> bool:
            patrol.run_round()
            with ResultsReader.open(self.settings.database) as reader:
                return bool(condition(reader))

        wait_until(is_fulfilled, description)


def list_campaigns(reader: ResultsReader, site: str, *, probes: bool) -> list[CampaignRow]:
    """List the campaigns with ended jobs at a site, probes or others, newest first."""
    return [
        campaign
        for campaign in reader.campaigns()
        if campaign.name.startswith("read probe ") is probes
        and any(job.site == site and job.state == "done" for job in reader.jobs(campaign.id))
    ]


def is_in_use(site: str, usability: Usability) -> Callable[[ResultsReader], bool]:
    return lambda reader: list_uses(reader).summarize(site) is usability


def test_broken_site_gets_probes_until_it_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patrol_service, "WATCH_S", 0)
    story = Story(tmp_path)
    with open_patrol(story.settings, story.file) as patrol:
        run_until = partial(story.run_until, patrol)
        run_until(is_in_use("SITE_B", Usability.USABLE), "SITE_B is judged")
        run_until(lambda reader: list_campaigns(reader, "SITE_B", probes=False), "SITE_B is used")

        story.broken.touch()
        run_until(is_in_use("SITE_B", Usability.PROBE_ONLY), "SITE_B gets probes only")
        run_until(
            lambda reader: len(list_campaigns(reader, "SITE_B", probes=True)) > 1,
            "SITE_B is probed",
        )
        run_until(is_in_use("SITE_B", Usability.PROBE_ONLY), "failed probes change nothing")

        story.broken.unlink()
        run_until(is_in_use("SITE_B", Usability.USABLE), "probes let SITE_B recover")
        recovered_us = current_us()
        run_until(
            lambda reader: (
                list_campaigns(reader, "SITE_B", probes=False)[0].created_us > recovered_us
            ),
            "SITE_B is used again",
        )
    LocalBatch(story.settings.spool_dir).abandon()

    with ResultsReader.open(story.settings.database) as reader:
        for kind in (SITE, STORAGE_SITE):
            changes = [
                change
                for change in list_state_changes(reader, site="SITE_B")
                if change.subject_kind == kind
            ]
            states = [change.state for change in changes if change.state != "warning"]
            assert states == ["ok", "critical", "ok"], changes
            assert [row.state for row in list_state_changes(reader, site="SITE_A")] == ["ok"] * 2
        excluded, recovered = (change.decided_us for change in changes[1:3])
        between = [
            campaign
            for campaign in reader.campaigns()
            if excluded < campaign.created_us < recovered
            and any(job.site == "SITE_B" for job in reader.jobs(campaign.id))
        ]
        assert len(between) > 1
        assert {len(reader.jobs(campaign.id)) for campaign in between} == {1}
