"""Wheel built from the sdist, installed into an empty environment and used elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from treehammer import start_commands

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
    build = (sys.executable, "-m", "build", "--installer", "uv")
    run(*build, "--outdir", out, source, folder=source)
    return out


def install_wheel(packages: Path, folder: Path) -> Path:
    """Install with the base requirements only; returns the folder of its programs."""
    (package,) = packages.glob("*.whl")
    uv = (sys.executable, "-m", "uv", "--quiet")
    run(*uv, "venv", "--python", sys.executable, folder, folder=folder.parent)
    run(*uv, "pip", "install", "--python", folder / "bin" / "python", package, folder=folder.parent)
    return folder / "bin"


@pytest.mark.root
def test_installed_package_is_whole(packages: Path, tmp_path: Path) -> None:
    """Templates, migrations, worker, kit and datasets must all be in the package for this to work."""
    programs = install_wheel(packages, tmp_path / "env")
    installed = run(
        sys.executable, "-m", "uv", "--quiet", "pip", "freeze", "--python", programs / "python",
        folder=tmp_path,
    )  # fmt: skip
    for package in ("htcondor", "rucio-clients", "starlette", "uproot", "psycopg"):
        assert package not in installed
    folder = tmp_path / "elsewhere"  # no file of the checkout is found from here
    folder.mkdir()

    def treehammer(*words: str) -> str:
        return run(programs / "treehammer", "--data-dir", "data", *words, folder=folder)

    assert "ttree-read" in treehammer("tests", "list")
    assert treehammer("tests", "check", "ttree-read")
    datasets = json.loads(treehammer("datasets", "list", "--json"))
    assert "reference-small" in {row["name"] for row in datasets}
    # The commands of the demo, on two variants.
    few = ("-P", "branches=0.02", "-P", "cache_mb=30", "-S", "repeats=1", "-S", "rounds=1")
    treehammer("submit", start_commands.DEMO_TEST, *few, "--wait")
    compared = treehammer("compare", *start_commands.DEMO_RELEASES, "--campaign", "last")
    assert "too little read" in compared
    treehammer("export", "results.root")
    treehammer("export", "results.csv")
    treehammer("report", "-o", "report.html")
    assert (folder / "results.root").stat().st_size > 5000
    assert (folder / "results.csv").read_text(encoding="utf-8").count("\n") > 2
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    code = "from importlib.resources import files; print(files('treehammer') / 'web/deployment')"
    deployment = Path(run(programs / "python", "-c", code, folder=folder).strip())
    assert (deployment / "nginx.conf").exists()
    assert (deployment / "Caddyfile").exists()
    code = "from treehammer import start_commands as demo; print(demo.find_demo_test())"
    assert run(programs / "python", "-c", code, folder=folder).split() == [start_commands.DEMO_TEST]
