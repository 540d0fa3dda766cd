"""Modules of ``benchmarks/``, without the repository's root on the path."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


#: Days of a short world, and its measurements: three jobs a day, for the three variants of a day.
DAYS, ROWS = 60, 720


@contextmanager
def benchmarks() -> Iterator[Callable[[str], ModuleType]]:
    """Gives them by name; afterwards they are as if nobody had asked."""
    before = set(sys.modules)
    spec = importlib.util.spec_from_file_location("benchmarks", FOLDER / "__init__.py")
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
def short_benchmarks() -> Iterator[Callable[[str], ModuleType]]:
    """The same with databases of few days, the last of which is yesterday as ever."""
    with benchmarks() as named:
        world: Any = named("world")
        world.FIRST_DAY += timedelta(world.DAYS - DAYS)
        world.DAYS = DAYS
        yield named
