"""Logs of servers: a DPM daemon's, made from study S4's description."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterator
from typing import NamedTuple


class LoggedRequest(NamedTuple):
    """A request in a made log; times in seconds."""

    operation: str
    begin_s: float
    wait_s: float
    work_s: float
    code: int


def make_requests(number: int, seed: int = 1) -> list[LoggedRequest]:
    """Draw requests that overlap; every tenth fails."""
    drawn = random.Random(seed)
    return [
        LoggedRequest(
            drawn.choice(("get", "put", "putdone")),
            round(0.01 * index, 3),
            round(drawn.uniform(0.001, 0.5), 3),
            round(drawn.uniform(0.01, 2.0), 3),
            2 if index % 10 == 9 else 0,
        )
        for index in range(number)
    ]


def write_dpm_log(
    requests: list[LoggedRequest], start_s: float, threads: int = 20
) -> Iterator[str]:
    """Yield the lines of a DPM daemon's log in the order of their times.

    Different threads receive and process a request; its identity is in each of its lines, among
    lines of other kinds.
    """
    events: list[tuple[float, int, int, str, str]] = []
    for number, (operation, begin_s, wait_s, work_s, code) in enumerate(requests):
        identity = f"{number:08x}-4fd1-4b1e-9c0a-000000000000"
        work, end = begin_s + wait_s, begin_s + wait_s + work_s
        by = "by /DC=ch/DC=example/CN=user from client.example"
        for at, order, text in (
            (begin_s, 0, f"request {identity} {by}"),
            (work, 1, f"processing request {identity} in pool p1"),
            (work, 2, "DP098 - file 0: srm://example/file"),
            (end, 3, f"request {identity} returns {code}, status={'x' if code else 'DPM_SUCCESS'}"),
        ):
            heapq.heappush(events, (at, number, order, operation, text))
    while events:
        at, number, order, operation, text = heapq.heappop(events)
        instant = start_s + at
        stamp = time.strftime("%m/%d %H:%M:%S", time.localtime(int(instant + 1e-6)))
        thread = 0 if order == 0 else 1 + (number + order) % threads
        yield f"{stamp}.{round(instant % 1 * 1000) % 1000:03d}  4242,{thread} dpm_srv_{operation}: {text}\n"
