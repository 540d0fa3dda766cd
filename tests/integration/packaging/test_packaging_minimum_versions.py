"""The lowest versions of requirements that setup.cfg declares."""

from __future__ import annotations

import configparser
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from machine_requirements import skip_or_fail
from measurement_factory import full_measurement
from service_process import ServiceProcess, read_whole_rows

from treehammer.sql.write.store import Store

#: Tests whose results once depended on the version of SciPy, Uvicorn or uproot.
VERSION_DEPENDENT_TESTS = (
    "tests/unit/analysis/test_analysis_statistics.py",
    "tests/unit/web/test_web_common_pages.py::test_forwarded_headers_require_trusted_proxy",
    "tests/unit/web/test_web_explore.py::test_files_agree_with_table",
)
#: Extras of the service, its figures, and the fixtures that pytest loads.
TESTED_EXTRAS = ("grid", "uproot", "service", "testbed")
RUNNERS = ("pytest", "pytest-timeout", "pytest-rerunfailures", "httpx", "hypothesis")

REPOSITORY = Path(__file__).resolve().parents[3]


def run(*command: str | Path) -> str:
    """Run a command outside the checkout and return its output."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode and "Failed to fetch" in done.stderr:
        skip_or_fail(f"the package index cannot be reached: {done.stderr}")
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def make_lowest_environment(folder: Path) -> Path:
    """Install the lowest declared version of each requirement beside a new Python.

    Only wheels for this Python are taken: building Arrow from its sources would take hours.
    """
    declared = configparser.ConfigParser(interpolation=None)
    declared.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    extras = declared["options.extras_require"]
    sections = (declared["options"]["install_requires"], *(extras[name] for name in TESTED_EXTRAS))
    lines = [line for text in sections for line in text.splitlines() if "treehammer[" not in line]
    wanted, found, env = folder / "wanted.txt", folder / "found.txt", folder / "env"
    wanted.write_text("\n".join(lines), encoding="utf-8")
    uv = (sys.executable, "-m", "uv", "--quiet")
    wheels = ("--only-binary", ":all:", "--python")
    run(
        *(*uv, "pip", "compile", "--resolution", "lowest-direct"),
        *(*wheels, sys.executable, wanted, "-o", found),
    )
    run(*uv, "venv", "--python", sys.executable, env)
    python = env / "bin" / "python"
    run(*uv, "pip", "install", *wheels, python, "-r", found, *RUNNERS)
    return python


@pytest.mark.slow
def test_lowest_declared_versions_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = make_lowest_environment(tmp_path)
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
    run(
        python,
        "-m",
        "pytest",
        "--rootdir",
        REPOSITORY,
        *quiet,
        *(REPOSITORY / t for t in VERSION_DEPENDENT_TESTS),
    )

    served.start()
    try:
        context = ssl.create_default_context(cafile=served.authority.ca)
        with urllib.request.urlopen(f"{served.url}/", context=context) as page:
            assert "Treehammer" in page.read().decode()
    finally:
        served.end_process()
