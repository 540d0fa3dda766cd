"""Deletion of each vertical and of all, in a copy: the core passes its checks without them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from repository_code import REPOSITORY

from treehammer.verticals import VERTICALS

#: Unit tests that run in the copy, of commands, pages and plans; all others are collected only,
#: which imports them and their helpers.
RUN = "test_docs or test_extensions or test_web_walk or test_submit_plan"


def copy_without(verticals: Iterable[str], copy: Path) -> None:
    """Copy Git's files, delete verticals with their tests, and commit the rest."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    for name in names.splitlines():
        source, target = REPOSITORY / name, copy / name
        if source.exists() or source.is_symlink():  # not deleted since the last commit
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
            # Otherwise Python and pytest would compile all modules anew.
            for bytecode in (source.parent / "__pycache__").glob(f"{source.stem}.*"):
                (target.parent / "__pycache__").mkdir(exist_ok=True)
                shutil.copy2(bytecode, target.parent / "__pycache__")
    for vertical in verticals:
        (copy / "src" / "treehammer" / vertical).unlink()
        for folder in (copy / vertical, *copy.glob(f"tests/*/{vertical}")):
            shutil.rmtree(folder)
    (copy / ".venv").symlink_to(REPOSITORY / ".venv")
    if (cache := REPOSITORY / ".mypy_cache").is_dir():
        shutil.copytree(cache, copy / ".mypy_cache")
    for words in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *words], cwd=copy, check=True)


def run(copy: Path, *command: str) -> str:
    """Run a command with the code of the copy."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "GIT_", "MAKE", "MFLAGS", "COV_"))
    }
    environment |= {"PYTHONPATH": str(copy / "src"), "TREEHAMMER_TEST_WORKERS": "0"}
    done = subprocess.run(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("vertical", [name for name in VERTICALS if (REPOSITORY / name).is_dir()])
def test_core_is_complete_without(vertical: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy_without([vertical], copy)
    code = (
        "from importlib.util import find_spec; import treehammer;"
        f"print(treehammer.__file__, find_spec('treehammer.{vertical}'))"
    )
    imported = run(copy, ".venv/bin/python", "-c", code)
    assert imported == f"{copy / 'src' / 'treehammer' / '__init__.py'} None\n"
    run(copy, ".venv/bin/lint-imports", "--no-logo")
    # Without installing again; the recipe is that of `make check`.
    run(copy, "make", "--old-file=install", "unit", f'ARGS=tests/unit -k "{RUN}"')


@pytest.mark.slow
def test_types_of_the_core_alone_are_complete(tmp_path: Path) -> None:
    """Without all verticals at once, since types take most of the time of ``make lint``."""
    copy = tmp_path / "copy"
    copy_without(list(VERTICALS), copy)
    run(copy, ".venv/bin/mypy")
    run(copy, ".venv/bin/mypy", "tests", "docs", "benchmarks", "scripts")
