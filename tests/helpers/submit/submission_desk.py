"""A user with two sites who plans a campaign."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from click.testing import Result
from plan_factory import SHELL_TEST
from repository_code import invoke_command

from treehammer.config import load_settings
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_request import plan_request
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import CampaignRequest, SubmissionOptions

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


class SubmissionDesk:
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
        return invoke_command(command, self.settings, *arguments)

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
        return plan_request(request, self.settings, bars=None)


def list_sites(plan: Plan) -> list[str]:
    return [site.name for site in plan.sites]


def list_doors(plan: Plan) -> list[str]:
    return sorted({f"{job.access.storage.name}:{job.access.door.name}" for job in plan.jobs})
