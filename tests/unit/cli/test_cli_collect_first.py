"""Commands that answer from results collect first, and say what waits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from measurement_factory import make_campaign_row, make_job_row, make_measurement

from treehammer.cli import COMMANDS, cli
from treehammer.config import load_settings
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.write.store import Store

NAME = "name of campaign (campaign)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with one measurement of a campaign that planned four."""
    settings = load_settings({"data_dir": tmp_path}, environ={}, folder=tmp_path)
    with Store.open(settings.database) as store:
        store.add_campaign(make_campaign_row(planned_measurements=4), [])
        jobs = [
            make_job_row(name, state="done", batch_id=f"1.{name}", planned_measurements=2)
            for name in ("ended", "open")
        ]
        store.set_jobs(jobs)
        store.set_attempts([AttemptRow("ended", 1, "done", 1, 2, 0, "", "")])
        store.add([make_measurement("ended", site="local", plausible=True)])
    return tmp_path


def set_state(folder: Path, state: str, batch_system: str = "local") -> None:
    settings = load_settings({"data_dir": folder}, environ={}, folder=folder)
    with Store.open(settings.database) as store:
        store.set_jobs(
            [
                make_job_row(
                    "open",
                    state=state,
                    batch_id="",
                    planned_measurements=2,
                    batch_system=batch_system,
                )
            ]
        )


def run(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--data-dir", str(folder), *words], standalone_mode=False)


@pytest.mark.parametrize(
    "words",
    [
        ("summary", "--metrics", "payload_wall_s", "--json"),
        ("explain", "--json"),
        ("compare", "6.38.00", "6.40.00", "--json"),
        ("export", "{folder}/out.csv"),
        ("report", "-o", "{folder}/report.html"),
        ("changes", "--json"),
        ("digest",),
        ("check", "--all"),
        ("notify",),
        ("sites", "evaluate"),
    ],
)
def test_what_waits_is_said_on_standard_error(folder: Path, words: tuple[str, ...]) -> None:
    set_state(folder, "running")
    done = run(folder, *(word.format(folder=folder) for word in words), "--no-collect")
    assert (
        f"{NAME}: 3 of 4 measurements are not in this database (jobs: 1 done, 1 running); their "
        "submitter collects them" in done.stderr
    )
    assert "not in this database" not in done.stdout


def test_a_service_is_asked_without_collecting(folder: Path) -> None:
    set_state(folder, "running")
    done = run(folder, "check", "--service", "http://127.0.0.1:9", "-t", "1")
    assert NAME not in done.stderr
    assert done.stdout


def test_output_on_this_machine_is_named_with_the_command_that_collects_it(folder: Path) -> None:
    set_state(folder, "queued")
    (folder / "spool" / "jobs" / "000001-campaign").mkdir(parents=True)
    done = run(folder, "summary", "--metrics", "payload_wall_s", "--json", "--no-collect")
    assert f"treehammer --data-dir {folder} collect campaign" in done.stderr
    assert json.loads(done.stdout)


def test_nothing_is_said_of_complete_campaigns_and_of_other_ones(folder: Path) -> None:
    settings = load_settings({"data_dir": folder}, environ={}, folder=folder)
    with Store.open(settings.database) as store:
        store.add_campaign(make_campaign_row("whole", planned_measurements=1, created_us=9), [])
        whole = make_job_row("job", campaign_id="whole", state="done", planned_measurements=1)
        store.set_jobs([whole])
        store.add([make_measurement("job", campaign_id="whole", site="local", plausible=True)])
    done = run(folder, "summary", "--campaign", "whole", "--metrics", "payload_wall_s", "--json")
    assert "campaign)" not in done.stderr
    named = run(folder, "summary", "--campaign", "campaign", "--metrics", "payload_wall_s")
    assert NAME in named.stderr


def test_every_command_that_reads_results_collects_first() -> None:
    reading = {name for name, command in COMMANDS.items() if command.reads_results}
    assert reading == {
        *("compare", "summary", "explain", "report", "export"),
        *("changes", "digest", "check", "notify"),
    }
    for name in reading:
        first, second = COMMANDS[name].load(), COMMANDS[name].load()
        names = [parameter.name for parameter in first.params]
        assert names.count("no_collect") == 1
        assert names == [parameter.name for parameter in second.params]
