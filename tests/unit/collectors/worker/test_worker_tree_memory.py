"""Resident size of a process tree, with shared pages counted once."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Iterator

import pytest

from treehammer.collectors.worker.probes import process_stats
from treehammer.collectors.worker.probes.process_stats import (
    measure_tree_bytes,
    read_resident_bytes,
)

BALLAST = 64 * 1024 * 1024


@pytest.fixture
def forked() -> Iterator[int]:
    """Fork a child that shares all pages of this process and waits."""
    ballast = bytearray(b"x") * BALLAST
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    yield child
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(ballast) == BALLAST > mmap.PAGESIZE


def test_pages_shared_by_a_fork_count_once(forked: int) -> None:
    own = read_resident_bytes(os.getpid())
    assert own > BALLAST
    both = measure_tree_bytes([os.getpid(), forked], 0)
    assert own <= both < own + BALLAST // 2


def test_sum_below_the_bound_is_not_examined(forked: int) -> None:
    pids = [os.getpid(), forked]
    total = sum(map(read_resident_bytes, pids))
    assert measure_tree_bytes(pids, 2 * total) == pytest.approx(total, rel=0.05)


def test_child_in_vfork_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parent and child have one address space, so that each owns all of its pages."""
    texts = {"statm": "9 7 1 1 0 1 0", "cmdline": "root\0read.py", "smaps_rollup": "Pss: 28 kB"}
    monkeypatch.setattr(
        process_stats, "read_text", lambda path: texts.get(path.rpartition("/")[2], "")
    )
    assert measure_tree_bytes([10, 11], 0) == 7 * process_stats.PAGE_SIZE


def test_vanished_processes_have_no_size() -> None:
    assert measure_tree_bytes([], 0) == 0
    assert measure_tree_bytes([2**22 + 1, 2**22 + 2], 0) == 0
