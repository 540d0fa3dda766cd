"""Tests that hang: each fails alone, and all others run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from repository_code import REPOSITORY

HANGING = """
import ctypes, time

def test_before():
    pass

def test_waits():
    time.sleep(900)

def test_after():
    pass
"""
#: A child that ends with the test.
HANGING_IN_CHILD = HANGING.replace(
    "time.sleep(900)", 'import subprocess; subprocess.run(["sleep", "901.5"])'
)
#: A deadlock that no signal ends.
HANGING_IN_C = HANGING.replace(
    "time.sleep(900)",
    """
    mutex = ctypes.create_string_buffer(64)
    while not ctypes.PyDLL(None).pthread_mutex_lock(mutex):
        pass
""".strip(),
)


def test_hanging_test_fails_alone(tmp_path: Path) -> None:
    for name in ("setup.cfg", "scripts/test.sh", "tests/conftest.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy2(REPOSITORY / name, tmp_path / name)
    for name in ("tests/helpers", ".venv", "docs"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    hanging = {"python": HANGING, "child": HANGING_IN_CHILD, "c": HANGING_IN_C}
    for name, text in hanging.items():
        (tmp_path / "tests" / f"test_in_{name}.py").write_text(text)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    done = subprocess.run(
        ["scripts/test.sh", "-o", "timeout=5", "-o", "faulthandler_timeout=15"],
        cwd=tmp_path,
        env={**environment, "CI": "true", "TREEHAMMER_TEST_WORKERS": "2"},
        capture_output=True,
        text=True,
        timeout=400,  # four workers begin, each with 6 s of CPU, while the others work
        check=False,
    )
    failures = re.findall(r"^FAILED tests/(\S+)", done.stdout, re.MULTILINE)
    assert sorted(failures) == [f"test_in_{name}.py::test_waits" for name in sorted(hanging)]
    assert "3 failed, 6 passed" in done.stdout, done.stdout
    assert re.search(r"slowest .* durations", done.stdout)
    (slow,) = re.findall(r"^ *(\d+) s +tests/test_in_child.py, 3 tests$", done.stdout, re.MULTILINE)
    assert int(slow) >= 5
    assert subprocess.run(["pgrep", "-fx", "sleep 901.5"], check=False).returncode == 1
