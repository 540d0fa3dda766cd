"""Comparisons that read too much for one request, computed in the background."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treehammer.errors import ConfigError, TreehammerError
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.core.responses import service_unavailable
from treehammer.web.views.compare.compare_query import CompareQuery, compare_now

if TYPE_CHECKING:
    from treehammer.analysis.comparison.comparison import Comparison

#: Maximum number of measurements read by a comparison in the background: 1 GB of memory.
MAX_BACKGROUND_READ = 200_000
#: Comparisons that run or wait; one of them runs.
MAX_TASKS = 4
#: Seconds without a request after which a comparison is stopped, or its result is dropped.
ABANDONED_AFTER_S, FORGOTTEN_AFTER_S = 60.0, 900.0


class _AbandonedError(TreehammerError):
    """A comparison was not requested for a while."""


@dataclass
class ComparisonTask:
    """A comparison in the background.

    Attributes:
        query: the comparison.
        count: largest possible number of measurements.
        read: measurements read so far.
        asked_s: time of the last request, of the monotonic clock.
        result: None until it is complete.
        error: failure, if there will be no result.
    """

    query: CompareQuery
    count: int
    read: int = 0
    asked_s: float = field(default_factory=time.monotonic)
    result: Comparison | None = None
    error: Exception | None = None

    @property
    def is_running(self) -> bool:
        """Whether it waits or runs."""
        return self.result is None and self.error is None

    @property
    def sentence(self) -> str:
        """Progress as a sentence."""
        if not self.read:
            return f"Waiting to read up to {self.count:,} measurements."
        return f"Read {self.read:,} of up to {self.count:,} measurements."

    def report_progress(self, read: int) -> None:
        """Note the number of measurements read.

        Raises:
            _AbandonedError: the comparison was not requested for a while.
        """
        self.read = read
        if time.monotonic() - self.asked_s > ABANDONED_AFTER_S:
            raise _AbandonedError("no reader asked for progress for a while")


class BackgroundComparisons:
    """Comparisons that run one after the other while their readers ask for progress; thread-safe.

    Args:
        database: opened by each comparison.
    """

    def __init__(self, database: LiveDatabase) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._turn = threading.Semaphore(1)
        self._tasks: dict[CompareQuery, ComparisonTask] = {}

    def request(self, query: CompareQuery, count: int) -> ComparisonTask:
        """Return the task of a comparison, started if it is new.

        Args:
            query: the comparison.
            count: largest possible number of measurements.

        Raises:
            ConfigError: it would read too many measurements.
            RequestRefusedError: too many comparisons wait.
            Exception: the comparison failed.
        """
        if count > MAX_BACKGROUND_READ:
            raise ConfigError(
                f"this comparison would read up to {count:,} measurements; "
                f"the limit here is {MAX_BACKGROUND_READ:,}",
                hint="Choose a campaign, or a site with where=site=NAME. 'treehammer compare' has "
                "no limit, and its results are listed on this page.",
            )
        with self._lock:
            self._drop_old_tasks()
            task = self._tasks.get(query)
            if task is None:
                task = self._start(query, count)
            elif task.error is not None:
                del self._tasks[query]
                raise task.error
            task.asked_s = time.monotonic()
        return task

    def _drop_old_tasks(self) -> None:
        now = time.monotonic()
        for query, task in list(self._tasks.items()):
            if not task.is_running and now - task.asked_s > FORGOTTEN_AFTER_S:
                del self._tasks[query]
        complete = [query for query, task in self._tasks.items() if not task.is_running]
        for query in complete[:-MAX_TASKS]:
            del self._tasks[query]

    def _start(self, query: CompareQuery, count: int) -> ComparisonTask:
        if sum(task.is_running for task in self._tasks.values()) >= MAX_TASKS:
            raise service_unavailable("too many comparisons are waiting")
        task = self._tasks[query] = ComparisonTask(query, count)
        # A daemon: a stopping service does not wait for it.
        threading.Thread(target=self._run, args=[task], name="comparison", daemon=True).start()
        return task

    def _run(self, task: ComparisonTask) -> None:
        with self._turn:
            try:
                with self._database.open_store() as store:
                    task.result = compare_now(
                        store, task.query, max_read=None, on_progress=task.report_progress
                    )
            except _AbandonedError:
                with self._lock:
                    del self._tasks[task.query]
            except Exception as error:
                # Raised again by the next request.
                task.error = error
