"""Expected idle time in the benchmark ``threads``."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import import_benchmarks


@pytest.fixture(scope="module")
def scaling() -> Iterator[ModuleType]:
    with import_benchmarks() as named:
        yield named("worker.thread_scaling")


@pytest.mark.parametrize(
    "files, file_format, order, threads, idle",
    [
        ("even", "rntuple", "together", 2, 0),
        ("even", "ttree", "in turn", 2, 1 / 4),  # three clusters take two rounds
        ("uneven", "ttree", "together", 2, 0),
        # Four batches, of which the first and the third last as long as eight clusters.
        ("uneven", "rntuple", "together", 2, 1 - 22 / 36),
        ("uneven", "rntuple", "in turn", 2, 1 - 22 / 28),
        ("uneven", "rntuple", "together", 1, 0),
    ],
)
def test_model_of_idle_threads(
    scaling: ModuleType, files: str, file_format: str, order: str, threads: int, idle: float
) -> None:
    case = scaling.ThreadCase(files, file_format, order, threads)
    assert case.expected == pytest.approx(idle)
    assert case.bound == 0


def test_cases_differ(scaling: ModuleType) -> None:
    cases = list(scaling.list_cases())
    assert len(set(cases)) == len(cases) == 12
