"""Deletion of verticals: nothing needs a single one, and the core passes its checks without all of them."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from captured_runs import run_captured
from repository_code import REPOSITORY

from treehammer.verticals import VERTICALS

#: Unit tests that run without all verticals, of commands, pages and plans; all others are collected,
#: which imports them.
WITHOUT_ALL = "test_docs or test_extensions or test_web_walk or test_submit_plan"
#: Follows the links of all pages, which is where the pages of verticals meet.
WALK = "tests/unit/web/test_web_walk.py::test_every_page_has_search_heading_and_footer"
#: Verticals whose absence the pages of others might notice.
WITH_PAGES = [name for name in VERTICALS if (REPOSITORY / name / "pages").is_dir()]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy Git's files."""
    copy = tmp_path_factory.mktemp("deletion") / "copy"
    names = run_captured(["git", "ls-files"], cwd=REPOSITORY, check=True).stdout
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


HELPERS = {file.stem: file for file in (REPOSITORY / "tests/helpers").glob("*/*.py")}


@cache
def list_imports(file: Path) -> frozenset[str]:
    """List the modules that a file and its helpers import when they are loaded, with imported names."""
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    helpers = HELPERS.keys() & {name.partition(".")[0] for name in names}
    return frozenset(names).union(*(list_imports(HELPERS[name]) for name in helpers))


@pytest.mark.parametrize("vertical", VERTICALS)
def test_unit_tests_of_a_vertical_need_no_other(vertical: str) -> None:
    """A contract of import-linter holds that neither does its code: a single one can be deleted."""
    other_packages = tuple(f"treehammer.{name}." for name in VERTICALS if name != vertical)
    foreign = {
        f"{file}: {module}"
        for file in (REPOSITORY / "tests/unit" / vertical).rglob("*.py")
        for module in list_imports(file)
        if f"{module}.".startswith(other_packages)
    }
    assert foreign == set()


@pytest.mark.slow
@pytest.mark.parametrize("vertical", WITH_PAGES)
def test_pages_work_without(vertical: str, copy: Path) -> None:
    with without(copy, [vertical]):
        run(copy, ".venv/bin/pytest", "-p", "no:cacheprovider", "--quiet", WALK)


@pytest.mark.slow
def test_core_alone_is_complete(copy: Path) -> None:
    """Without all verticals at once, since types of tests take most of the time."""
    code = "import treehammer; print(treehammer.__file__)"
    with without(copy, VERTICALS):
        imported = run(copy, ".venv/bin/python", "-c", code)
        assert imported == f"{copy / 'src' / 'treehammer' / '__init__.py'}\n"
        run(copy, ".venv/bin/lint-imports", "--no-logo")
        # By the recipe of ``make check``, without installing again.
        run(copy, "make", "--old-file=install", "unit", f'ARGS=tests/unit -k "{WITHOUT_ALL}"')
        # Types of the product follow from its imports, which import-linter has checked.
        run(copy, ".venv/bin/mypy", "tests", "docs", "benchmarks", "scripts")
