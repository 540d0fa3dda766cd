"""The writer: what it commits together, and what becomes of each request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest
from measurement_factory import make_measurement

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import StoreError, UnstorableContentError
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store
from treehammer.web.core import measurement_writer as module
from treehammer.web.core.measurement_writer import (
    MeasurementWriter,
    UnwritableError,
    WriteFailedError,
    WriterClosedError,
    WriterFullError,
)


class Gate:
    """A store that writes only while it is open, and remembers what it was given at once."""

    def __init__(self, behind: Store | None = None) -> None:
        self.open = threading.Event()
        self.batches: list[int] = []
        self.refuses: dict[str, Exception] = {}
        self.behind = behind

    def add(self, measurements: Iterable[Measurement]) -> AddResult:
        self.open.wait(30)
        some = list(measurements)
        self.batches.append(len(some))
        for item in some:
            if str(item.values["host"]) in self.refuses:
                raise self.refuses[str(item.values["host"])]
        return self.behind.add(some) if self.behind else AddResult(len(some), 0)


def some(count: int, job: str = "job", host: str = "x") -> list[Measurement]:
    return [make_measurement(job=job, position=p, host=host) for p in range(count)]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def closed(writer: MeasurementWriter) -> None:
    await asyncio.to_thread(writer.close)


def test_many_requests_share_a_transaction() -> None:
    async def work() -> None:
        gate = Gate()
        writer = MeasurementWriter(gate)
        writer.start()
        first = writer.submit(some(1, "first"))
        await asyncio.sleep(0.05)  # it is at work on this one
        rest = [writer.submit(some(100, f"job {n}")) for n in range(12)]
        gate.open.set()
        assert await first == AddResult(1, 0)
        assert await asyncio.gather(*rest) == [AddResult(100, 0)] * 12
        assert gate.batches == [1, 500, 500, 200]
        await closed(writer)

    run(work())


def test_each_learns_what_became_of_its_own(tmp_path: Path) -> None:
    async def work() -> None:
        with Store.open(f"sqlite:///{tmp_path / 'r.db'}") as store:
            store.add(some(2))
            gate = Gate(store)
            writer = MeasurementWriter(gate)
            writer.start()
            asked = [
                writer.submit(some(1, "plug")),
                writer.submit([*some(3), *some(1, "a")]),
                writer.submit(some(2, "b")),
                writer.submit(some(1, "a", host="other")),
                writer.submit([*some(1, "a"), *some(1, "c"), *some(1, "c")]),
            ]
            gate.open.set()
            answers = await asyncio.gather(*asked)
            conflict = some(1, "a")[0].id
            assert answers == [
                AddResult(1, 0),
                AddResult(2, 2),
                AddResult(2, 0),
                AddResult(0, 0, (conflict,)),
                AddResult(1, 2),
            ]
            # What two requests both hold is written one after the other.
            assert gate.batches in ([1, 6, 1, 3], [7, 1, 3])
            await closed(writer)

    run(work())


def test_one_bad_request_does_not_fail_the_others() -> None:
    async def work() -> None:
        gate = Gate()
        gate.refuses = {"bad": UnstorableContentError("too long"), "bug": RuntimeError("boom")}
        writer = MeasurementWriter(gate)
        writer.start()
        hosts = ["x", "bad", "x", "bug", "x"]
        asked = [writer.submit(some(2, str(n), host)) for n, host in enumerate(hosts)]
        gate.open.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        kinds = [type(answer) for answer in answers]
        assert kinds == [AddResult, UnwritableError, AddResult, RuntimeError, AddResult]
        assert await writer.submit(some(1, "after")) == AddResult(1, 0)
        await closed(writer)

    run(work())


def test_when_the_database_is_away_nobody_waits_for_it() -> None:
    async def work() -> None:
        gate = Gate()
        gate.refuses = {"x": StoreError("no answer")}
        writer = MeasurementWriter(gate)
        writer.start()
        asked = [writer.submit(some(400, str(n))) for n in range(8)]
        gate.open.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(answer) for answer in answers} == {WriteFailedError}
        assert len(gate.batches) <= 2, "one attempt tells enough"
        assert writer.failure == "no answer"
        gate.refuses.clear()
        assert await writer.submit(some(1)) == AddResult(1, 0)
        assert writer.failure == ""
        await closed(writer)

    run(work())


@pytest.mark.parametrize("marks", [True, False])
def test_trouble_is_over_when_something_was_written(
    marks: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A look for what to mark may succeed while nothing can be written: on a full disk, say."""
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.05)
    marked: list[float] = []

    async def work() -> None:
        gate = Gate()
        gate.open.set()
        gate.refuses = {"x": StoreError("no room left")}
        writer = MeasurementWriter(
            gate, mark_bad_replicas=(lambda: marked.append(0)) if marks else None
        )
        writer.start()
        with pytest.raises(WriteFailedError):
            await writer.submit(some(3))
        tries = len(gate.batches)
        while len(gate.batches) < tries + 3:
            assert writer.failure == "no room left"
            await asyncio.sleep(0.01)
        gate.refuses.clear()
        while writer.failure:
            await asyncio.sleep(0.01)
        tries = len(gate.batches)
        await asyncio.sleep(0.2)
        assert len(gate.batches) == tries, "it goes on as before"
        await closed(writer)

    with caplog.at_level("INFO", "treehammer.service"):
        run(work())
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "the database cannot be written to: no room left",
        "the database can be written to again",
    ]


@pytest.mark.parametrize("fault", [UnstorableContentError("too long"), RuntimeError("bug")])
def test_what_was_refused_is_not_tried_for_ever(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.02)

    async def work() -> None:
        gate = Gate()
        gate.open.set()
        gate.refuses = {"x": StoreError("away")}
        writer = MeasurementWriter(gate)
        writer.start()
        with pytest.raises(WriteFailedError):
            await writer.submit(some(1))
        gate.refuses = {"x": fault}
        while writer.failure:
            await asyncio.sleep(0.01)
        await closed(writer)

    run(work())


def test_only_so_much_waits() -> None:
    async def work() -> None:
        gate = Gate()
        writer = MeasurementWriter(gate, max_waiting=1000)
        writer.start()
        asked = [writer.submit(some(1, "plug"))]
        await asyncio.sleep(0.05)
        asked += [writer.submit(some(500, str(n))) for n in range(2)]
        with pytest.raises(WriterFullError):
            writer.submit(some(1, "more"))
        gate.open.set()
        await asyncio.gather(*asked)
        assert await writer.submit(some(1, "more")) == AddResult(1, 0)
        await closed(writer)

    run(work())


def test_what_waits_is_written_before_it_ends() -> None:
    async def work() -> None:
        gate = Gate()
        writer = MeasurementWriter(gate)
        writer.start()
        asked = [writer.submit(some(300, str(n))) for n in range(5)]
        ending = asyncio.create_task(closed(writer))
        await asyncio.sleep(0.05)
        with pytest.raises(WriterClosedError):
            writer.submit(some(1, "late"))
        gate.open.set()
        assert await asyncio.gather(*asked) == [AddResult(300, 0)] * 5
        await ending
        await closed(writer)

    run(work())


def test_marks_follow_new_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.1)
    marked: list[float] = []
    troubles: list[Exception] = [StoreError("away"), RuntimeError("bug")]

    def mark() -> None:
        marked.append(time.monotonic())
        if troubles:
            raise troubles.pop(0)

    async def work() -> None:
        gate = Gate()
        gate.open.set()
        writer = MeasurementWriter(gate, mark_bad_replicas=mark)
        writer.start()
        while len(marked) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert len(marked) == 3, "after a trouble it is tried again, and then no more"
        assert marked[1] - marked[0] >= 0.09
        await writer.submit(some(1))
        await writer.submit(some(1, "b"))
        await closed(writer)
        assert 4 <= len(marked) <= 5

    run(work())


def test_whoever_has_gone_disturbs_nobody() -> None:
    async def work() -> None:
        gate = Gate()
        writer = MeasurementWriter(gate)
        writer.start()
        gone, patient = writer.submit(some(1, "gone")), writer.submit(some(1, "patient"))
        gone.cancel()
        gate.open.set()
        assert await patient == AddResult(1, 0)
        await closed(writer)

    run(work())


def test_a_writer_that_never_began_ends_too() -> None:
    MeasurementWriter(Gate()).close()
