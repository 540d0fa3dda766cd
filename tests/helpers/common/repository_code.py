"""Code of this repository for tests: a fresh clone, modules of ``benchmarks/``, and all verbs."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from click.testing import CliRunner, Result

from treehammer.cli import cli
from treehammer.config import Settings, load_settings

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Checkout:
    """A clone of the committed state, and the environment in which its code and verbs are used."""

    folder: Path
    environment: dict[str, str]


@dataclass(frozen=True)
class DemoRun(Checkout):
    """A checkout in which ``make demo`` was run, and what it printed."""

    output: str


def checkout_environment(folder: Path) -> dict[str, str]:
    """The user's environment with ``.venv`` active and the clone's code first."""
    environment = {
        name: value
        for name, value in os.environ.items()
        # Make below another make announces the folders that it enters.
        if not name.startswith(("TREEHAMMER_", "GIT_", "MAKE", "MFLAGS"))
    }
    return {
        **environment,
        "PATH": f"{REPOSITORY / '.venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "src"),
        "TREEHAMMER_DATA_DIR": str(folder / "data"),
        # Printed output must not depend on who runs it.
        "GIT_AUTHOR_NAME": "Reader",
        "GIT_AUTHOR_EMAIL": "reader@example.org",
        "GIT_COMMITTER_NAME": "Reader",
        "GIT_COMMITTER_EMAIL": "reader@example.org",
    }


BENCHMARKS_FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


#: Days and measurements of a small database: three jobs per day and variant.
SHORT_DAYS, SHORT_ROWS = 80, 960


@contextmanager
def import_benchmarks() -> Iterator[Callable[[str], ModuleType]]:
    """Import benchmark modules by name, and forget them afterwards."""
    before = set(sys.modules)
    spec = importlib.util.spec_from_file_location("benchmarks", BENCHMARKS_FOLDER / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["benchmarks"] = package
    spec.loader.exec_module(package)
    try:
        yield lambda name: importlib.import_module(f"benchmarks.{name}")
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "benchmarks":
                del sys.modules[name]


@contextmanager
def import_short_benchmarks() -> Iterator[Callable[[str], ModuleType]]:
    """Import benchmark modules with databases of few days, ending yesterday."""
    with import_benchmarks() as import_benchmark:
        world: Any = import_benchmark("harness.synthetic_measurements")
        world.FIRST_DAY += timedelta(world.DAYS - SHORT_DAYS)
        world.DAYS = SHORT_DAYS
        yield import_benchmark


def find_command(name: str) -> click.Command:
    """The verb of that name."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def invoke_command(name: str, place: Settings | Path, *arguments: str, **options: Any) -> Result:
    """Run a verb in this process, with settings or with results and cache in a folder."""
    if isinstance(place, Path):
        flags = {"data_dir": place, "cache_dir": place}
        place = load_settings(flags, environ={}, folder=place)
    return CliRunner().invoke(find_command(name), arguments, obj=place, **options)


def call_command(name: str, place: Settings | Path, *arguments: str) -> Result:
    """Run a verb in this process; errors are raised, and ``return_value`` is the exit code."""
    options = {"standalone_mode": False, "catch_exceptions": False}
    return invoke_command(name, place, *arguments, **options)
