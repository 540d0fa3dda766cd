"""Writer of measurements: shared transactions, and the outcome of each request."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from measurement_factory import make_measurement

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import ForeignCampaignError, StoreError, UnstorableContentError
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.audit_trail import Delivery, Sender, list_deliveries
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store
from treehammer.web.core import measurement_writer
from treehammer.web.core.measurement_writer import (
    KeyShareFullError,
    MeasurementWriter,
    UnwritableError,
    WriteFailedError,
    WriterClosedError,
    WriterFullError,
)

SENDER = Sender("0123456789ab", "alice", "127.0.0.1", 1)


def sender_of(number: int) -> Sender:
    """Return a sender with a key of its own."""
    return Sender(f"{number:012x}", "alice", "127.0.0.1", 1)


class GatedStore:
    """A store that writes only while its store is open, and records the size of each batch."""

    def __init__(self, behind: Store | None = None) -> None:
        self.open = threading.Event()
        self.batches: list[int] = []
        self.errors: dict[str, Exception] = {}
        self.behind = behind

    def add(
        self, measurements: Iterable[Measurement], deliveries: Iterable[Delivery] = ()
    ) -> AddResult:
        self.open.wait(30)
        batch = list(measurements)
        self.batches.append(len(batch))
        for item in batch:
            if error := self.errors.get(str(item.values["host"])):
                raise error
        return self.behind.add(batch, deliveries) if self.behind else AddResult(len(batch), 0)


def make_batch(count: int, job: str = "job", host: str = "x") -> list[Measurement]:
    return [make_measurement(job=job, position=p, host=host) for p in range(1, count + 1)]


@asynccontextmanager
async def start_writer(store: GatedStore, **options: Any) -> AsyncIterator[MeasurementWriter]:
    writer = MeasurementWriter(store.add, **options)
    writer.start()
    yield writer
    await writer.close()


def run_async(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine, which may take a minute."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 60))

    return run


@run_async
async def test_queued_requests_share_transaction() -> None:
    store = GatedStore()
    async with start_writer(store) as writer:
        first = writer.submit(make_batch(1, "first"), SENDER)
        await asyncio.sleep(0.05)  # The writer has taken this one.
        rest = [writer.submit(make_batch(100, f"job {n}"), SENDER) for n in range(12)]
        store.open.set()
        assert await first == AddResult(1, 0)
        assert await asyncio.gather(*rest) == [AddResult(100, 0)] * 12
        assert store.batches == [1, 500, 500, 200]


@run_async
async def test_foreign_campaign_fails_its_own_request_only(tmp_path: Path) -> None:
    mallory = Sender("ba9876543210", "mallory", "127.0.0.2", 2)
    with Store.open(f"sqlite:///{tmp_path / 'r.db'}") as database:
        store = GatedStore(database)
        async with start_writer(store) as writer:
            first = writer.submit(make_batch(1), SENDER)
            await asyncio.sleep(0.05)  # The writer has taken this one.
            requests = (
                writer.submit(make_batch(1, "a"), SENDER),
                writer.submit(make_batch(1, "stolen"), mallory),
                writer.submit(make_batch(1, "b"), SENDER),
            )
            store.open.set()
            await first
            answers = await asyncio.gather(*requests, return_exceptions=True)
        assert store.batches == [1, 3, 1, 1, 1]
        assert [type(answer) for answer in answers] == [AddResult, ForeignCampaignError, AddResult]
        jobs = {row["job_id"] for row in database.measurements(Selection())}
        assert jobs == {"job", "a", "b"}


@run_async
async def test_each_request_gets_own_outcome(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'r.db'}") as database:
        stored = make_batch(2)
        database.add(stored, list_deliveries(stored, SENDER))
        store = GatedStore(database)
        async with start_writer(store) as writer:
            requests = [
                writer.submit(make_batch(1, "plug"), SENDER),
                writer.submit([*make_batch(3), *make_batch(1, "a")], SENDER),
                writer.submit(make_batch(2, "b"), SENDER),
                writer.submit(make_batch(1, "a", host="other"), SENDER),
                writer.submit(
                    [*make_batch(1, "a"), *make_batch(1, "c"), *make_batch(1, "c")], SENDER
                ),
            ]
            store.open.set()
            answers = await asyncio.gather(*requests)
            conflict = make_batch(1, "a")[0].id
            assert answers == [
                AddResult(1, 0),
                AddResult(2, 2),
                AddResult(2, 0),
                AddResult(0, 0, (conflict,)),
                AddResult(1, 2),
            ]
            # Requests with the same measurement are written one after the other.
            assert store.batches in ([1, 6, 1, 3], [7, 1, 3])


@run_async
async def test_bad_request_does_not_fail_others() -> None:
    store = GatedStore()
    store.errors = {"bad": UnstorableContentError("too long"), "bug": RuntimeError("boom")}
    async with start_writer(store) as writer:
        hosts = ["x", "bad", "x", "bug", "x"]
        requests = [
            writer.submit(make_batch(2, str(n), host), SENDER) for n, host in enumerate(hosts)
        ]
        store.open.set()
        answers = await asyncio.gather(*requests, return_exceptions=True)
        kinds = [type(answer) for answer in answers]
        assert kinds == [AddResult, UnwritableError, AddResult, RuntimeError, AddResult]
        assert await writer.submit(make_batch(1, "after"), SENDER) == AddResult(1, 0)


@run_async
async def test_store_failure_fails_whole_queue_at_once() -> None:
    store = GatedStore()
    store.errors = {"x": StoreError("no answer")}
    async with start_writer(store) as writer:
        requests = [writer.submit(make_batch(400, str(n)), sender_of(n)) for n in range(8)]
        store.open.set()
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert {type(answer) for answer in answers} == {WriteFailedError}
        assert len(store.batches) <= 2, "one failed attempt is enough"
        assert writer.failure == "no answer"
        store.errors.clear()
        assert await writer.submit(make_batch(1), SENDER) == AddResult(1, 0)
        assert writer.failure == ""


@run_async
async def test_failure_ends_after_successful_write(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Marking bad replicas may succeed on a full disk, where no measurement can be written."""
    monkeypatch.setattr(measurement_writer, "CHECK_INTERVAL_S", 0.05)
    marked: list[float] = []
    with caplog.at_level("INFO", "treehammer.service"):
        store = GatedStore()
        store.open.set()
        store.errors = {"x": StoreError("no room left")}
        async with start_writer(store, mark_bad_replicas=lambda: marked.append(0)) as writer:
            with pytest.raises(WriteFailedError):
                await writer.submit(make_batch(3), SENDER)
            tries = len(store.batches)
            while len(store.batches) < tries + 3:
                assert writer.failure == "no room left"
                await asyncio.sleep(0.01)
            store.errors.clear()
            while writer.failure:
                await asyncio.sleep(0.01)
            tries = len(store.batches)
            await asyncio.sleep(0.2)
            assert len(store.batches) == tries, "no further attempts"
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "the database cannot be written to: no room left",
        "the database can be written to again",
    ]


@pytest.mark.parametrize("fault", [UnstorableContentError("too long"), RuntimeError("bug")])
@run_async
async def test_unwritable_measurements_are_not_retried_forever(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement_writer, "CHECK_INTERVAL_S", 0.02)
    store = GatedStore()
    store.open.set()
    store.errors = {"x": StoreError("away")}
    async with start_writer(store) as writer:
        with pytest.raises(WriteFailedError):
            await writer.submit(make_batch(1), SENDER)
        store.errors = {"x": fault}
        while writer.failure:
            await asyncio.sleep(0.01)


@run_async
async def test_full_queue_refuses_request() -> None:
    store = GatedStore()
    async with start_writer(store, max_waiting=1000) as writer:
        requests = [writer.submit(make_batch(1, "plug"), SENDER)]
        await asyncio.sleep(0.05)
        requests += [writer.submit(make_batch(500, str(n)), sender_of(n)) for n in range(2)]
        with pytest.raises(WriterFullError):
            writer.submit(make_batch(1, "more"), SENDER)
        store.open.set()
        await asyncio.gather(*requests)
        assert await writer.submit(make_batch(1, "more"), SENDER) == AddResult(1, 0)


@run_async
async def test_one_key_leaves_half_of_the_queue() -> None:
    store = GatedStore()
    async with start_writer(store, max_waiting=1000) as writer:
        requests = [writer.submit(make_batch(1, "plug"), SENDER)]
        await asyncio.sleep(0.05)
        requests.append(writer.submit(make_batch(400, "his"), sender_of(1)))
        with pytest.raises(KeyShareFullError):
            writer.submit(make_batch(200, "more"), sender_of(1))
        requests.append(writer.submit(make_batch(500, "hers"), sender_of(2)))
        store.open.set()
        await asyncio.gather(*requests)
        assert await writer.submit(make_batch(200, "more"), sender_of(1)) == AddResult(200, 0)


@run_async
async def test_close_writes_queue_first() -> None:
    store = GatedStore()
    async with start_writer(store) as writer:
        requests = [writer.submit(make_batch(300, str(n)), SENDER) for n in range(5)]
        ending = asyncio.create_task(writer.close())
        await asyncio.sleep(0.05)
        with pytest.raises(WriterClosedError):
            writer.submit(make_batch(1, "late"), SENDER)
        store.open.set()
        assert await asyncio.gather(*requests) == [AddResult(300, 0)] * 5
        await ending


@run_async
async def test_marking_follows_new_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement_writer, "CHECK_INTERVAL_S", 0.1)
    marked: list[float] = []
    failures: list[Exception] = [StoreError("away"), RuntimeError("bug")]

    def mark() -> None:
        marked.append(time.monotonic())
        if failures:
            raise failures.pop(0)

    store = GatedStore()
    store.open.set()
    async with start_writer(store, mark_bad_replicas=mark) as writer:
        while len(marked) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert len(marked) == 3, "marking is retried after failures, and then stops"
        assert marked[1] - marked[0] >= 0.09
        await writer.submit(make_batch(1), SENDER)
        await writer.submit(make_batch(1, "b"), SENDER)
    assert 4 <= len(marked) <= 5


@run_async
async def test_cancelled_request_does_not_affect_others() -> None:
    store = GatedStore()
    async with start_writer(store) as writer:
        gone, patient = (
            writer.submit(make_batch(1, "gone"), SENDER),
            writer.submit(make_batch(1, "patient"), SENDER),
        )
        gone.cancel()
        store.open.set()
        assert await patient == AddResult(1, 0)


def test_close_before_start_returns() -> None:
    asyncio.run(MeasurementWriter(GatedStore().add).close())
