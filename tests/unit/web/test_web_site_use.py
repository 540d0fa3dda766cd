"""Use of sites: the same on pages, on the command line, in the plugin and for Prometheus."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from service_thread import ServiceThread, run_service
from status_story import make_recent_runs

from treehammer.analysis.status.site_status import list_uses, update_states
from treehammer.analysis.status.status_rules import load_shipped_rules
from treehammer.cli import cli
from treehammer.sql.core.watch_rows import OverrideRow
from treehammer.sql.watch.state_history import KIND_WORDS, add_override
from treehammer.sql.write.store import Store

USES = {
    ("SITE_A", "jobs"): "usable",
    ("SITE_A", "storage"): "usable",
    ("SITE_B", "jobs"): "probe only",
    ("SITE_B", "storage"): "probe only",
    ("SITE_C", "jobs"): "usable",
    ("SITE_C", "storage"): "excluded",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a database in which one site works, one fails, and the storage of one is excluded."""
    folder = tmp_path_factory.mktemp("use")
    now_us = time.time_ns() // 1000
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        store.add(make_recent_runs({"SITE_A": True, "SITE_B": False, "SITE_C": True}))
        override = OverrideRow(
            "", "SITE_C", "storage_site", "critical", "ada", "disk burns", now_us, 2 * now_us
        )
        add_override(store, override)
        add_override(store, replace(override, site="SITE_A:https", subject_kind="door"))
        update_states(store, time.time_ns() // 1000, load_shipped_rules())
    return folder


@pytest.fixture(scope="module")
def use_service(folder: Path) -> Iterator[ServiceThread]:
    with run_service(folder, reading_open=True) as running:
        yield running


def run(folder: Path, *words: str) -> str:
    options = ["--database", f"sqlite:///{folder / 'results.db'}"]
    return CliRunner().invoke(cli, [*options, *words], catch_exceptions=False).stdout


def test_use_is_the_same_everywhere(folder: Path, use_service: ServiceThread) -> None:
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        uses = list_uses(store).by_subject
    with_door = {**USES, ("SITE_A:https", "door"): "excluded"}
    assert {
        (site, KIND_WORDS[kind]): use.usability.value for (kind, site), use in uses.items()
    } == with_door
    printed = json.loads(run(folder, "sites", "status", "--json"))
    assert {(row["site"], row["of"]): row["use"] for row in printed} == with_door
    families = text_string_to_metric_families(use_service.load_page("/metrics"))
    (family,) = (family for family in families if family.name == "treehammer_site_use")
    exported = {
        (sample.labels["site"], sample.labels["of"]): sample.labels["use"]
        for sample in family.samples
        if sample.value and not sample.labels["door"]
    }
    assert exported == USES
    assert {
        (sample.labels["site"], sample.labels["door"]): sample.labels["use"]
        for sample in family.samples
        if sample.value and sample.labels["door"]
    } == {("SITE_A", "https"): "excluded"}
    for site in ("SITE_A", "SITE_B", "SITE_C"):
        states = use_service.load_tables(f"/sites/{site}")["states"]
        assert {(site, row["of"]): row["use"] for row in states} == {
            key: use
            for key, use in {**USES, ("SITE_A", "door https"): "excluded"}.items()
            if key[0] == site
        }
        plugin = run(folder, "check", "--site", site, "-v")
        for (name, of), use in USES.items():
            if name == site:
                (line,) = (line for line in plugin.splitlines() if line.startswith(f"{of}: "))
                assert f", {use}, by " in line
    sites = {row["site"]: row["use"] for row in use_service.load_tables("/sites")["sites"]}
    assert sites == {"SITE_A": "usable", "SITE_B": "probe only", "SITE_C": "excluded"}
