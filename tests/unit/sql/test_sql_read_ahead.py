"""A thread prepares the next item, in order and only one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from treehammer.sql.transfer.importer import read_ahead

TIMEOUT_S = 10


def test_items_keep_their_order() -> None:
    assert list(read_ahead([])) == []
    assert list(read_ahead(range(100))) == [*range(100)]


def test_one_item_is_prepared_meanwhile() -> None:
    begun = [threading.Event() for _ in range(3)]

    def iterate_items() -> Iterator[int]:
        for number, event in enumerate(begun):
            event.set()
            yield number

    with closing(read_ahead(iterate_items())) as items:
        assert next(items) == 0
        assert begun[1].wait(TIMEOUT_S)
    assert not begun[2].is_set()


def test_error_comes_after_the_items_before_it() -> None:
    def iterate_items() -> Iterator[int]:
        yield 1
        raise ValueError("damaged")

    items = read_ahead(iterate_items())
    assert next(items) == 1
    with pytest.raises(ValueError, match="damaged"):
        next(items)


def test_closing_waits_for_the_thread() -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def iterate_items() -> Iterator[int]:
        yield 1
        may_end.wait(TIMEOUT_S)
        has_ended.set()
        yield 2

    with closing(read_ahead(iterate_items())) as items:
        assert next(items) == 1
        threading.Timer(0.05, may_end.set).start()
    assert has_ended.is_set()
