"""Output: tables, progress, logs, text, and completion in the shell."""

from __future__ import annotations

import csv
import errno
import io
import json
import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from measurement_factory import make_campaign_row
from page_database import fill_database
from rich.console import Console
from rich.progress import Progress

from treehammer.cli import cli
from treehammer.errors import ConfigError, TreehammerError, prepare_for_terminal
from treehammer.program_output import JSON_FORMAT, explain_write_errors, log_to_stderr
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import (
    NAMES,
    SITE,
    CommandOutput,
    NumberRange,
    PathType,
    TextTable,
    make_bar_columns,
    print_rows,
    print_table,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import format_signed, format_size, format_time, pluralize
from treehammer.verticals import has_vertical


@pytest.mark.parametrize(("number", "exit_code"), [(errno.ENOENT, 2), (errno.ENOSPC, 4)])
def test_wrong_place_of_a_file_is_an_error_of_the_command(number: int, exit_code: int) -> None:
    with pytest.raises(TreehammerError) as caught, explain_write_errors("out.csv", "Do this."):
        raise OSError(number, os.strerror(number))
    assert str(caught.value) == f"out.csv: cannot be written ({os.strerror(number)})\n  Do this."
    assert caught.value.exit_code == exit_code


@pytest.mark.parametrize(
    "text", ["[red]", "x\\[red]y[/red]", "[/]", "ends in \\", "\x1b[2J\x85\u202e"]
)
def test_text_is_data(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    wide = TableColumn("other", " " + "-" * 40)  # titles are folded to the table's width
    columns = [TableColumn("key", f"head {text}"), wide]
    print_table([{"key": text, "other": ""}], columns, f"title {text}")
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    texts = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert texts == [f"title {shown}", f"head {shown}", shown]
    assert prepare_for_terminal("\x1b[1mNo\x1b[0m\r\n") == "\x1b[1mNo\x1b[0m\r\n"


def test_csv_contains_nested_values_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"counts": {"a": 1}, "names": ("x", "y"), "plain": "z"}], [], form="csv")
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (json.loads(row["counts"]), json.loads(row["names"])) == ({"a": 1}, ["x", "y"])
    assert row["plain"] == "z"


def run_command(output: CommandOutput | list[Any], *words: str, empty: str = "") -> Result:
    columns = (TableColumn("site", "name of the site"), *hidden_columns("jobs"))
    command = click.command("sites")(prints_rows(*columns, empty=empty)(lambda: output))
    return CliRunner().invoke(command, words)


SITE_ROWS = [{"site": "A", "jobs": 2}, {"site": "B", "jobs": None}]


def test_command_prints_its_rows_in_each_form() -> None:
    assert run_command(SITE_ROWS).output.split() == ["name", "of", "the", "site", "A", "B"]
    assert json.loads(run_command(SITE_ROWS, "--json").output) == SITE_ROWS
    assert run_command(SITE_ROWS, "--csv").output == "site,jobs\nA,2\nB,\n"
    assert "mutually exclusive" in run_command(SITE_ROWS, "--csv", "--json").output


def test_chosen_columns_are_printed_in_order() -> None:
    table = run_command(SITE_ROWS, "--columns", "jobs,site").output.split()
    assert table == ["jobs", "name", "of", "the", "site", "2", "A", "–", "B"]
    assert run_command(SITE_ROWS, "--columns", "jobs", "--csv").output == 'jobs\n2\n""\n'
    assert json.loads(run_command(SITE_ROWS, "--columns", "jobs", "--json").output) == [
        {"jobs": 2},
        {"jobs": None},
    ]
    assert "site, jobs" in run_command([], "--help").output
    error = run_command([], "--columns", "sit").exception
    assert (
        str(error) == "--columns: unknown column 'sit'\n  Did you mean 'site'? Known: jobs, site."
    )


def test_lines_go_where_programs_do_not_read_them() -> None:
    output = CommandOutput(
        SITE_ROWS,
        above=["above"],
        below=["below", TextTable([{"a": 1}], [TableColumn("a", "a")])],
        notes=["note"],
        remarks=["remark"],
        document={"sites": 2},
        exit_code=1,
    )
    table = run_command(output)
    assert table.stdout.split() == [
        *("above", "name", "of", "the", "site", "A", "B", "below", "a", "1", "note")
    ]
    assert (table.stderr, table.return_value) == ("remark\n", None)
    for_programs = run_command(output, "--json")
    assert json.loads(for_programs.stdout) == {"sites": 2}
    assert for_programs.stderr == "note\nremark\n"
    assert run_command(output, "--csv").stdout == "site,jobs\nA,2\nB,\n"


def test_no_rows_are_a_sentence() -> None:
    assert run_command([], "--json", empty="No sites.").stdout == "[]\n"
    assert run_command([], empty="No sites.").stderr == "No sites.\n"


@pytest.fixture(scope="module")
def page_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    fill_database(f"sqlite:///{folder / 'results.db'}")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        "config show",
        "tests list",
        "datasets list",
        "db check",
        "db prune --passes-after 1 --dry-run",
        "db quarantine --reason x --campaign running --dry-run",
        *(("changes", f"digest --week {datetime.now(UTC):%G-W%V}") * has_vertical("watch")),
    ],
)
def test_help_of_columns_documents_the_keys_of_rows(words: str, page_data: Path) -> None:
    command: click.Command | None = cli
    for name in words.partition(" --")[0].split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    (option,) = (param for param in command.params if param.name == "column_names")
    documented = str(vars(option)["help"]).partition("of: ")[2].rstrip(".").split(", ")
    result = CliRunner(env={"TREEHAMMER_CACHE_DIR": str(page_data)}).invoke(
        cli, ["--data-dir", str(page_data), *words.split(), "--json"], catch_exceptions=False
    )
    rows = json.loads(result.stdout)
    assert rows
    assert {key for row in rows for key in row} == {*documented}


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown site 'SITE_X'") as error:
        SITE.require(["SITE_A", "SITE_X"], {"SITE_A", "SITE_B"}, "--site")
    assert error.value.hint == "Did you mean 'SITE_B'? Known: SITE_A, SITE_B."
    for kind, value, message in (
        (SITE, "", "name a site; this is empty"),
        (NAMES, "", "name a value; this is empty"),
        (PathType(), "", "name a file or folder; this is empty"),
        (NumberRange(0, 9), "NaN", "'NaN' is not a number"),
    ):
        with pytest.raises(click.BadParameter, match=message):
            kind.convert(value, click.Option(["--site"]), None)
    result = CliRunner().invoke(cli, ["db", "quarantine", "--reason=x", "--key", ""])
    assert "Invalid value for '--key': name a value; this is empty." in result.output
    assert "'[JOB]': name a value" in CliRunner().invoke(cli, ["explain", ""]).output


def test_short_values_are_not_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treehammer.terminal.make_console", lambda: Console(width=60))
    print_rows(
        [{"name": "reference-small", "interval": "−16.6 … +20.0 %", "text": "many words " * 20}],
        [TableColumn(name, name) for name in ("name", "text", "interval")],
    )
    first = capsys.readouterr().out.splitlines()[1]
    assert first.startswith("reference-small ")
    assert first.endswith("−16.6 … +20.0 %")


def test_narrow_terminal_shortens_note_only() -> None:
    output = io.StringIO()
    narrow = Console(file=output, width=80, force_terminal=True, color_system=None)
    with Progress(*make_bar_columns(), console=narrow, auto_refresh=False) as bar:
        task = bar.add_task("Measuring", total=108, note="4 queued, 1 running, 1 done, 1 failed")
        bar.update(task, completed=10)
    (line,) = {text for text in output.getvalue().split("\n") if "10/108" in text}
    assert "elapsed 0:00:00 remaining -:--:-- 4 queued" in line
    assert "1 failed" not in line


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("treehammer.terminal.time.monotonic", lambda: now[0])
    return now


def test_progress_prints_each_tenth_with_remaining_time(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("Measuring", 20) as step:
        for done in range(21):
            step(done, f"{done} done")
            clock[0] += 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "Measuring: 2/20 2 done, about 54 s remaining"
    assert lines[-1] == "Measuring: 20/20 20 done"


def test_quick_work_prints_no_progress(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("Verifying", 50) as step:
        for done in range(51):
            step(done)
            clock[0] += 0.01
    assert capsys.readouterr().err == ""


def test_single_step_prints_notes(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("Fetching ROOT 6.40.00", 1) as step:
        step(0, "downloading")
        step(0, "downloading")
        step(0, "checking")
        step(1)
    assert capsys.readouterr().err.splitlines() == [
        "Fetching ROOT 6.40.00: downloading",
        "Fetching ROOT 6.40.00: checking",
    ]


NAME = "treehammer.test_log"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    test_logger = logging.getLogger(NAME)
    yield test_logger
    test_logger.handlers.clear()
    test_logger.propagate = True


def test_json_line_has_message_and_fields(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(names=[NAME], line_format=JSON_FORMAT)
    logger.info("%s starts\ncampaign %s", "daily", "c1", extra={"entry": "daily", "campaign": "c1"})
    (line,) = capsys.readouterr().err.splitlines()
    document = json.loads(line)
    assert document.pop("time").endswith("Z")
    assert document == {
        "level": "info",
        "logger": NAME,
        "message": "daily starts\ncampaign c1",
        "entry": "daily",
        "campaign": "c1",
    }


def test_json_line_has_the_traceback(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(names=[NAME], line_format=JSON_FORMAT)
    try:
        raise ValueError("no such day")
    except ValueError:
        logger.exception("a request failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["exception"].endswith("ValueError: no such day")


def test_text_line_begins_with_time_and_level(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(names=[NAME])
    logger.warning("late", extra={"entry": "daily"})
    line = capsys.readouterr().err
    assert line[10] == "T"
    assert line[19:].rstrip() == "Z WARNING late"


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (pluralize, (1, "job"), "1 job"),
        (pluralize, (0, "job"), "0 jobs"),
        (pluralize, (2, "new measurement"), "2 new measurements"),
        (format_signed, (3.14,), "+3.1"),
        (format_signed, (-0.44,), "−0.4"),
        (format_signed, (-0.04,), "+0.0"),
        (format_signed, (1234.56,), "+1,234.6"),
        (format_size, (0,), "0 bytes"),
        (format_size, (950,), "950 bytes"),
        (format_size, (49_660_000,), "49.7 MB"),
        (format_size, (2_208_309_933,), "2.2 GB"),
        (format_time, (0,), "1970-01-01 00:00:00"),
        (format_time, (253_402_300_799_999_999,), "9999-12-31 23:59:59"),
    ],
)
def test_numbers_have_typographic_signs_units_and_utc(
    function: Callable[..., str], arguments: tuple[Any, ...], text: str
) -> None:
    assert function(*arguments) == text


def complete(*words: str, begun: str = "") -> list[str]:
    completion = ShellComplete(cli, {}, "treehammer", "_TREEHAMMER_COMPLETE")
    return [item.value for item in completion.get_completions([*words], begun)]


@pytest.fixture
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Neither the results nor the datasets of the user.
    monkeypatch.setenv("TREEHAMMER_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("TREEHAMMER_CACHE_DIR", str(tmp_path / "none"))


@pytest.mark.usefixtures("_empty_folder")
def test_campaigns_are_completed_by_identity_and_name(tmp_path: Path) -> None:
    campaign = make_campaign_row("c0ffee", name="nightly")
    with Store.open(f"sqlite:///{tmp_path / 'mine' / 'results.db'}") as store:
        store.add_campaign(campaign, [])
    flags = ("--data-dir", str(tmp_path / "mine"))
    assert complete(*flags, "status") == ["last", "c0ffee", "nightly"]
    assert complete(*flags, "compare", "1", "2", "--campaign", begun="n") == ["nightly"]
    assert complete(*flags, "export", "x.root", "--campaign", begun="c") == ["c0ffee"]


@pytest.mark.usefixtures("_empty_folder")
def test_tests_datasets_and_sites_are_completed() -> None:
    assert complete("submit", begun="open-") == ["open-rate"]
    assert complete("datasets", "show", begun="reference-s") == ["reference-small"]
    assert complete("submit", "ttree-read", "--sites", begun="lo") == ["local"]
    assert complete("submit", "ttree-read", "--sites", begun="OTHER,lo") == ["OTHER,local"]


@pytest.mark.usefixtures("_empty_folder")
def test_unusable_settings_propose_nothing(tmp_path: Path) -> None:
    assert complete("status") == []
    assert complete("--config", str(tmp_path / "none.toml"), "status") == []
