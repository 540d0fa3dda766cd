"""``tests check --compile`` with a real ROOT."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from treehammer import config
from treehammer.submit.cli.tests_check_command import tests as commands

TEST = """\
[test]
name = "mine"
payload = "{payload}"
files = {files}

[matrix]
root = ["{root}"]
"""
LOOP = "void loop(treehammer::Pass &pass) {}\n"
FRAME = (
    "from treehammer_kit import columns\n"
    'columns.run_dataframe("""\n'
    "void analyze(treehammer::FramePass &pass)\n"
    "{\n"
    '   pass.Keep(pass.frame.Filtre("x > 0"));\n'
    "   later_error();\n"
    "}\n"
    '""")\n'
)
UPROOT = (
    "from treehammer_kit import columns\nimport mising\ncolumns.run_uproot(lambda events, _: 0)\n"
)


@pytest.mark.parametrize(
    ("root", "sources", "problem"),
    [
        pytest.param(
            "6.40.00",
            {"loop.C": f'#include "error.hpp"\n{LOOP}', "error.hpp": "\nint two() { return 2 }\n"},
            "the payload's loop does not compile: error.hpp:2:21: error: expected ';' after return "
            "statement",
            id="macro",
        ),
        pytest.param(
            "6.40.00",
            {"read.py": FRAME},
            "the analysis does not compile; it must define 'void analyze(treehammer::FramePass "
            "&pass)': read.py:5:25: error: no member named 'Filtre' in ",
            id="data frame",
        ),
        pytest.param(
            "none",
            {"read.py": UPROOT},
            "The payload ended with exit code 1. ModuleNotFoundError: No module named 'mising'.",
            id="uproot",
        ),
    ],
)
def test_errors_that_would_fail_a_job_are_found(
    tmp_path: Path, root: str, sources: dict[str, str], problem: str
) -> None:
    payload, *files = sources
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    test = tmp_path / "test.toml"
    test.write_text(TEST.format(payload=payload, files=files, root=root))
    result = CliRunner().invoke(
        commands, ["check", str(tmp_path), "--compile"], obj=config.load_settings()
    )
    assert result.exit_code == 2, result.output
    assert result.output.startswith(
        f"{test}: test.payload: fails with ROOT {root} (payload). {problem}"
    ), result.output
    assert "later_error" not in result.output


def test_payloads_that_compile_are_good_before_their_dataset_is_made(tmp_path: Path) -> None:
    (tmp_path / "test.toml").write_text(TEST.format(payload="loop.C", files=[], root="6.40.00"))
    (tmp_path / "loop.C").write_text(LOOP)
    # The worker kills what descends from its process, with all of its process group.
    with subprocess.Popen(["sleep", "600"], process_group=0) as bystander:
        result = CliRunner().invoke(
            commands, ["check", str(tmp_path), "--compile"], obj=config.load_settings()
        )
        assert bystander.poll() is None
        bystander.kill()
    assert (result.exit_code, result.output) == (0, f"ok {tmp_path}: mine\n")
