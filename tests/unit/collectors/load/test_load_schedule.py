"""Schedules of loads."""

from __future__ import annotations

import random
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treehammer.collectors.kit.treehammer_load import workloads
from treehammer.collectors.kit.treehammer_load.operation import LoadFile

FILES = [LoadFile("root://host//a", 100), LoadFile("root://host//b", 100)]


@pytest.mark.parametrize("rate", [0.3, 7.0, 50.0, 200.0])
def test_rate_gives_exact_number_of_even_instants(rate: float) -> None:
    found = list(workloads.pace_at_rate(rate, 5.0, 25.0))
    assert len(found) == round(20 * rate)
    assert found[0] == 5.0
    assert [b - a for a, b in pairwise(found)] == pytest.approx([1 / rate] * (len(found) - 1))


def test_generators_that_load_together_alternate() -> None:
    parts = [list(workloads.pace_at_rate(2.0, 0.0, 10.0, part, 4)) for part in range(4)]
    assert sorted(chain(*parts)) == pytest.approx(list(workloads.pace_at_rate(8.0, 0.0, 10.0)))


def test_each_client_acts_once_a_period_at_its_own_phase() -> None:
    found = list(workloads.pace_clients(50, 10.0, 20.0, 60.0, seed=3))
    assert found == sorted(found)
    assert found == list(workloads.pace_clients(50, 10.0, 20.0, 60.0, seed=3))
    assert found != list(workloads.pace_clients(50, 10.0, 20.0, 60.0, seed=4))
    assert len(found) == 50 * 4
    for client in range(50):
        own = [due for due, who in found if who == client]
        assert own == pytest.approx([own[0] + 10.0 * n for n in range(4)])
        assert 20.0 <= own[0] < 30.0
    assert len({due for due, _ in found}) == 200


def test_opens_go_through_all_clients_and_files() -> None:
    found = list(
        workloads.schedule_opens(workloads.pace_at_rate(10.0, 0.0, 10.0), 3, FILES, seed=1)
    )
    assert [op.client for op in found[:4]] == [0, 1, 2, 0]
    assert {op.file for op in found} == set(FILES)
    assert not any(op.keep for op in found)


def test_readers_open_before_they_read() -> None:
    instants = workloads.pace_clients(4, 2.0, 0.0, 4.0, seed=1)
    chooser = workloads.make_chunk_chooser(workloads.CONSECUTIVE, 25, 1)
    found = list(workloads.schedule_reads(instants, 4, FILES, 1, chooser, (-2.0, 0.0)))
    assert [(op.due_s, op.name, op.client) for op in found[:4]] == [
        (-2.0, "open", 0),
        (-1.5, "open", 1),
        (-1.0, "open", 2),
        (-0.5, "open", 3),
    ]
    assert [op.name for op in found[4:]] == ["read"] * 8
    for client in range(4):
        first, second = (op.chunks[0] for op in found[4:] if op.client == client)
        assert second == ((first[0] + 25) % 100, 25)


@given(
    pieces=st.integers(1, 200),
    more=st.integers(0, 5000),
    free=st.integers(0, 5000),
    seed=st.integers(),
)
def test_vector_is_disjoint_ordered_and_complete(
    pieces: int, more: int, free: int, seed: int
) -> None:
    block = pieces + more
    choose = workloads.make_chunk_chooser(workloads.VECTOR, block, pieces)
    found = choose(0, block + free, random.Random(seed))
    assert len(found) == pieces
    assert sum(size for _, size in found) == block
    ends = [0]
    for offset, size in found:
        assert offset >= ends[-1]
        assert size > 0
        ends.append(offset + size)
    assert ends[-1] <= block + free


@given(seed=st.integers())
def test_random_block_lies_in_file(seed: int) -> None:
    choose = workloads.make_chunk_chooser(workloads.RANDOM, 40, 1)
    ((offset, size),) = choose(0, 100, random.Random(seed))
    assert size == 40
    assert 0 <= offset <= 60
