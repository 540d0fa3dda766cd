"""Commands ``treehammer tests …``, and the axis ``commit``."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from captured_runs import commit_all, make_repository, run_git
from click.testing import CliRunner, Result

from treehammer.config import Settings, load_settings
from treehammer.errors import DefinitionError, NothingToDoError, SourceError
from treehammer.hctests.cli import parse_axis_options
from treehammer.hctests.definition.execution_order import group_variants
from treehammer.hctests.definition.test_identity import PinnedTest, compute_test_hash
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.submit.cli.check_commands import tests as commands

WriteTest = Callable[..., Path]
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    settings = load_settings({"cache_dir": tmp_path / "cache"}, environ={}, folder=tmp_path)
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(commands, arguments, obj=settings, standalone_mode=False)

    return invoke


def shown(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


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
    combinations = itertools.product(("root", "https"), ("x", "y"))
    assert [(row["door"], row["mine"]) for row in table] == [*combinations]


def test_show_refuses_invalid_parameters(run: Run, write_test: WriteTest) -> None:
    folder = str(write_test())
    assert isinstance(run("show", folder, "-P", "cachemb=0").exception, DefinitionError)
    result = run("show", folder, "-P", "cache_mb")
    assert "expected -P AXIS=V1,V2" in str(result.exception)


def test_check_reports_all_mistakes(run: Run, write_test: WriteTest) -> None:
    folder = write_test("[matrix]\nroot = [6.40]\ncache_mb = [-1]\n")
    result = run("check", "ttree-read", str(folder / "test.toml"), "nowhere")
    assert result.return_value == 2
    lines = result.output.splitlines()
    assert lines[0].startswith("ok ttree-read: ttree-read")
    assert lines[1].startswith(f"{folder}/test.toml:5: matrix.root: ")
    assert lines[2].startswith(f"{folder}/test.toml:6: matrix.cache_mb: ")
    assert "nowhere: no folder or shipped test" in lines[3]


def test_check_finds_syntax_errors_of_payloads(run: Run, write_test: WriteTest) -> None:
    result = run("check", str(write_test(read_py="import os\ndef read(:\n")))
    assert result.return_value == 2
    assert "read.py:2: invalid syntax (expected valid Python)" in result.output


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
    assert result.return_value == (2 if problem else 0), result.output
    assert problem in result.output


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
    with pytest.raises(click.UsageError):
        parse_axis_options(["=1"])


TEST_TOML = """
[test]
name = "mine"
payload = "{payload}"
seed = 7
[matrix]
root = ["6.38.00", "6.40.00"]
branches = [{branches}]
bundle = ["root"]
[settings]
block = {block}
"""


class TestRepository:
    """A repository with the test ``tests/read`` at tag ``v1`` and on branch ``main``."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.settings: Settings = load_settings(
            {"cache_dir": folder / "cache"}, environ={}, folder=folder
        )
        self.top = folder / "repository"
        self.test = self.top / "tests" / "read"
        self.test.mkdir(parents=True)
        make_repository(self.top)
        self.write("read.py", 1)
        first = commit_all(self.top)
        run_git(self.top, "tag", "v1")
        self.write("scan.C", 2)
        self.commits = [first, commit_all(self.top)]

    def write(
        self, payload: str, block: int | str, content: str = "", branches: str = "1.0"
    ) -> None:
        text = TEST_TOML.format(payload=payload, block=block, branches=branches)
        (self.test / "test.toml").write_text(text)
        (self.test / payload).write_text(content)

    def pin(self, *commits: str, spec: str = "", **overrides: str) -> PinnedTest:
        named = {f"settings.{key}": value for key, value in overrides.items()}
        axes = {"commit": commits} if commits else {}
        return load_pinned_test(spec or str(self.test), axes, named, self.settings)


@pytest.fixture
def tests(tmp_path: Path) -> TestRepository:
    return TestRepository(tmp_path)


def test_commits_have_their_own_payload_and_settings(tests: TestRepository) -> None:
    pinned = tests.pin("v1", "main")
    first, second = pinned.commits.values()
    assert [*pinned.commits] == tests.commits
    assert pinned.definition.axes["commit"] == tuple(pinned.commits)
    assert (first.definition.test.payload, second.definition.test.payload) == ("read.py", "scan.C")
    assert [test.definition.settings["block"] for test in (first, second)] == [1, 2]
    assert (first.folder / "read.py").is_file()
    pinned = tests.pin("v1", "main", spec=f"{tests.top}@main:tests/read", block="5")
    assert {test.definition.settings["block"] for test in pinned.commits.values()} == {5}


def test_commits_take_turns_in_the_series_that_they_form_alone(tests: TestRepository) -> None:
    pinned = tests.pin("v1", "main")
    alone = [tests.pin(spec=f"{tests.top}@{ref}:tests/read") for ref in ("v1", "main")]
    assert [*map(compute_test_hash, pinned.commits.values())] == [*map(compute_test_hash, alone)]
    groups = group_variants(pinned.definition, "file")
    assert len({variant.canonical_json for variant in groups[0].variants}) == 1
    assert {variant.commit for variant in groups[0].variants} == set(pinned.commits)
    releases = [[variant["root"] for variant in group.variants] for group in groups]
    assert releases == [["6.38.00"] * 2, ["6.40.00"] * 2]


def test_working_tree_is_compared_with_a_commit(tests: TestRepository) -> None:
    with pytest.raises(NothingToDoError, match="commit main and the working tree hold the same"):
        tests.pin("main", ".")
    tests.write("scan.C", 2, content="changed")
    head, tree = tests.pin("main", ".").commits.items()
    assert tree[0].startswith(f"{head[0]}+")
    assert (head[1].dirty, tree[1].dirty) == (False, True)
    with pytest.raises(SourceError, match="no working tree"):
        tests.pin("main", ".", spec=f"{tests.top}@main:tests/read")


def test_mistakes_name_the_commit(tests: TestRepository) -> None:
    with pytest.raises(SourceError, match="v2"):
        tests.pin("v1", "v2")
    tests.write("scan.C", '2\n[metrics.a]\nunit = "ms"')
    commit_all(tests.top)
    tests.write("scan.C", '2\n[metrics.a]\nunit = "s"')
    with pytest.raises(DefinitionError, match="a is in ms, and in s in the named"):
        tests.pin("main", ".")
    (tests.test / "branches.txt").write_text("Muon_pt\n")
    tests.write("scan.C", 2, branches='"@branches.txt"')
    with pytest.raises(DefinitionError, match=r"commit v1: tests/read: there is no file 'branches"):
        tests.pin("v1", ".")


def test_outside_git_there_are_no_commits(tests: TestRepository, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not committed"):
        tests.pin("v1", "main", spec=str(tests.test.rename(tmp_path / "outside")))
