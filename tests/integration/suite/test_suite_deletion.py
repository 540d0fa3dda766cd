"""Deletion of each vertical and of all, in a copy: the core passes its checks without them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from repository_code import REPOSITORY

from treehammer.verticals import VERTICALS

#: Unit tests that run without all verticals, of commands, pages and plans, and without a single one,
#: whose absence the walk over all pages notices; all others are collected, which imports them.
WITHOUT_ALL = "test_docs or test_extensions or test_web_walk or test_submit_plan"
WITHOUT_ONE = "test_every_page_has_search"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy Git's files."""
    copy = tmp_path_factory.mktemp("deletion") / "copy"
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
    (copy / ".venv").symlink_to(REPOSITORY / ".venv")
    if (cache := REPOSITORY / ".mypy_cache").is_dir():
        shutil.copytree(cache, copy / ".mypy_cache")
    subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)
    return copy


@contextmanager
def without(copy: Path, verticals: Iterable[str]) -> Iterator[None]:
    """Take verticals with their tests out of the copy, and put them back."""
    aside, folders = copy.with_name("aside"), []
    for vertical in verticals:
        folders += [copy / "src" / "treehammer" / vertical, copy / vertical]
        folders += copy.glob(f"tests/*/{vertical}")
    for folder in folders:
        target = aside / folder.relative_to(copy)
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)
    subprocess.run(["git", "add", "--all"], cwd=copy, check=True)
    try:
        yield
    finally:
        for folder in folders:
            (aside / folder.relative_to(copy)).rename(folder)


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


def run_unit_tests(copy: Path, selection: str) -> None:
    """Run some unit tests by the recipe of ``make check``, without installing again."""
    run(copy, "make", "--old-file=install", "unit", f'ARGS=tests/unit -k "{selection}"')


@pytest.mark.slow
@pytest.mark.parametrize("vertical", [name for name in VERTICALS if (REPOSITORY / name).is_dir()])
def test_core_works_without(vertical: str, copy: Path) -> None:
    code = (
        "from importlib.util import find_spec; import treehammer;"
        f"print(treehammer.__file__, find_spec('treehammer.{vertical}'))"
    )
    with without(copy, [vertical]):
        imported = run(copy, ".venv/bin/python", "-c", code)
        assert imported == f"{copy / 'src' / 'treehammer' / '__init__.py'} None\n"
        run_unit_tests(copy, WITHOUT_ONE)


@pytest.mark.slow
def test_core_alone_is_complete(copy: Path) -> None:
    """Without all verticals at once, since types take most of the time of ``make lint``."""
    with without(copy, VERTICALS):
        run(copy, ".venv/bin/lint-imports", "--no-logo")
        run_unit_tests(copy, WITHOUT_ALL)
        run(copy, ".venv/bin/mypy")
        run(copy, ".venv/bin/mypy", "tests", "docs", "benchmarks", "scripts")
