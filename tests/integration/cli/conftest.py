"""One demo, run once as a user would in a fresh clone; its tests and the documentation share it."""

from __future__ import annotations

import subprocess

import pytest
from demo_checkout import REPOSITORY, Checkout, DemoRun, checkout_environment


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A fresh clone whose ``.venv`` is ours: installing is the packaging tests' matter."""
    folder = tmp_path_factory.mktemp("clone") / "treehammer"
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, folder], check=True)
    (folder / ".venv").symlink_to(REPOSITORY / ".venv")
    return Checkout(folder, checkout_environment(folder))


@pytest.fixture(scope="session")
def demo_run(checkout: Checkout) -> DemoRun:
    """``make demo`` without the installation."""
    done = subprocess.run(
        ["make", "--old-file=install", "demo"],
        cwd=checkout.folder,
        env=checkout.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return DemoRun(checkout.folder, checkout.environment, done.stdout)
