"""Results that must not depend on the release, and private builds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.software import providers, wheels
from treehammer.collectors.software.wheels import Release, make_root_release

pytestmark = pytest.mark.root

Run = Callable[..., Any]

KIT = Path(providers.__file__).parents[1] / "kit"

REWRITE = """
import sys, os, ROOT
source = ROOT.TFile.Open(sys.argv[1]); tree = source.Get("events")
target = ROOT.TFile(sys.argv[2], "RECREATE", "", 404)  # LZ4 instead of zlib
copy = tree.CloneTree(0); copy.SetAutoFlush(123); copy.CopyEntries(tree); target.Write()
sys.stdout.flush(); os._exit(0)
"""


def test_releases_read_the_same_values_of_any_layout(
    all_releases: list[providers.SoftwareSetup],
    tree_file: Path,
    run_payload: Run,
    run_script: Run,
    tmp_path: Path,
) -> None:
    rewritten = tmp_path / "rewritten.root"
    run_script(all_releases[0], REWRITE, tree_file, rewritten)
    sums = {
        run_payload(setup, path, kind="checksum").values["value_checksum"]
        for setup in all_releases
        for path in (tree_file, rewritten)
    }
    assert len(sums) == 1


def test_releases_read_the_same_amount(
    all_releases: list[providers.SoftwareSetup], tree_file: Path, run_payload: Run
) -> None:
    old, new = (
        run_payload(setup, tree_file, branches=0.2, events=0.3).values for setup in all_releases
    )
    for name in ("loop_unzipped_bytes", "events_read", "branches_selected", "selected_zip_bytes"):
        assert old[name] == new[name]


@pytest.fixture
def build(tmp_path: Path, latest_release: providers.SoftwareSetup) -> Path:
    """An installation with a thisroot.sh around the ROOT of a wheel."""
    python = Path(latest_release.python)
    packages = next((python.parent.parent / "lib").glob("python3*/site-packages"))
    script = tmp_path / "bin" / "thisroot.sh"
    script.parent.mkdir()
    script.write_text(
        f"export ROOTSYS={packages}/ROOT\n"
        f"export PATH={packages}/ROOT/bin:{python.parent}:$PATH\n"
        f"export PYTHONPATH={packages}${{PYTHONPATH:+:$PYTHONPATH}}\n"
    )
    return tmp_path


def test_private_build_reports_its_version_without_the_users_python(
    build: Path, tree_file: Path, run_payload: Run
) -> None:
    request = providers.prepare_software(
        providers.parse_software_request(f"path:{build}@6.41.01"), build
    )
    env = {**os.environ, "PYTHONPATH": str(Path(sys.prefix) / "nowhere")}
    setup = providers.setup_software(request, env, KIT)
    assert "nowhere" not in setup.env["PYTHONPATH"]
    done = run_payload(setup, tree_file, fresh=True)
    assert (done.failure, done.code) == (None, 0)
    # The worker refuses such a measurement.
    assert (request.version, done.values["root_version"]) == ("6.41.01", "6.40.00")


def test_two_processes_prepare_one_release_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "made"
    monkeypatch.setattr(
        wheels,
        "install_release",
        lambda folder, release, say, lock: _slow_fake(folder, release, log),
    )
    request = providers.parse_software_request("6.40.00")
    with ThreadPoolExecutor(2) as pool:
        notes: list[str] = []
        jobs = [
            pool.submit(providers.prepare_software, request, tmp_path, notes.append)
            for _ in range(2)
        ]
        locations = {job.result().location for job in jobs}
    assert locations == {str(tmp_path / "root-6.40.00")}
    assert log.read_text() == "made\n"
    assert notes == ["waiting for ROOT 6.40.00"]


def _slow_fake(folder: str, release: Release, log: Path) -> None:
    time.sleep(0.5)
    with log.open("a") as stream:
        stream.write("made\n")
    python = Path(folder) / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    name = f"root-{release.wheel}.dist-info"
    records = Path(folder) / "lib" / "python3.11" / "site-packages" / name / "RECORD"
    records.parent.mkdir(parents=True)
    records.write_text("")
    wheels.write_marker(folder, release)


def test_environment_without_python_is_not_used(tmp_path: Path) -> None:
    _slow_fake(str(tmp_path / "root-6.40.00"), make_root_release("6.40.00"), tmp_path / "log")
    assert providers.list_prepared_releases(tmp_path) == {"6.40.00": str(tmp_path / "root-6.40.00")}
    python = tmp_path / "root-6.40.00" / "bin" / "python"
    python.unlink()
    python.symlink_to(tmp_path / "gone")
    assert providers.list_prepared_releases(tmp_path) == {}
    request = replace(
        providers.parse_software_request("6.40.00"), location=str(tmp_path / "root-6.40.00")
    )
    with pytest.raises(ExecutionError, match="is not installed"):
        providers.setup_software(request, os.environ, KIT)
