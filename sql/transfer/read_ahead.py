"""Preparation of the next item in a thread while the current one is used."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def read_ahead(items: Iterable[Item]) -> Generator[Item, None, None]:
    """Yield items, none of them None; while one is used, a thread prepares the next.

    Closing the generator waits for the thread. An error of the items is raised after the last one
    before it.
    """
    remaining = iter(items)
    with ThreadPoolExecutor(1, "read-ahead") as thread:
        ahead = thread.submit(next, remaining, None)
        while (item := ahead.result()) is not None:
            ahead = thread.submit(next, remaining, None)
            yield item
