"""One run of the demo in a fresh clone, shared by its tests and those of the documentation."""

from __future__ import annotations

import subprocess

import pytest
from repository_code import REPOSITORY, Checkout, DemoRun, checkout_environment


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Clone the repository, with a link to this ``.venv`` instead of an installation."""
    folder = tmp_path_factory.mktemp("clone") / "treehammer"
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, folder], check=True)
    (folder / ".venv").symlink_to(REPOSITORY / ".venv")
    return Checkout(folder, checkout_environment(folder))


@pytest.fixture(scope="session")
def demo_run(checkout: Checkout) -> DemoRun:
    """Run ``make demo`` without the installation."""
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
