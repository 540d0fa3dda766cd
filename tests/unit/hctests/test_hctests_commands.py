"""Commands ``treehammer tests …``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from treehammer.config import load_settings
from treehammer.errors import DefinitionError, NothingToDoError, SourceError
from treehammer.hctests import pinned_tests
from treehammer.hctests.cli import parse_axis_options
from treehammer.submit.cli.tests_check_command import tests as commands

WriteTest = Callable[..., Path]
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    settings = load_settings({"cache_dir": tmp_path / "cache"}, environ={}, folder=tmp_path)
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(commands, arguments, obj=settings)

    return invoke


def shown(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_list_names_the_shipped_tests(run: Run) -> None:
    rows = shown(run("list", "--json"))
    assert [row["test"] for row in rows] == list(pinned_tests.list_shipped_tests())
    assert "ttree-read" in run("list").output


def test_list_includes_tests_with_mistakes(run: Run, write_test: WriteTest) -> None:
    folder = write_test("[matrix]\nroot = [6.40]\n")
    (row,) = shown(run("list", str(folder.parent), "--json"))
    assert row["test"] == str(folder)
    assert row["variants"] is None
    assert "1 mistake: see 'tests check'" in row["description"]


def test_list_without_tests_has_nothing_to_do(run: Run, tmp_path: Path) -> None:
    assert isinstance(run("list", str(tmp_path)).exception, NothingToDoError)
    assert isinstance(run("list", str(tmp_path / "nowhere")).exception, SourceError)


def test_show_lists_variants_jobs_and_balanced_orders(run: Run, write_test: WriteTest) -> None:
    text = '[matrix]\nroot = ["6.38.00", "6.40.00"]\ncache_mb = [0, 30]\nbundle = ["root"]\n'
    folder = str(write_test(text))
    content = shown(
        run("show", folder, "--json", "--set", "repeats=6", "--axis", "cache_mb=0,30,300")
    )
    facts = content["test"]
    assert (facts["variants"], facts["jobs"], facts["executions"]) == (6, 18, 72)
    assert [row["letter"] for row in content["variants"]] == ["A", "B"] * 3
    assert {row["root"] for row in content["variants"]} == {"6.38.00", "6.40.00"}
    for order in content["orders"]:
        assert sorted(order["orders"]) == ["AB", "BA"]


def test_show_prints_table_and_csv(run: Run, write_test: WriteTest) -> None:
    folder = str(write_test('[matrix]\ndoor = ["root", "https"]\nmine = ["x", "y"]\n'))
    text = run("show", folder).output
    assert "variants 4, jobs 4, executions 8" in text
    assert "https" in text
    table = list(csv.DictReader(io.StringIO(run("show", folder, "--csv").output)))
    assert [(row["door"], row["mine"]) for row in table] == [
        ("root", "x"),
        ("root", "y"),
        ("https", "x"),
        ("https", "y"),
    ]


def test_show_refuses_invalid_parameters(run: Run, write_test: WriteTest) -> None:
    folder = str(write_test())
    assert isinstance(run("show", folder, "-P", "cachemb=0").exception, DefinitionError)
    result = run("show", folder, "-P", "cache_mb")
    assert result.exit_code == 2
    assert "expected -P AXIS=V1,V2" in result.output


def test_check_reports_all_mistakes(run: Run, write_test: WriteTest) -> None:
    folder = write_test("[matrix]\nroot = [6.40]\ncache_mb = [-1]\n")
    result = run("check", "ttree-read", str(folder), "nowhere")
    assert result.exit_code == 2
    lines = result.output.splitlines()
    assert lines[0].startswith("ok ttree-read: ttree-read")
    assert lines[1].startswith(f"{folder}/test.toml:5: matrix.root: ")
    assert lines[2].startswith(f"{folder}/test.toml:6: matrix.cache_mb: ")
    assert "nowhere: no folder or shipped test" in lines[3]


def test_check_prints_json_for_programs(run: Run, write_test: WriteTest) -> None:
    folder = write_test("[matrix]\nroot = [6.40]\n")
    result = run("check", "ttree-read", str(folder), "--json")
    assert result.exit_code == 2
    good, bad = json.loads(result.output)
    assert (good["test"], good["ok"], good["problems"]) == ("ttree-read", True, [])
    assert (bad["test"], bad["ok"]) == (str(folder), False)
    [problem] = bad["problems"]
    assert problem.startswith(f"{folder}/test.toml:5: matrix.root: ")


def test_check_finds_syntax_errors_of_payloads(run: Run, write_test: WriteTest) -> None:
    folder = write_test()
    [payload] = folder.glob("*.py")
    payload.write_text("import os\ndef read(:\n")
    result = run("check", str(folder))
    assert result.exit_code == 2
    assert f"{payload.name}:2: invalid syntax (expected valid Python)" in result.output


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        pytest.param('run("""\npass.Report("kept", 1.);\n""")\n', "", id="declared"),
        pytest.param(
            'url = "root://x"\nrun("""\np . Report( "kepp", 1.);\n""")\n',
            "read.py:3 reports 'kepp', which is not declared: add [metrics.kepp]; did you mean "
            "'kept'?",
            id="loop",
        ),
        pytest.param(
            "run_uproot(lambda events, report: report('read', 1))\n",
            "read.py:1 reports 'read', which is not declared: add [metrics.read]",
            id="uproot",
        ),
        pytest.param(
            '# pass.Report("read", 1)\n"""\n// pass.Report("read", 1)\n/*\n .Report("a") */"""\n',
            "",
            id="comments",
        ),
        pytest.param("print(report('read'))\n", "", id="function of its own"),
    ],
)
def test_check_finds_reported_metrics_that_are_not_declared(
    run: Run, write_test: WriteTest, payload: str, problem: str
) -> None:
    folder = write_test('[metrics.kept]\nunit = "1"\n', read_py=payload)
    result = run("check", str(folder))
    assert result.exit_code == (2 if problem else 0), result.output
    assert problem in result.output


def test_check_accepts_the_path_of_test_toml(run: Run, write_test: WriteTest) -> None:
    result = run("check", str(write_test() / "test.toml"))
    assert result.exit_code == 0, result.output
    assert result.output.startswith("ok ")


def test_folder_takes_precedence_over_a_shipped_test(
    run: Run, write_test: WriteTest, tmp_path: Path
) -> None:
    assert "Did you mean 'ttree-read'?" in str(run("show", "ttree-raed").exception)
    write_test().rename(tmp_path / "ttree-read")
    assert shown(run("show", "ttree-read", "--json"))["test"]["name"] == "mine"


@pytest.mark.parametrize(
    ("texts", "axes"),
    [
        (["a=1,2"], {"a": ("1", "2")}),
        (["a=1", "b=x", "a=2"], {"a": ("1", "2"), "b": ("x",)}),
        (["a=M_*\\,J,K=1"], {"a": ("M_*,J", "K=1")}),
        (["a = 1 , 2"], {"a": ("1", "2")}),
        (["a="], {"a": ()}),
    ],
)
def test_parameters_are_split_at_commas(texts: list[str], axes: dict[str, tuple[str, ...]]) -> None:
    assert parse_axis_options(texts) == axes


@pytest.mark.parametrize("text", ["a", "=1", " =1"])
def test_incomplete_parameter_is_a_usage_error(text: str) -> None:
    with pytest.raises(click.UsageError):
        parse_axis_options([text])
