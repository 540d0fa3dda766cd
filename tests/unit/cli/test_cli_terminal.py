"""Printed tables."""

from __future__ import annotations

import csv
import io
import json

import pytest
from rich.console import Console
from rich.progress import Progress

from treehammer.tables import TableColumn
from treehammer.terminal import make_bar_columns, print_rows
from treehammer.text_formatting import pluralize


@pytest.mark.parametrize("text", ["[red]", "x\\[red]y[/red]", "[/]", "ends in \\"])
def test_text_is_printed_unchanged(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    wide = TableColumn("other", " " + "-" * 40)  # titles are folded to the table's width
    print_rows(
        [{"key": text, "other": ""}],
        [TableColumn("key", f"head {text}"), wide],
        title=f"title {text}",
    )
    title, heading, cell = capsys.readouterr().out.splitlines()
    assert title.rstrip() == f"title {text}"
    assert heading.split("  ")[0] == f"head {text}"
    assert cell.split("  ")[0] == text


def test_csv_contains_nested_values_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"counts": {"a": 1}, "names": ("x", "y"), "plain": "z"}], [], form="csv")
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (json.loads(row["counts"]), json.loads(row["names"])) == ({"a": 1}, ["x", "y"])
    assert row["plain"] == "z"


def test_short_values_are_not_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treehammer.terminal.make_console", lambda: Console(width=60))
    print_rows(
        [{"name": "reference-small", "interval": "−16.6 … +20.0 %", "text": "many words " * 20}],
        [
            TableColumn("name", "name"),
            TableColumn("text", "text"),
            TableColumn("interval", "interval"),
        ],
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


@pytest.mark.parametrize(
    "count, noun, text",
    [(1, "job", "1 job"), (0, "job", "0 jobs"), (2, "new measurement", "2 new measurements")],
)
def test_pluralize(count: int, noun: str, text: str) -> None:
    assert pluralize(count, noun) == text
