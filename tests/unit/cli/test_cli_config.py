"""Settings, commands that the demo suggests, and collection before answers."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from sqlalchemy.engine import make_url

from treehammer import config, start_commands
from treehammer.cli import COMMANDS, cli
from treehammer.errors import ConfigError
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.write.store import Store
from treehammer.start_commands import format_invocation


def load(folder: Path, text: str | None = None, **kwargs: object) -> config.Settings:
    if text is not None:
        (folder / "treehammer.toml").write_text(text, encoding="utf-8")
    kwargs.setdefault("environ", {})
    return config.load_settings(folder=folder, **kwargs)  # type: ignore[arg-type]


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    environ = {"TREEHAMMER_LOCAL_SLOTS": "3"}
    assert load(tmp_path).local_slots == 1
    assert load(tmp_path, "\ufefflocal_slots = 2").local_slots == 2
    assert load(tmp_path, environ=environ).local_slots == 3
    settings = load(tmp_path, environ=environ, flags={"local_slots": 4, "data_dir": None})
    assert settings.local_slots == 4
    assert settings.sources["local_slots"] == "flag (--local-slots)"
    assert settings.sources["data_dir"] == "default"
    assert config.format_setting(settings, "sources_dir") == ""


def test_paths_are_relative_to_their_origin(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "t.toml"
    file.write_text('data_dir = "here"', encoding="utf-8")
    assert load(tmp_path, config=file).data_dir == tmp_path / "conf" / "here"
    assert load(tmp_path, flags={"data_dir": "here"}).data_dir == tmp_path / "here"


@pytest.mark.parametrize("name", ["a?b", "a%20b", "a b%3Fc", "ä#:@"])
def test_database_url_escapes_special_characters(tmp_path: Path, name: str) -> None:
    settings = load(tmp_path, flags={"data_dir": name})
    assert make_url(settings.database).database == str(tmp_path / name / "results.db")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slotz = 1", ("slotz", "local_slots", "treehammer.toml")),
        ("local_slots = 0", ("local_slots", "at least 1", "treehammer.toml")),
        ("local_slots = inf", ("local_slots", "at least 1", "not inf")),
        ("local_slots = nan", ("local_slots", "at least 1", "not nan")),
        ("local_slots = 1" + "0" * 5000, ("TOML", "treehammer.toml")),
        ("local_slots = true", ("local_slots", "at least 1")),
        ("data_dir = [{a = true}, 2026-01-02]", ("data_dir", "path, not [{a = true}, 2026-01-02]")),
        ("data_dir = 'treehammer.toml/x'", ("data_dir must be a folder", "toml is a file")),
        ("local_slots =", ("TOML", "treehammer.toml")),
        ("database = 'results.db'", ("database",)),
        ("database = 'postgresql://me:very@:secret@host/db'", ("database", "as %40")),
        ("database = 'postgresql://me:secret@host:port/db'", ("database", "not a URL")),
        ("service_url = 'http://results.example.org'", ("https://", "unencrypted")),
        ("service_url = 'https://me:secret@host'", ("without a user",)),
        ("service_url = 'https://host/?a=1'", ("without '?'",)),
        ("service_url = 'https://host:99999'", ("service_url",)),
        ("service_url = 'host:8443'", ("https://HOST:PORT",)),
        ("service_url = 3", ("https://HOST:PORT",)),
        ("serve_url = 'https://results example.org'", ("https://HOST:PORT",)),
        ("service_ca_file = ''", ("service_ca_file", "path")),
        ("serve_port = 0", ("serve_port", "1 to 65535")),
        ("serve_port = 65536", ("serve_port", "1 to 65535")),
        ("serve_host = 'a b'", ("serve_host", "letters")),
        ("serve_read_access = 'all'", ("serve_read_access", "one of public, keys")),
        ("serve_behind_proxy = 2", ("serve_behind_proxy", "true or false")),
        ("serve_user_header = 'X User'", ("serve_user_header", "letters")),
        (
            "serve_user_header = '" + "secret" * 2000 + "'",
            ("serve_user_header", "at most 10,000 characters"),
        ),
        ("x = " + "[" * 100_000, ("not valid TOML", "30 tables and lists within each other")),
        ("x = " + "[" * 31 + "]" * 31, ("30 tables and lists within each other",)),
        ("[" + ".".join("a" * 32) + "]", ("30 tables and lists within each other",)),
        ("#" + "x" * 4_000_000, ("more than 4,000,000 characters",)),
        ("serve_user_header = 'Cookie'", ("serve_user_header", "such as X-Remote-User")),
        ("serve_user_header = 'x-forwarded-for'", ("serve_user_header", "another meaning")),
    ],
)
def test_invalid_file_error_names_key_and_remedy(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert [word for word in words if word not in str(caught.value)] == []
    assert ":secret" not in str(caught.value)


def test_invalid_environment_value_names_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TREEHAMMER_LOCAL_SLOTS"):
        load(tmp_path, environ={"TREEHAMMER_LOCAL_SLOTS": "many"})


def test_shown_password_is_masked(tmp_path: Path) -> None:
    for url in ("postgresql://me:s3cr3t@host/results", "postgresql://host/results?password=s3cr3t"):
        settings = load(tmp_path, flags={"database": url})
        assert "s3cr3t" not in config.format_setting(settings, "database")
        assert "s3cr3t" not in repr(settings)


def test_missing_working_folder_is_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="the current folder no longer exists"):
        config.load_settings(environ={})


def test_service_settings_are_loaded(tmp_path: Path) -> None:
    assert load(tmp_path).service_url == ""
    assert load(tmp_path).master_key_file == load(tmp_path).data_dir / "service.key"
    settings = load(
        tmp_path,
        "service_url = 'https://host:8443/'\nserve_behind_proxy = true\nservice_key_file = 'k'",
        environ={"TREEHAMMER_SERVE_PORT": "443"},
    )
    assert settings.service_url == "https://host:8443"
    assert settings.serve_behind_proxy
    assert settings.serve_port == 443
    assert settings.master_key_file == tmp_path / "k"
    environ = {"TREEHAMMER_SERVE_BEHIND_PROXY": "no"}
    assert not load(tmp_path, environ=environ).serve_behind_proxy
    assert config.format_setting(settings, "serve_behind_proxy") == "true"
    for local in ("http://127.0.0.1:8000", "http://[::1]:8000", "http://localhost:1"):
        assert load(tmp_path, environ={"TREEHAMMER_SERVICE_URL": local}).service_url == local


OUTPUT = Path("demo-results")


@pytest.fixture
def settings(tmp_path: Path) -> config.Settings:
    return config.load_settings({"data_dir": tmp_path}, environ={}, folder=tmp_path)


def program(folder: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / "treehammer"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_program_is_named_as_found_on_path(
    settings: config.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = program(tmp_path / "my venv" / "bin")
    monkeypatch.setattr(sys, "argv", [str(called), "demo"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert format_invocation(OUTPUT, settings) == f"'{called}' --data-dir demo-results"
    monkeypatch.setenv("PATH", str(called.parent))
    assert format_invocation(OUTPUT, settings) == "treehammer --data-dir demo-results"
    # A program of another installation does not count.
    monkeypatch.setenv("PATH", str(program(tmp_path / "bin").parent))
    assert format_invocation(OUTPUT, settings) == f"'{called}' --data-dir demo-results"


def test_changed_settings_become_flags(
    settings: config.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Print the command with flags for settings that differ from those of the shell."""
    monkeypatch.setattr(sys, "argv", ["-m"])
    monkeypatch.chdir(tmp_path)
    plain = ["--data-dir", "demo-results"]
    assert start_commands.required_flags(OUTPUT, config.load_settings()) == plain
    elsewhere = replace(settings, cache_dir=tmp_path / "elsewhere")
    flags = start_commands.required_flags(OUTPUT, elsewhere)
    assert flags == [*plain, "--cache-dir", str(elsewhere.cache_dir)]
    monkeypatch.setenv("TREEHAMMER_DATABASE", "sqlite:///other.db")
    (tmp_path / "treehammer.toml").write_text("local_slots = 4\n")
    database = f"sqlite:///{tmp_path}/demo-results/results.db"
    flags = start_commands.required_flags(OUTPUT, config.load_settings())
    assert flags == [*plain, "--database", database, "--local-slots", "1"]
    invocation = format_invocation(OUTPUT, config.load_settings())
    assert invocation == f"treehammer {' '.join(flags)}"


def test_demo_reports_the_newest_campaigns_of_its_names(
    store: Store, tmp_path: Path, settings: config.Settings
) -> None:
    for id_, name in enumerate(["in-print-a", "demo-solo", "in-print-a", "demo-solo", "other"]):
        store.add_campaign(make_campaign_row(f"{id_}", name=name, created_us=id_), [])
    files = (tmp_path / "report.html", tmp_path / "results.root")
    *_, report, _export = start_commands._list_demo_commands(settings, ["a", "b"], *files)
    assert report[1:-2] == ("--campaign=last", "--campaign=3", "--campaign=2")


NAME = "name of campaign (campaign)"
SUMMARY = ("summary", "--metrics", "payload_wall_s")


@pytest.fixture
def folder(store: Store, tmp_path: Path) -> Path:
    """A data folder with one measurement of a campaign that planned four."""
    store.add_campaign(make_campaign_row(planned_measurements=4), [])
    jobs = [
        make_job_row(name, state="done", batch_id=f"1.{name}", planned_measurements=2)
        for name in ("ended", "open")
    ]
    store.set_jobs(jobs)
    store.set_attempts([AttemptRow("ended", 1, "done", 1, 2, 0, "", "")])
    store.add([make_measurement("ended", site="local", plausible=True)])
    return tmp_path


def set_state(store: Store, state: str, batch_system: str = "local") -> None:
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


def test_what_waits_is_said_on_standard_error(store: Store, folder: Path) -> None:
    set_state(store, "running")
    done = run(folder, *SUMMARY, "--json", "--no-collect")
    assert (
        f"{NAME}: 3 of 4 measurements are not in this database (jobs: 1 done, 1 running); their "
        "submitter collects them" in done.stderr
    )
    assert "not in this database" not in done.stdout
    store.set_jobs([replace(job, state="cancelled") for job in store.jobs("campaign")])
    cancelled = run(folder, *SUMMARY, "--campaign", "campaign", "--no-collect")
    assert cancelled.stderr.strip().endswith("are not in this database (jobs: 2 cancelled)")


def test_output_on_this_machine_is_named_with_the_command_that_collects_it(
    store: Store, folder: Path
) -> None:
    set_state(store, "queued")
    (folder / "spool" / "jobs" / "000001-campaign").mkdir(parents=True)
    done = run(folder, *SUMMARY, "--json", "--no-collect")
    assert f"treehammer --data-dir {folder} collect campaign" in done.stderr
    assert json.loads(done.stdout)


def test_campaigns_in_the_folder_of_a_pool_are_own(store: Store, folder: Path) -> None:
    sites = folder / "sites.toml"
    sites.write_text(
        f'[pools.box]\nsubmit_dir = "{folder}/elsewhere"\n[sites.GRID]\npool = "box"\n'
        '[[sites.GRID.doors]]\nname = "d"\nprotocol = "root"\nprefix = "root://a.example//d"\n'
    )
    set_state(store, "running", "htcondor@box")
    without = run(folder, *SUMMARY, "--no-collect")
    assert "their submitter collects them (here: no sites file defines pool 'box'" in without.stderr
    of_others = run(folder, "--sites-file", str(sites), *SUMMARY, "--no-collect")
    assert of_others.stderr.strip().endswith("their submitter collects them")
    submission = folder / "elsewhere/campaign/0123456789ab"
    submission.mkdir(parents=True)
    (submission / "submission.json").write_text("[]")
    result = run(folder, "--sites-file", str(sites), *SUMMARY, "--no-collect")
    assert "their submitter" not in result.stderr
    assert "collect campaign" in result.stderr


def test_nothing_is_said_of_complete_campaigns_and_of_other_ones(
    store: Store, folder: Path
) -> None:
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
    assert reading >= {"compare", "summary", "explain", "report", "export"}
    for name in reading:
        first, second = COMMANDS[name].load(), COMMANDS[name].load()
        names = [parameter.name for parameter in first.params]
        assert names.count("no_collect") == 1
        assert names == [parameter.name for parameter in second.params]
