"""Every test that uses the local queue must leave no process behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from spool_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.kill_runner()
    left = bench.end_processes()
    assert not any(left.values()), f"processes stayed behind: {left}"
