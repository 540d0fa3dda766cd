"""Git repositories in temporary folders, isolated from this machine's configuration."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from captured_runs import commit_all, make_repository, run_git

from treehammer.config import Settings, load_settings

DEFINITION_TEXT = '[test]\nname = "mine"\npayload = "read.py"\nfiles = ["sub/helper.h"]\n'


@pytest.fixture(autouse=True)
def isolated_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate_git(monkeypatch, tmp_path)


def isolate_git(patch: pytest.MonkeyPatch, ceiling: Path) -> None:
    """Ignore the configuration of this machine, and repositories above a folder."""
    for name in [name for name in os.environ if name.startswith(("GIT_", "SSH_"))]:
        patch.delenv(name)
    patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    patch.setenv("GIT_CEILING_DIRECTORIES", str(ceiling))
    for person in ("AUTHOR", "COMMITTER"):
        patch.setenv(f"GIT_{person}_NAME", "Tester")
        patch.setenv(f"GIT_{person}_EMAIL", "tester@example.org")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"cache_dir": tmp_path / "cache"}, environ={}, folder=tmp_path)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a test, a branch, a branch with a slash, and two kinds of tags."""
    folder = tmp_path_factory.mktemp("template") / "origin"
    test = folder / "tests" / "read"
    (test / "sub").mkdir(parents=True)
    (test / "test.toml").write_text(DEFINITION_TEXT)
    (test / "read.py").write_text("print('one')\n")
    (test / "sub" / "helper.h").write_text("#pragma once\n")
    (test / "run.sh").write_text("#!/bin/sh\n")
    (test / "run.sh").chmod(0o755)
    (test / "link.py").symlink_to("sub/helper.h")
    (folder / "README").write_text("tests\n")
    with pytest.MonkeyPatch.context() as patch:
        isolate_git(patch, folder.parent)
        make_repository(folder)
        commit_all(folder)
        run_git(folder, "tag", "light")
        run_git(folder, "tag", "-a", "v1.0", "-m", "release")
        run_git(folder, "branch", "feature/x")
    return folder


@pytest.fixture
def origin(template: Path, tmp_path: Path) -> Path:
    """The test's copy of the repository."""
    return Path(shutil.copytree(template, tmp_path / "origin", symlinks=True))
