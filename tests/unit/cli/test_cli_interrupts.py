"""Ctrl-C in each command, and hints that can be pasted."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from captured_runs import run_captured

from treehammer import cli
from treehammer.errors import Interruption, NothingToDoError, prepare_for_terminal
from treehammer.tables import TableColumn
from treehammer.terminal import on_interrupt, print_hint, print_rows


def press_ctrl_c(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def typed(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Type a command; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["treehammer", "--data-dir", str(folder), *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(str(end.value.code or 0))


#: Steps of commands that write or fetch, where Ctrl-C is pressed unless a case names another.
STEPS = (
    "sql.write.store.Store.open",
    "submit.campaigns.campaign_request.plan_request",
    "datasets.root_process.prepare_dataset_root",
)
WAITING = "submit.cli.command_options.report_waiting"


@pytest.mark.parametrize(
    "steps, words, message",
    [
        (STEPS, ["submit", "ttree-read"], "; nothing was submitted"),
        (STEPS, ["compare", "6.38.00", "6.40.00"], "; nothing half-made was stored"),
        (STEPS, ["export", "out.csv"], "; no partial file was left; the measurements are safe"),
        (STEPS, ["report"], "; no report was written"),
        (STEPS, ["purge", "last"], "; campaigns that are not purged yet are complete"),
        (STEPS, ["datasets", "make", "reference-small"], "; nothing half-made was kept"),
        ([WAITING], ["compare", "6.38.00", "6.40.00"], "; measurements stored so far are kept"),
        (["terminal.print_table"], ["config", "show"], "\n"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_interrupted_commands_describe_remaining_state(
    steps: Sequence[str],
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(f"treehammer.{WAITING}", lambda *_, **__: [])
    for name in steps:
        monkeypatch.setattr(f"treehammer.{name}", press_ctrl_c)
    assert typed(words, tmp_path, monkeypatch) == 130
    assert f"treehammer: interrupted{message}" in capsys.readouterr().err


def test_innermost_description_is_used() -> None:
    with (
        pytest.raises(Interruption, match=r"^inner$"),
        on_interrupt("outer"),
        on_interrupt(lambda: "inner"),
    ):
        raise KeyboardInterrupt
    with pytest.raises(click.UsageError), on_interrupt("other errors pass"):
        raise click.UsageError("wrong")


def test_ctrl_c_during_imports_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time; print('loading', flush=True); time.sleep(60)")
    # In place of the command line, a module that takes long to load.
    (tmp_path / "slow_cli.py").write_text(
        "import sys, importlib.abc, importlib.util\n"
        "class Slow(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'treehammer.cli':\n"
        f"            return importlib.util.spec_from_file_location(name, {str(tmp_path / 'slow.py')!r})\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    code = "import slow_cli; from treehammer import __main__ as face; face.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert errors == ""


def test_ctrl_c_in_finalizer_is_repeated() -> None:
    code = (
        "import signal, time; from treehammer import __main__ as face, cli\n"
        "class Finalized:\n"
        "    def __del__(self): signal.raise_signal(signal.SIGINT)\n"
        "def run(**_):\n"
        "    Finalized()\n"
        "    time.sleep(60)\n"
        "cli.cli.main = run\n"
        "face.main()"
    )
    done = run_captured([sys.executable, "-c", code], timeout=50)
    assert done.returncode == 130
    assert done.stderr == "treehammer: interrupted\n"


def test_errors_notices_and_tables_repeat_the_options_that_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my data"
    database = "postgresql://ada:secret@db.example.org/results?password=other"
    words = ["--local-slots", "2", "--database", database, "tests", "list"]
    assert typed(words, folder, monkeypatch) == 0
    capsys.readouterr()
    masked = "'postgresql://ada:***@db.example.org/results?password=***'"
    repeated = f"--data-dir '{folder}' --database {masked} --local-slots 2"
    expected = f"treehammer {repeated} status last"
    assert expected in str(NothingToDoError("no job", hint="See treehammer status last."))
    print_hint("See treehammer status last")
    assert expected in capsys.readouterr().out
    print_rows([{"text": "treehammer status last"}], [TableColumn("text", "text")])
    assert "--local-slots 2" in capsys.readouterr().out
    assert prepare_for_terminal(expected) == expected, "a second time changes nothing"
    prose = "pip install treehammer; treehammer reads it; treehammer-status"
    assert prepare_for_terminal(prose) == prose


def test_errors_and_checks_are_printed_with_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(["summary"], tmp_path, monkeypatch) == 3
    assert f"treehammer --data-dir {tmp_path} submit" in capsys.readouterr().err
    (tmp_path / "read.py").write_text("print()\n")
    text = '[test]\nname = "mine"\npayload = "read.py"\ndataset = "nowhere"\n'
    (tmp_path / "test.toml").write_text(text)
    typed(["tests", "check", str(tmp_path)], tmp_path, monkeypatch)
    assert f"treehammer --data-dir {tmp_path} datasets add" in capsys.readouterr().out
