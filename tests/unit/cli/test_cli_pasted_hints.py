"""Commands in hints repeat the global options, so that they can be pasted."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import treehammer
from treehammer import cli as cli_package
from treehammer.cli import COMMANDS
from treehammer.errors import NothingToDoError, add_global_options
from treehammer.tables import TableColumn
from treehammer.terminal import print_hint, print_rows

PACKAGE = Path(treehammer.__file__).parent
NAMED_COMMAND = re.compile(rf"\btreehammer (?:{'|'.join(COMMANDS)})\b")
#: Text for pages and nodes, which are read elsewhere than on this terminal.
ELSEWHERE = ("web/api", "web/core", "web/display_formats", "web/pages", "collectors/kit")
#: Functions through which a hint reaches the terminal; errors and tables do so by themselves.
OUTLETS = ("print_hint", "add_global_options", "on_interrupt")
#: Functions and constants whose text an error, a table or print_hint prints.
PRINTED_ELSEWHERE = {
    "analysis/cli/explain_command.py": "format_next_command, by print_hint",
    "analysis/comparison/limit_text.py": "note, by print_hint",
    "analysis/comparison/series_effects.py": "remedies, by print_hint as notes of a comparison",
    "datasets/catalogues/folder_catalogue.py": "hints of errors",
    "datasets/production.py": "hint of errors",
    "datasets/specs/rewrite_options.py": "origin of a dataset, which is stored",
    "sql/engine/error_hints.py": "hints of errors",
    "sql/engine/database_setup.py": "hints of errors",
    "submit/batch/htcondor/hold_codes.py": "messages of attempts, which are stored",
    "analysis/status/failure_attribution.py": "actions on pages and in messages, which are stored",
    "submit/batch/htcondor/htcondor_batch.py": "reason for HTCondor",
    "submit/batch/htcondor/job_status.py": "reason for HTCondor",
    "submit/cli/unfinished_campaigns.py": "lines, by print_hint",
    "submit/cli/doctor_command.py": "findings and remedies, in a table",
    "submit/cli/campaign_commands.py": "reason in an error",
    "submit/campaigns/campaign_upload.py": "notice, by print_hint",
    "submit/sites/site_probes.py": "finding, in a table",
    "submit/campaigns/campaign_polling.py": "notice, by print_hint, and state that on_interrupt prints",
    "submit/campaigns/tracker.py": "obstacle, by print_hint",
    "testbed/components/rucio_server.py": "hint of an error",
    "testbed/faults.py": "reason in an error",
    "testbed/components/secure_storage.py": "hint of an error",
    "web/cli/token_commands.py": "where another installation shows an identity",
}


def list_hints(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield texts that name a command outside of documentation and of calls that print them well."""

    def visit(node: ast.AST) -> Iterator[ast.Constant]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.keyword) and node.arg in ("help", "hint", "remedy"):
            return
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in OUTLETS or name.endswith(("Error", "Diagnosis")):
                return
        if isinstance(node, ast.Constant):
            yield from [node] if NAMED_COMMAND.search(repr(node.value)) else []
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    return visit(tree)


def test_no_hint_bypasses_the_function_that_repeats_options() -> None:
    bypassing = []
    # Its folders are links.
    roots = [path for path in PACKAGE.iterdir() if path.is_dir()]
    paths = [path for root in roots for path in root.resolve().rglob("*.py")]
    base = PACKAGE.resolve().parents[1]
    assert len(paths) > 300
    for path in sorted(paths):
        name = path.relative_to(base).as_posix()
        if not name.startswith(ELSEWHERE) and name not in PRINTED_ELSEWHERE:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            bypassing += [f"{name}:{node.lineno}: {node.value!r}" for node in list_hints(tree)]
    assert not bypassing, "print these with treehammer.terminal.print_hint"


def test_errors_notices_and_tables_repeat_the_options_that_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my data"
    database = "postgresql://ada:secret@db.example.org/results?password=other"
    typed = ["--data-dir", str(folder), "--local-slots", "2", "--database", database]
    monkeypatch.setattr(sys, "argv", ["treehammer", *typed, "tests", "list"])
    with pytest.raises(SystemExit):
        cli_package.main()
    capsys.readouterr()
    masked = "'postgresql://ada:***@db.example.org/results?password=***'"
    repeated = f"--data-dir '{folder}' --database {masked} --local-slots 2"
    expected = f"treehammer {repeated} status last"
    assert expected in str(NothingToDoError("no job", hint="See treehammer status last."))
    print_hint("See treehammer status last")
    assert expected in capsys.readouterr().out
    print_rows([{"text": "treehammer status last"}], [TableColumn("text", "text")])
    assert "--local-slots 2" in capsys.readouterr().out
    assert add_global_options(expected) == expected, "a second time changes nothing"
    prose = "pip install treehammer; treehammer reads it; treehammer-status"
    assert add_global_options(prose) == prose


def test_an_error_is_printed_with_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["treehammer", "--data-dir", str(tmp_path), "summary"])
    with pytest.raises(SystemExit):
        cli_package.main()
    assert f"treehammer --data-dir {tmp_path} submit" in capsys.readouterr().err
    assert isinstance(cli_package.cli, click.Group)


def test_texts_of_checks_and_failures_are_printed_with_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "read.py").write_text("print()\n")
    text = '[test]\nname = "mine"\npayload = "read.py"\ndataset = "nowhere"\n'
    (tmp_path / "test.toml").write_text(text)
    arguments = ["treehammer", "--data-dir", str(tmp_path), "tests", "check", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit):
        cli_package.main()
    assert f"treehammer --data-dir {tmp_path} datasets add" in capsys.readouterr().out
