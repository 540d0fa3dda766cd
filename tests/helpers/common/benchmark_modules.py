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
