"""A prediction checked by a campaign: a real ROOT reads a real XRootD server at another distance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from repository_code import call_command
from spool_harness import SpoolHarness
from storage_alone import run_storage

from treehammer import config
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.errors import ExitCode
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Site
from treehammer.testbed import network
from treehammer.testbed.components import dataset_placement

pytestmark = [pytest.mark.root, pytest.mark.slow]

SITE, LATENCY_MS = "SITE_A", 60


@pytest.fixture
def settings(tiny_catalogue: FolderCatalogue, tmp_path: Path) -> Iterator[Settings]:
    """A site with ``tiny`` at its server; jobs run on this machine."""
    flags = {"data_dir": tmp_path / "data", "sites_file": tmp_path / "sites.toml"}
    opened = config.load_settings(flags, environ={}, folder=tmp_path)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "datasets").symlink_to(tiny_catalogue.root)
    settings = replace(opened, cache_dir=cache)
    (cache / "software").symlink_to(opened.software_dir)
    with run_storage(network.PROXY, sites=1) as storage:
        doors = [door for door in storage.doors(SITE) if door.name == "root"]
        site = Site(name=SITE, batch="local", doors=tuple(doors))
        sites_file.write_sites_file([site], [], tmp_path / "sites.toml")
        dataset_placement.place_dataset("tiny", tiny_catalogue, storage.box)
        yield settings
        bench = SpoolHarness(settings.data_dir / "bench", spool=settings.spool_dir)
        bench.kill_runner()
        bench.end_processes()


def test_wall_time_at_a_distance_is_predicted_and_measured(settings: Settings) -> None:
    axes = ("root=6.40.00", "branches=1", "cache_mb=0")
    options = [word for axis in axes for word in ("-P", axis)]
    small = [word for key in ("repeats", "rounds") for word in ("-S", f"{key}=1")]
    test = ("ttree-read", "--sites", SITE, "-S", "dataset=tiny", "--wait")
    done = call_command("submit", settings, *test, *options, *small)
    assert done.return_value == ExitCode.DONE, done.output
    done = call_command(
        "explain", settings, "--if", f"latency_ms={LATENCY_MS}", "--verify", "--json"
    )
    (row,) = json.loads(done.stdout)
    # Each basket is read by a call of its own.
    assert row["measured_wall_s"] > LATENCY_MS / 1e3 * 50 > 2 * row["wall_s"], row
    # Other tests run meanwhile, so that calls wait for a CPU, too.
    assert row["difference"] == pytest.approx(0, abs=0.25), row
