"""A/A jobs: each reads the same tree twice with the same release.

They are planned, rendered, run by the local batch system, stored and compared like any test. The
pairs from ``compare`` are kept in ``data/aa-jobs.csv`` for ``verdicts``.
"""

from __future__ import annotations

import argparse
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.analysis import aa_plots
from benchmarks.harness.ratio_figures import SEED, RatioFigure, median_ratio
from benchmarks.harness.result_tables import read_rows, write_table
from treehammer import config
from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.comparison.wording.verdict_text import METRIC_TITLES
from treehammer.analysis.samples.sample import HEADLINE_METRICS, SAMPLE_COLUMNS, Sample
from treehammer.collectors.job_spec import TIMED
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.git import pinned_tests
from treehammer.hctests.matrix.definition import TEST_FILE_NAME
from treehammer.hctests.schema import definition_loader
from treehammer.sql.core.rows import PairRow
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.lifecycle import campaign_request, submission
from treehammer.submit.tracking import campaign_polling
from treehammer.terminal import progress_bar

TEST_FOLDER = Path(__file__).with_name("aa")
TABLE_FILE = Path(__file__).with_name("data") / "aa-jobs.csv"
#: Jobs of a complete recording.
TARGET_JOBS = 200
#: Further campaigns that replace failed jobs, at most.
MAX_CAMPAIGNS = 3
#: The twins are values of the test's own axis.
TWIN_COMPARISON = ComparisonQuery("twin", "a", "b")


@dataclass(frozen=True)
class TwinJob:
    """One A/A job.

    ``setup_name`` describes the data read; a table holds one set-up only. ``first_twin`` ran first;
    ``loop_s`` is the wall time of the shorter loop. Then follow seconds per event of both twins and
    ln(B/A), of CPU and of wall time.
    """

    job: str
    host: str
    started: str
    setup_name: str
    first_twin: str
    loop_s: float
    cpu_a: float
    cpu_b: float
    cpu_d: float
    wall_a: float
    wall_b: float
    wall_d: float

    def twin_values(self, metric: str) -> tuple[float, float]:
        """Return seconds per event of both twins for a headline metric."""
        short = metric.removesuffix("_per_event_s")
        return float(getattr(self, f"{short}_a")), float(getattr(self, f"{short}_b"))

    def log_ratio(self, metric: str) -> float:
        """Return ln(B/A) for a headline metric."""
        return float(getattr(self, f"{metric.removesuffix('_per_event_s')}_d"))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``python -m benchmarks aa``."""
    group = parser.add_argument_group("aa")
    group.add_argument(
        "--jobs", type=int, default=TARGET_JOBS, help="total number of A/A jobs (%(default)s)"
    )
    group.add_argument(
        "--slots", type=int, default=1, help="aa, paired: concurrent jobs (%(default)s)"
    )
    group.add_argument("--dataset", default="", help="replaces the test's dataset")
    group.add_argument("--branches", default="", help="fraction that replaces the test's")
    group.add_argument("--table", type=Path, default=TABLE_FILE, help="table of recorded jobs")


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Record missing jobs; return spread, tails and drift of all jobs."""
    table: Path = options.table
    known = read_rows(table, TwinJob)
    if len(known) < options.jobs:
        recording = JobRecording.from_options(options)
        try:
            recording.record_missing({job.job for job in known}, options.jobs)
        finally:
            # Keep complete jobs even after an interruption.
            known = merge_jobs(known, recording.load_jobs(), table)
            write_table(table, [asdict(job) for job in known])
    if len(known) < options.jobs:
        print(f"only {len(known)} of {options.jobs} jobs are complete; run the benchmark again")
    aa_plots.plot_spread(log_ratios(known))
    return list(build_figures(known))


@dataclass(frozen=True)
class JobRecording:
    """Campaigns of A/A jobs with their own queue and database."""

    request: campaign_request.CampaignRequest
    settings: Settings

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> JobRecording:
        """Create the recording for these options; each set-up has its own folder."""
        axes = {"branches": (options.branches,)} if options.branches else {}
        overrides = {"dataset": options.dataset} if options.dataset else {}
        names = filter(None, ("aa", options.dataset, options.branches))
        home = _recording_folder("-".join(names))
        flags = {
            "data_dir": home,
            "database": f"sqlite:///{home}/results.db",
            "local_slots": options.slots,
        }
        request = campaign_request.CampaignRequest(
            str(_assemble_test(home)), axes, overrides, name="A/A"
        )
        return cls(request, config.load_settings(flags))

    def record_missing(self, known: set[str], wanted: int) -> None:
        """Wait for running campaigns, then run the missing jobs."""
        for campaign in self._unfinished_campaigns():
            self._wait_for_campaign(campaign)
        for _ in range(MAX_CAMPAIGNS):
            have = known | {job.job for job in self.load_jobs()}
            if len(have) >= wanted:
                return
            overrides = {**self.request.overrides, "repeats": str(wanted - len(have))}
            further = campaign_request.CampaignRequest(
                **{**vars(self.request), "overrides": overrides}
            )
            plan = campaign_request.plan_request(
                further, self.settings, fetch=True, bars=progress_bar
            )
            self._wait_for_campaign(submission.submit_plan(plan, self.settings).id)

    def _unfinished_campaigns(self) -> list[str]:
        try:
            with Store.open(self.settings.database, create=False) as store:
                tracker = campaign_polling.make_tracker(store, self.settings)
                for campaign in (rows := store.campaigns()):
                    tracker.refresh_jobs(campaign)
                    tracker.collect_records(campaign)
                return [row.id for row in rows if not tracker.compute_progress(row).is_finished]
        except NothingToDoError:
            return []

    def _wait_for_campaign(self, campaign: str) -> None:
        """Wait for a campaign; end its jobs on interruption."""
        with Store.open(self.settings.database) as store:
            row = store.campaign(campaign)
            tracker = campaign_polling.make_tracker(store, self.settings)
            try:
                campaign_polling.wait_for_campaign(row, self.settings, progress_bar)
            except KeyboardInterrupt:
                tracker.cancel(row)
                tracker.collect_records(row)
                raise

    def load_jobs(self) -> list[TwinJob]:
        """Load all jobs with two complete twins, as paired by ``compare``."""
        try:
            with Store.open(self.settings.database, create=False) as store:
                columns = {*SAMPLE_COLUMNS, "position", "started_us"}
                rows = list(store.measurements(Selection(), tuple(columns)))
        except NothingToDoError:
            return []
        samples = [Sample.from_row(row) for row in rows]
        try:
            pairs = compare_samples(samples, TWIN_COMPARISON, now_us=0).pairs
        except NothingToDoError:
            return []
        return list(_build_jobs(pairs, rows))


def _recording_folder(name: str = "") -> Path:
    """Return the folder of recordings, outside the repository."""
    return config.load_settings().data_dir / "benchmarks" / name


def _assemble_test(home: Path) -> Path:
    """Combine the test and the shipped payload in one folder that can be pinned."""
    payload = (
        pinned_tests.SHIPPED_TESTS_FOLDER
        / "ttree-read"
        / definition_loader.load_definition(
            pinned_tests.SHIPPED_TESTS_FOLDER / "ttree-read"
        ).payload
    )
    folder = home / "test" / TEST_FOLDER.name
    folder.mkdir(parents=True, exist_ok=True)
    for path in (TEST_FOLDER / TEST_FILE_NAME, payload):
        shutil.copyfile(path, folder / path.name)
    return folder


def _list_last_executions(
    rows: Iterable[Mapping[str, Any]],
) -> dict[str, list[Mapping[str, Any]]]:
    """List the timed executions of each job's last attempt, in their order."""
    attempts: dict[str, dict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    timed = (row for row in rows if row["kind"] == TIMED)
    for row in sorted(timed, key=itemgetter("attempt", "round", "position")):
        attempts[row["job_id"]][row["attempt"]].append(row)
    return {job: by_attempt[max(by_attempt)] for job, by_attempt in attempts.items()}


def _build_jobs(pairs: Iterable[PairRow], rows: Iterable[Mapping[str, Any]]) -> Iterator[TwinJob]:
    found: dict[str, dict[str, PairRow]] = {}
    for pair in pairs:
        found.setdefault(pair.job_id, {})[pair.metric] = pair
    executions = _list_last_executions(rows)
    for job, by_metric in found.items():
        if len(by_metric) < len(HEADLINE_METRICS):
            continue
        ran = executions[job]
        sample = Sample.from_row(ran[0])
        cpu, wall = (by_metric[metric] for metric in HEADLINE_METRICS)
        started = datetime.fromtimestamp(ran[0]["started_us"] / 1e6, UTC)
        yield TwinJob(
            job=job,
            host=cpu.host,
            started=started.isoformat(timespec="seconds"),
            setup_name=_setup_name(sample, cpu.comparison_key),
            first_twin=str(sample.axis_value(TWIN_COMPARISON.axis)),
            loop_s=round(min(row["loop_wall_s"] for row in ran), 3),
            **_pair_columns("cpu", cpu),
            **_pair_columns("wall", wall),
        )


def _setup_name(sample: Sample, key: str) -> str:
    axes = (f"{axis}={sample.axis_value(axis)}" for axis in ("root", "branches", "cache_mb"))
    return " ".join((sample.dataset, *axes, key[:12]))


def _pair_columns(short: str, pair: PairRow) -> dict[str, float]:
    values = {"a": pair.a_value, "b": pair.b_value, "d": pair.log_ratio}
    return {f"{short}_{name}": float(f"{value:.7g}") for name, value in values.items()}


def merge_jobs(known: Iterable[TwinJob], new: Iterable[TwinJob], table: Path) -> list[TwinJob]:
    """Merge jobs without duplicates, in the order in which they ran.

    Raises:
        ConfigError: they have different set-ups.
    """
    jobs = {job.job: job for job in (*new, *known)}
    setups = sorted({job.setup_name for job in jobs.values()})
    if len(setups) > 1:
        raise ConfigError(
            f"contains jobs of another set-up: {'; '.join(setups)}",
            where=str(table),
            hint=f"Move it and {_recording_folder()} away to record again, or name another --table.",
        )
    return sorted(jobs.values(), key=lambda job: (job.started, job.job))


def log_ratios(jobs: Iterable[TwinJob]) -> dict[str, list[float]]:
    """Map the title of each headline metric to ln(B/A) of all jobs, in order of time."""
    jobs = list(jobs)
    return {
        METRIC_TITLES[metric]: [job.log_ratio(metric) for job in jobs]
        for metric in HEADLINE_METRICS
    }


def build_figures(jobs: list[TwinJob]) -> Iterator[RatioFigure]:
    """Summarize the recorded jobs as figures."""
    if len(jobs) < 3:
        return
    loops = [job.loop_s for job in jobs]
    yield RatioFigure("shortest loop / 2 s that a verdict needs", min(loops) / 2, pairs=len(jobs))
    for metric in HEADLINE_METRICS:
        title = METRIC_TITLES[metric]
        a, b = zip(*(job.twin_values(metric) for job in jobs), strict=True)
        yield median_ratio(f"{title}: twin b / twin a", b, a)
        later = [job.log_ratio(metric) * (1 if job.first_twin == "a" else -1) for job in jobs]
        yield median_ratio(
            f"{title}: second / first to run", np.exp(later).tolist(), [1.0] * len(a)
        )
        d = np.array([job.log_ratio(metric) for job in jobs])
        yield _spread_figures(f"{title}: job-to-job spread (sd of ln B/A)", d)
        robust = float(stats.median_abs_deviation(d, scale="normal"))
        yield RatioFigure(f"{title}: sd / normal sd by the middle half", d.std(ddof=1) / robust)
        edge = 1.96 / np.sqrt(len(d))
        lag = aa_plots.autocorrelation(d, 1)[0]
        yield RatioFigure(f"{title}: correlation of neighbouring jobs", lag, lag - edge, lag + edge)


def _spread_figures(what: str, d: np.ndarray[Any, np.dtype[np.float64]]) -> RatioFigure:
    interval = stats.bootstrap(
        (d,), lambda x, axis: np.std(x, axis=axis, ddof=1), rng=np.random.default_rng(SEED)
    ).confidence_interval
    low, high = float(interval.low), float(interval.high)
    return RatioFigure(what, float(d.std(ddof=1)), low, high, len(d))
