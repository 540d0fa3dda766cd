"""The command line as a process: exit codes, messages without tracebacks, help with examples."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from treehammer.cli import COMMANDS, SECTIONS, cli


def run(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "treehammer", *arguments],
        cwd=folder,
        env={**os.environ, "TREEHAMMER_DATA_DIR": str(folder), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_config_show_prints_value_and_source(tmp_path: Path) -> None:
    done = run(tmp_path, "config", "show", "--json")
    rows = {row["setting"]: row for row in json.loads(done.stdout)}
    assert done.returncode == 0
    assert rows["data_dir"]["value"] == str(tmp_path)
    assert rows["data_dir"]["source"] == "environment (TREEHAMMER_DATA_DIR)"


def test_unencodable_output_gets_question_marks(tmp_path: Path) -> None:
    folder = tmp_path / "Ü"
    folder.mkdir()
    done = run(folder, "config", "show", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "?" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("--config", "absent.toml", "config", "show"), 2, "absent.toml"),
        (("no-such-verb",), 2, "no-such-verb"),
        (("sumbit",), 2, "Did you mean 'submit'?"),
        (("config", "show", "--json", "--csv"), 2, "exclusive"),
        (("status", "no-such-campaign"), 3, "results.db"),
    ],
)
def test_mistakes_print_one_message_with_documented_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int, word: str
) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == code
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def verbs(command: click.Command, name: str = "treehammer") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            sub = command.get_command(context, child)
            assert sub is not None
            assert sub.name == child
            yield from verbs(sub, f"{name} {child}")
    else:
        yield name, command


@pytest.mark.parametrize(("name", "command"), list(verbs(cli)), ids=str)
def test_every_command_help_has_an_example(name: str, command: click.Command) -> None:
    text = command.help or ""
    assert "Example" in text
    assert name in text


def test_help_lists_each_command_once_by_section(tmp_path: Path) -> None:
    lines = run(tmp_path, "--help").stdout.splitlines()
    for name, command in COMMANDS.items():
        assert [line.split()[1:] for line in lines if line.startswith(f"  {name} ")] == [
            command.summary.split()
        ]
    titles = [line.rstrip(":") for line in lines if line.endswith(":") and line[0] != " "]
    assert titles == ["Options", *SECTIONS]


def test_every_package_is_used_by_a_command() -> None:
    rooms = {
        command.target.partition(".")[0] for command in COMMANDS.values() if "." in command.target
    }
    assert rooms == {"submit", "collectors", "analysis", "sql", "web", "testbed", "patrol"}
    assert COMMANDS["datasets"].target.startswith("submit.")  # commands of sites and datasets
    assert COMMANDS["tests"].target.startswith("submit.")  # they check tests against datasets
