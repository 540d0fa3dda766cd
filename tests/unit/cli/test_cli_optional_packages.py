"""Extras: imports at start-up, and the message for a missing extra."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from demo_checkout import REPOSITORY

from treehammer import errors
from treehammer.datasets.doors import xrootd
from treehammer.errors import EXTRA_OF_MODULE, MissingExtraError, explain_missing_extra

#: Program that runs a command without certain modules and prints all imported ones.
SCRIPT = """
import sys
from treehammer import cli
hidden, sys.argv = sys.argv[1], ["treehammer", *sys.argv[2:]]
if hidden:
    sys.modules[hidden] = None
try:
    cli.main()
finally:
    print("loaded:", *{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def run(folder: Path, hidden: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, hidden, *arguments],
        cwd=folder,
        env={**os.environ, "TREEHAMMER_DATA_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def loaded_modules(done: subprocess.CompletedProcess[str]) -> set[str]:
    _, _, names = done.stderr.rpartition("loaded:")
    return set(names.split())


@pytest.mark.parametrize(
    ("arguments", "code", "unused"),
    [
        (["--help"], 0, {"sqlalchemy", "rich"}),
        (["config", "show", "--help"], 0, {"sqlalchemy"}),
        (["status"], 3, {"alembic"}),
    ],
)
def test_commands_import_only_required_modules(
    tmp_path: Path, arguments: list[str], code: int, unused: set[str]
) -> None:
    heavy = {"numpy", "scipy", "pyarrow", "vl_convert", "git", "pydantic", "tree_sitter"}
    done = run(tmp_path, "", *arguments)
    assert done.returncode == code
    loaded = loaded_modules(done)
    assert "treehammer" in loaded
    assert not loaded & (heavy | unused | set(EXTRA_OF_MODULE))


@pytest.mark.parametrize(
    ("hidden", "arguments", "extra"),
    [
        ("uvicorn", ["serve"], "service"),
        ("cryptography", ["testbed", "up"], "testbed"),
        ("psycopg", ["--database", "postgresql://host/name", "status"], "service"),
        ("oracledb", ["--database", "oracle://user@host/?service_name=x", "status"], "oracle"),
    ],
)
def test_missing_extra_is_named(
    tmp_path: Path, hidden: str, arguments: list[str], extra: str
) -> None:
    done = run(tmp_path, hidden, *arguments)
    assert done.returncode == 2, done.stderr
    message = (
        f"treehammer: the Python package {hidden} is not installed; "
        f"run: pip install 'treehammer[{extra}]'\n"
    )
    assert done.stderr.startswith(message)


def test_other_missing_modules_keep_their_traceback() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), explain_missing_extra():
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    with pytest.raises(MissingExtraError, match=r"treehammer\[grid\]"), explain_missing_extra():
        raise ModuleNotFoundError("no rucio", name="rucio.client")


def test_missing_xrootd_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"treehammer\[grid\]"):
        xrootd.stat_file("root://host//file")


def test_extras_are_declared_and_base_is_small() -> None:
    declared = configparser.ConfigParser(interpolation=None)
    declared.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    assert set(EXTRA_OF_MODULE.values()) <= set(declared["options.extras_require"])
    names = re.findall(r"^[A-Za-z]", declared["options"]["install_requires"], re.MULTILINE)
    assert 0 < len(names) <= 15
