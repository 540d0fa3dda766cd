"""Wheel built by the release's own steps, and installed: alone, with extras, offline, with the lowest versions."""

from __future__ import annotations

import configparser
import os
import re
import ssl
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest
import yaml
from captured_runs import run_captured
from machine_requirements import skip_or_fail
from measurement_factory import full_measurement
from service_process import ServiceProcess, read_whole_rows

from treehammer import start_commands
from treehammer.sql.write.store import Store
from treehammer.version import __version__

#: Tests whose results once depended on the version of SciPy, Uvicorn or uproot.
VERSION_DEPENDENT_TESTS = (
    "tests/unit/analysis/test_analysis_statistics.py",
    "tests/unit/web/test_web_common_pages.py::test_forwarded_headers_require_the_secret_of_the_proxy",
    "tests/unit/explore/test_explore_pages.py::test_files_of_figures",
)
#: Extras of the service, its figures, and the fixtures that pytest loads.
TESTED_EXTRAS = ("report", "export", "grid", "uproot", "service", "testbed")
RUNNERS = ("pytest", "pytest-timeout", "pytest-rerunfailures", "httpx", "hypothesis")

REPOSITORY = Path(__file__).resolve().parents[3]
UV = (sys.executable, "-m", "uv", "--quiet")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def run(*command: str | Path, folder: Path = Path("/"), **environment: str) -> str:
    """Run a command outside the checkout and return its output."""
    words = [str(word) for word in command]
    done = run_captured(words, cwd=folder, env=os.environ | environment)
    if done.returncode and re.search("Failed to fetch|No matching distribution", done.stderr):
        skip_or_fail(f"the package index cannot be reached: {done.stderr}")
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clone of the files that Git tracks, with what the release workflow builds.

    It installs the wheel as documented for machines without network: from a folder of wheels.
    """
    folder = tmp_path_factory.mktemp("package") / "treehammer"
    run("git", "clone", "--quiet", REPOSITORY, folder)
    jobs = yaml.safe_load((folder / ".github/workflows/release.yml").read_text())["jobs"]
    steps = {step["name"]: step["run"] for step in jobs["build"]["steps"] if "run" in step}
    assert [*steps] == ["Check the tag", "Check the changelog", "Build", "Try the wheel"]
    # The runner's Python is on its path; compiling every package would take most of the time.
    runner, wheels = folder.parent / "runner", folder.parent / "wheelhouse"
    run(*UV, "venv", "--seed", "--python", sys.executable, runner)
    environment = {
        "GITHUB_REF_NAME": f"v{__version__}",
        "PATH": f"{runner / 'bin'}:{os.environ['PATH']}",
        "PIP_NO_COMPILE": "0",  # which pip takes for yes: it is the value of "compile"
    }
    for name, script in steps.items():
        if name == "Try the wheel":
            built = (folder / "dist").glob("*.whl")
            download = ("--quiet", "download", "--only-binary", ":all:", "--dest", wheels)
            run(runner / "bin/pip", *download, *built)
            environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        run("bash", "-euo", "pipefail", "-c", script, folder=folder, **environment)
    return folder


def install_lowest(python: Path, *extras: str, more: tuple[str | Path, ...] = ()) -> None:
    """Install the lowest declared versions of base and extras into an environment.

    Only wheels for this Python are taken: building Arrow from its sources would take hours.
    """
    declared = configparser.ConfigParser(interpolation=None)
    declared.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    requirements = declared["options.extras_require"]
    sections = (declared["options"]["install_requires"], *(requirements[name] for name in extras))
    lines = [line for text in sections for line in text.splitlines() if "treehammer[" not in line]
    # uv would keep the versions of an earlier result.
    bounds, lowest = (
        python.with_name(f"{name}-{len(extras)}.txt") for name in ("bounds", "lowest")
    )
    bounds.write_text("\n".join(lines), encoding="utf-8")
    wheels = ("--only-binary", ":all:", "--python", python)
    run(*UV, "pip", "compile", "--resolution", "lowest-direct", *wheels, bounds, "-o", lowest)
    run(*UV, "pip", "install", *wheels, "-r", lowest, *more)


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """Return the wheel of the release."""
    (wheel,) = (source / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Python of an environment with the wheel and the lowest base requirements."""
    path = tmp_path_factory.mktemp("lowest") / "env" / "bin" / "python"
    run(*UV, "venv", "--python", sys.executable, path.parents[1])
    install_lowest(path)
    run(*UV, "pip", "install", "--no-deps", "--python", path, wheel)
    return path


def test_wheel_and_sdist_hold_the_rooms_of_the_product(source: Path, wheel: Path) -> None:
    rooms = [link.name for link in (source / "src/treehammer").iterdir() if link.is_symlink()]
    tracked = run("git", "ls-files", *rooms, "src", folder=source).splitlines()
    files = {f"treehammer/{name.removeprefix('src/treehammer/')}" for name in tracked}
    files -= {f"treehammer/{room}" for room in rooms}
    content = zipfile.ZipFile(wheel).namelist()
    assert {name for name in content if not name.startswith("treehammer-")} == files
    assert len([name for name in content if name.endswith("dist-info/licenses/LICENSE")]) == 1
    with tarfile.open(next((source / "dist").glob("*.tar.gz"))) as sdist:
        names = {
            name.partition("/")[2] for name in sdist.getnames() if not sdist.getmember(name).isdir()
        }
    assert {f"src/{file}" for file in files} <= names
    other_names = {name for name in names if not name.startswith("src/")}
    assert other_names == {
        *("CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md"),
        *("pyproject.toml", "ruff.toml", "setup.cfg"),
    }


def test_base_is_small(source: Path) -> None:
    """The limit is of unpacked files before Python compiles them: 44 MB in November 2026."""
    wheels = [zipfile.ZipFile(path) for path in (source.parent / "wheelhouse").iterdir()]
    assert len(wheels) <= 20
    assert sum(file.file_size for wheel in wheels for file in wheel.infolist()) <= 47e6


@pytest.mark.root
def test_installed_package_is_whole(
    python: Path, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Templates, migrations, worker, kit and datasets must all be in the package for this to work."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    run(*UV, "pip", "check", "--python", python)

    def treehammer(*words: str) -> str:
        program = python.with_name("treehammer")
        return run(program, "--data-dir", "data", *words, folder=tmp_path)

    # The demo's test, of one release and variant, needs no extra.
    few = ("-P", "root=6.40.00", "-P", "branches=0.02", "-P", "cache_mb=30", "-S", "rounds=1")
    treehammer("submit", start_commands.DEMO_TEST, *few, "-S", "repeats=1", "--wait")
    assert "access_rate_hz" in treehammer("summary")
    failed = run_captured(
        [python.with_name("treehammer"), "--data-dir", tmp_path / "data", "export", "results.csv"]
    )
    assert "uv pip install --python" in failed.stderr, "the environment has no pip"

    install_lowest(python, "report", "export")
    treehammer("export", "results.root")
    treehammer("export", "results.csv")
    treehammer("report", "-o", "report.html")
    assert (tmp_path / "results.root").stat().st_size > 5000
    assert (tmp_path / "results.csv").read_text(encoding="utf-8").count("\n") > 2
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
    code = "from importlib.resources import files; print(files('treehammer') / 'web/deployment')"
    deployment = Path(run(python, "-c", code).strip())
    assert (deployment / "nginx.conf.j2").exists()
    assert (deployment / "Caddyfile.j2").exists()
    code = "from treehammer import start_commands as demo; print(demo.find_demo_test())"
    assert run(python, "-c", code).split() == [start_commands.DEMO_TEST]


def test_lowest_declared_versions_work(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_lowest(python, *TESTED_EXTRAS, more=RUNNERS)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "src"))
    monkeypatch.setenv("TREEHAMMER_SERVE_READ_ACCESS", "public")
    served = ServiceProcess(tmp_path, python=python)
    (tmp_path / "data").mkdir()
    with Store.open(served.database) as store:
        store.add([full_measurement(index) for index in range(3)])

    command = (python, "-m", "treehammer", "--data-dir", tmp_path / "data", "--database")
    assert "ttree-read" in run(*command, served.database, "tests", "list")
    exported = tmp_path / "all.parquet"
    run(*command, served.database, "export", exported)
    imported = f"sqlite:///{tmp_path / 'imported.db'}"
    run(*command, imported, "import", exported)
    assert read_whole_rows(imported) == read_whole_rows(served.database)

    # Old versions use features that are deprecated by now.
    quiet = ("-W", "ignore::DeprecationWarning", "-p", "no:cacheprovider")
    selected = [REPOSITORY / test for test in VERSION_DEPENDENT_TESTS]
    run(python, "-m", "pytest", "--rootdir", REPOSITORY, *quiet, *selected)

    served.start()
    try:
        context = ssl.create_default_context(cafile=served.authority.ca)
        with urllib.request.urlopen(f"{served.url}/", context=context) as page:
            assert "Treehammer" in page.read().decode()
    finally:
        served.end_process()
