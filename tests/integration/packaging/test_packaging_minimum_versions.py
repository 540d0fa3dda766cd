"""The lowest versions that setup.cfg declares: each of them is one that somebody may have."""

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

#: Tests of what other versions once did otherwise: SciPy, Uvicorn, uproot; and what runs them.
TOLD_APART = (
    "tests/unit/analysis/test_analysis_statistics.py",
    "tests/unit/web/test_web_pages.py::test_only_a_proxy_is_believed",
    "tests/unit/web/test_web_explore.py::test_files_hold_what_is_shown",
)
RUNNERS = ("pytest", "pytest-timeout", "httpx", "hypothesis")

REPOSITORY = Path(__file__).resolve().parents[3]


def run(*command: str | Path) -> str:
    """What a command prints; it runs where nothing of the checkout is found by accident."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode and "Failed to fetch" in done.stderr:
        skip_or_fail(f"the package index cannot be reached: {done.stderr}")
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def lowest(folder: Path) -> Path:
    """A Python beside which the lowest declared version of each requirement is installed.

    Only of what is there as a wheel for this Python: nobody builds Arrow from its sources.
    """
    declared = configparser.ConfigParser(interpolation=None)
    declared.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    wanted, found, env = folder / "wanted.txt", folder / "found.txt", folder / "env"
    wanted.write_text(declared["options"]["install_requires"], encoding="utf-8")
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
    python = lowest(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "src"))
    monkeypatch.setenv("TREEHAMMER_SERVE_READING", "open")
    served = ServiceProcess(tmp_path, python=python)
    (tmp_path / "data").mkdir()
    with Store.open(served.database) as store:
        store.add([full_measurement(index) for index in range(3)])

    verb = (python, "-m", "treehammer", "--data-dir", tmp_path / "data", "--database")
    assert "ttree-read" in run(*verb, served.database, "tests", "list")
    exported = tmp_path / "all.parquet"
    run(*verb, served.database, "export", exported)
    anew = f"sqlite:///{tmp_path / 'anew.db'}"
    run(*verb, anew, "import", exported)
    assert read_whole_rows(anew) == read_whole_rows(served.database)

    # What is deprecated by now is none of ours.
    calm = ("-W", "ignore::DeprecationWarning", "-p", "no:cacheprovider")
    run(
        python,
        "-m",
        "pytest",
        "--rootdir",
        REPOSITORY,
        *calm,
        *(REPOSITORY / t for t in TOLD_APART),
    )

    served.start()
    try:
        context = ssl.create_default_context(cafile=served.authority.ca)
        with urllib.request.urlopen(f"{served.url}/", context=context) as page:
            assert "Treehammer" in page.read().decode()
    finally:
        served.end_process()
