"""A thing of each kind that can be added, from a folder outside the package."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from captured_runs import run_captured
from click.testing import CliRunner
from plan_factory import SHELL_TEST, make_grid_plan
from service_thread import StartService
from store_helpers import WriteExport

from treehammer.cli import cli
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.software import providers
from treehammer.collectors.worker_zipapp import build_worker
from treehammer.config import load_settings
from treehammer.datasets import doors
from treehammer.errors import ConfigError, SitesError
from treehammer.hctests import pinned_tests
from treehammer.sql.transfer.file_writers import find_format
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.job_rendering import render_jobs, write_preview
from treehammer.submit.planning.job_templates import fingerprint_template
from treehammer.submit.sites.site_registry import open_batch_system
from treehammer.submit.sites.sites_file import format_sites_file, read_sites_file
from treehammer.web import pages
from treehammer.web.pages import load_pages

InstallPackage = Callable[[str, str, dict[str, str]], Path]

_COMMAND = """
import click


@click.command()
def tides():
    click.echo("High water at noon.")
"""
_EXPORTER = """
from contextlib import contextmanager, nullcontext

from treehammer.sql.transfer.file_writers import ExportFormat


class CountSink:
    rows = 0

    def write(self, batch):
        self.rows += batch.num_rows

    def attach(self, companion):
        pass


@contextmanager
def open_sink(file, schema):
    sink = CountSink()
    yield sink
    file.write_text(str(sink.rows))


FORMAT = ExportFormat(lambda *_: nullcontext(open_sink))
"""


def test_command_of_another_package_runs(install_package: InstallPackage) -> None:
    install_package("tide_command", _COMMAND, {"treehammer.commands": "tides = tide_command:tides"})
    result = CliRunner().invoke(cli, ["tides"])
    assert (result.exit_code, result.output) == (0, "High water at noon.\n")
    assert re.search("tides +Command of the package tide_command", list_commands())
    assert "Did you mean 'tides'?" in CliRunner().invoke(cli, ["tidse"]).output


def test_broken_package_is_named(install_package: InstallPackage) -> None:
    install_package("broken_command", "", {"treehammer.commands": "ebb = broken_command:ebb"})
    assert re.search("ebb +Command of the package broken_command", list_commands())
    with pytest.raises(ConfigError, match="cannot be imported"):
        CliRunner().invoke(cli, ["ebb"], catch_exceptions=False)


def list_commands() -> str:
    return CliRunner().invoke(cli, ["--help"]).output


def test_format_of_another_package_is_written(
    install_package: InstallPackage, export_rows: Store, write: WriteExport
) -> None:
    folder = install_package(
        "count_exporter", _EXPORTER, {"treehammer.exporters": "count = count_exporter:FORMAT"}
    )
    assert write(folder / "x.count") == 8
    assert (folder / "x.count").read_text() == "8"
    assert find_format(".tide") is None


_DOOR_PROTOCOL = """
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from treehammer.datasets.doors.observations import FileObservation, ProbeResult

FILES = {"/tides/high": b"noon"}


def probe_server(prefix, target):
    return ProbeResult(details=f"read {prefix}")


def stat_file(url):
    return FileObservation(size=len(FILES[urlsplit(url).path]))


def read_file(url, size, advance, copy_to):
    return stat_file(url)


def write_file(source, url, advance):
    FILES[urlsplit(url).path] = Path(source).read_bytes()
    return stat_file(url)


def remove_file(url):
    del FILES[urlsplit(url).path]
    return FileObservation()
"""
_SITES = """
[sites.HARBOR]
[[sites.HARBOR.doors]]
name = "tide"
protocol = "tide"
prefix = "{prefix}"
"""


def test_door_protocol_of_another_package_is_used(install_package: InstallPackage) -> None:
    folder = install_package(
        "tide_protocol", _DOOR_PROTOCOL, {"treehammer.door_protocols": "tide = tide_protocol"}
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        prefix = f"tide://127.0.0.1:{server.getsockname()[1]}/tides"
        (folder / "sites.toml").write_text(_SITES.format(prefix=prefix))
        (door,) = read_sites_file(folder / "sites.toml").sites["HARBOR"].doors
        probe = doors.probe_door(door.prefix, doors.ProbeTarget(), is_local=False)
        assert (probe.problem, probe.details) == ("", f"read {prefix}")
        assert doors.stat_file(f"{prefix}/high").size == 4
        assert doors.read_file(f"{prefix}/high", 4).size == 4
        assert doors.probe_writing(f"{prefix}/low").failure == ""


_ROOT_PROVIDER = """
def locate(argument):
    return f"/tide/{argument}", ""


def set_up(location, environment):
    if location.endswith("low"):
        raise ValueError("no water")
    return "/usr/bin/python3", {**environment, "TIDE": location}
"""
_ON_NODE = """
import sys

sys.path[:0] = [sys.argv[1]]
from treehammer_node.collectors.job_spec import SoftwareRequest
from treehammer_node.collectors.software.providers import setup_software

setup = setup_software(SoftwareRequest("tide:high", "tide", "", "/tide/high"), {}, "kit")
print(setup.python, setup.env["TIDE"])
"""


def test_root_provider_of_another_package_travels_to_the_node(
    install_package: InstallPackage, tmp_path: Path
) -> None:
    install_package(
        "tide_provider", _ROOT_PROVIDER, {"treehammer.root_providers": "tide = tide_provider"}
    )
    request = providers.parse_software_request("tide:high")
    assert (request.provider, request.location) == ("tide", "/tide/high")
    assert providers.prepare_software(request, tmp_path) == request
    with pytest.raises(ExecutionError, match="tide:low: no water"):
        providers.setup_software(providers.parse_software_request("tide:low"), {}, tmp_path)
    worker = build_worker(tmp_path / "worker.pyz")
    command = [sys.executable, "-I", "-S", "-c", _ON_NODE, str(worker)]
    done = run_captured(command, check=True, cwd="/")
    assert done.stdout == "/usr/bin/python3 /tide/high\n"


_BATCH_SYSTEM = """
from pathlib import Path

from treehammer.submit.batch.interface import (BatchDeclaration, BatchSystem)


class TideBatch(BatchSystem):
    def __init__(self, name):
        self.name = name

    def submit(self, campaign_id, jobs):
        return {job.job_id: f"{self.name} {job.text}" for job in jobs}


def open_batch(argument, settings, load_pools):
    return TideBatch(argument)


BATCH = BatchDeclaration(
    open_batch, Path(__file__).with_name("tide.job.j2"), {"loud": lambda value: value.upper()}
)
"""
_BATCH_SITES = """
[sites.HARBOR]
batch = "tide@north"
python = "/opt/python3"
submit.account = "ocean"
[[sites.HARBOR.doors]]
name = "root"
protocol = "root"
prefix = "root://harbor.example//store"
"""


def test_batch_system_of_another_package_runs_jobs(
    install_package: InstallPackage, tmp_path: Path
) -> None:
    file = tmp_path / "sites.toml"
    file.write_text(_BATCH_SITES)
    with pytest.raises(SitesError, match="unknown batch system 'tide@north'"):
        read_sites_file(file)
    install_package(
        "tide_batch", _BATCH_SYSTEM, {"treehammer.batch_systems": "tide = tide_batch:BATCH"}
    )
    (tmp_path / "tide.job.j2").write_text("{{ executable }} {{ site.submit.account | loud }}")
    site = read_sites_file(file).sites["HARBOR"]
    assert (site.batch, site.pool, site.is_local) == ("tide@north", "", False)
    assert 'batch = "tide@north"' in format_sites_file([site], [], file)
    plan = make_grid_plan(tmp_path / "test", SHELL_TEST, site)
    (tmp_path / "out").mkdir()
    jobs = list(render_jobs(plan, tmp_path / "out", environ={}))
    settings = load_settings({}, environ={}, folder=tmp_path)
    batch = open_batch_system(site.batch, settings)
    batch_ids = batch.submit(plan.campaign_id, jobs)
    assert set(batch_ids.values()) == {"north /opt/python3 OCEAN"}
    assert len(batch_ids) == len(plan.jobs) > 0
    assert fingerprint_template(site).startswith("tide.job.j2 ")
    write_preview(plan, jobs, settings, tmp_path / "jobs")
    assert (tmp_path / "jobs/1/tide.job").read_text() == "/opt/python3 OCEAN"


_MODULE = '''
"""A page with one table."""

from treehammer.tables import DataTable, TableColumn
from treehammer.web.page import PageContent, PageOperation, page


@page(
    "/tides",
    "tides",
    menu="Tides",
    position=1,
    api=PageOperation("listTides", "Tides", {"tides": "high waters"}),
)
def tides_page(request):
    table = DataTable("tides", "Tides", (TableColumn("height", "Height"),), [{"height": 3}], "")
    return PageContent("Tides", [table])
'''


def test_page_is_found_by_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_service: StartService
) -> None:
    (tmp_path / "tides_page.py").write_text(_MODULE)
    monkeypatch.setattr(pages, "__path__", [*pages.__path__, str(tmp_path)])
    try:
        first = load_pages()[0]
        assert [operation.path for operation in first.operations] == ["/tides"]
        with start_service(reading_open=True) as service:
            assert "Tides" in service.load_page("/tides")
            assert "/tides" in service.load_page("/")
            tables = service.client.get("/tides?format=json").json()["tables"]
    finally:
        sys.modules.pop(f"{pages.__name__}.tides_page", None)
    assert tables == {"tides": [{"height": 3}]}


_SPEC = """
[dataset]
name = "tides"
description = "Heights of the water"
seed = 7
[raw]
files = 2
size = 1000
"""
_TEST = """
[test]
name = "waves"
payload = "read.sh"
dataset = "tides"
rounds = 1
[matrix]
root = ["none"]
[metrics.tide_m]
unit = "m"
"""
_PAYLOAD = """#!/bin/sh
set -eu
test -s "$TREEHAMMER_URL"
echo '{"format": 1, "values": {}, "extras": {"tide_m": 3.5}}' > "$TREEHAMMER_RESULT"
"""


def test_test_with_own_dataset_and_metric_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, folder = tmp_path / "tides.toml", tmp_path / "tests" / "waves"
    folder.mkdir(parents=True)
    spec.write_text(_SPEC)
    (folder / "test.toml").write_text(_TEST)
    (folder / "read.sh").write_text(_PAYLOAD)
    (folder / "read.sh").chmod(0o755)
    monkeypatch.setattr(pinned_tests, "SHIPPED_TESTS_FOLDER", folder.parent)

    def run(*words: str) -> str:
        options = [f"--{name}-dir={tmp_path / name}" for name in ("data", "cache")]
        result = CliRunner().invoke(cli, [*options, *words], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert [row["test"] for row in json.loads(run("tests", "list", "--json"))] == ["waves"]
    run("datasets", "make", str(spec))
    run("submit", "waves", "--wait")
    (row,) = json.loads(run("summary", "--metrics", "tide_m", "--json"))
    assert (row["good"], row["tide_m"]) == (1, 3.5)
