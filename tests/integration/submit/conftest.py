"""Every test that uses the local queue must leave no process behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Served
from spool_bench import Bench
from submit_desk import Desk


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.kill_runner()
    left = bench.end_processes()
    assert not any(left.values()), f"processes stayed behind: {left}"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    leave(made)


def leave(desk: Desk) -> None:
    """End a desk's runner and see that no job left a process behind."""
    bench = Bench(desk.folder / "bench", spool=desk.settings.spool_dir)
    bench.kill_runner()
    assert not any(bench.end_processes().values()), "processes stayed behind"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A results service with a database of its own, running."""
    made = Served(tmp_path / "served")
    made.start()
    yield made
    made.end()
