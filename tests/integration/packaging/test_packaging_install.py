"""Wheel and sdist, each installed into an empty environment and used outside the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist, built from a clean export of the files that Git tracks."""
    source = tmp_path_factory.mktemp("source") / "treehammer"
    run("git", "clone", "--quiet", REPOSITORY, source, folder=REPOSITORY)
    out = source.parent / "dist"
    # The sdist is built from the tree, the wheel from the sdist, as for PyPI.
    run(sys.executable, "-m", "build", "--outdir", out, source, folder=source)
    return out


def install(packages: Path, pattern: str, folder: Path) -> Path:
    """Install with the base requirements only; returns the folder of its programs."""
    (package,) = packages.glob(pattern)
    uv = (sys.executable, "-m", "uv", "--quiet")
    run(*uv, "venv", "--python", sys.executable, folder, folder=folder.parent)
    run(*uv, "pip", "install", "--python", folder / "bin" / "python", package, folder=folder.parent)
    return folder / "bin"


@pytest.fixture
def empty_folder(tmp_path: Path) -> Path:
    """A working folder from which no file of the checkout is found."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


def test_sdist_is_whole(packages: Path, tmp_path: Path, empty_folder: Path) -> None:
    programs = install(packages, "*.tar.gz", tmp_path / "env")
    folder = empty_folder
    options: list[str | Path] = ["--data-dir", folder / "data", "--cache-dir", folder / "cache"]

    def treehammer(*words: str) -> str:
        return run(programs / "treehammer", *options, *words, folder=folder)

    assert "ttree-read" in treehammer("tests", "list")
    assert treehammer("tests", "check", "ttree-read")
    datasets = json.loads(treehammer("datasets", "list", "--json"))
    assert "reference-small" in {row["name"] for row in datasets}
    (folder / "test.toml").write_text(
        '[test]\nname = "hello"\npayload = "hello.sh"\nrepeats = 1\nrounds = 1\n', encoding="utf-8"
    )
    script = folder / "hello.sh"
    script.write_text(
        '#!/bin/sh\nprintf \'{"format": 1, "values": {}, "extras": {}}\' > "$TREEHAMMER_RESULT"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    # Templates, migrations, worker and schema must all be in the package for this to work.
    treehammer("submit", str(folder), "--wait")
    treehammer("export", "results.csv")
    treehammer("report", "-o", "report.html")
    assert (folder / "results.csv").read_text(encoding="utf-8").count("\n") == 2
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    table = (REPOSITORY / "analysis" / "statistics" / "power_table.csv").read_text(encoding="utf-8")
    code = (
        "from treehammer.analysis.statistics.power_table import load_shipped_table as load\n"
        "print(len(load()))"
    )
    cells = int(run(programs / "python", "-c", code, folder=folder))
    assert cells == len(table.splitlines()) - 1


@pytest.mark.root
def test_wheel_runs_the_demo_from_an_empty_folder(
    packages: Path, tmp_path: Path, empty_folder: Path
) -> None:
    programs = install(packages, "*.whl", tmp_path / "env")
    installed = run(
        sys.executable, "-m", "uv", "--quiet", "pip", "freeze", "--python", programs / "python",
        folder=tmp_path,
    )  # fmt: skip
    for package in ("htcondor", "rucio-clients", "starlette", "uproot", "psycopg"):
        assert package not in installed
    output = run(programs / "treehammer", "demo", folder=empty_folder)
    assert "an illustration, not a verdict" in output
    files = {path.name for path in (empty_folder / "demo-results").iterdir()}
    assert {"report.html", "results.root", "results.db"} <= files
