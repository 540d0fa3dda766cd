"""Run of a search: probe by probe, each a campaign through the same code as ``submit``.

The result of a probe is the effect of its paired jobs, or the value of an exact counter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from treehammer.analysis.comparison.series_effects import measure_effect
from treehammer.analysis.comparison.series_sides import SeriesSides, collect_checksums, split_sides
from treehammer.analysis.statistics.headline_rows import load_metric_rows
from treehammer.analysis.statistics.sample import SAMPLE_COLUMNS, Sample, assign_compilers
from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.metric_catalogue import COUNTER_NAMES, METRICS_BY_NAME
from treehammer.collectors.shared_files import hold_lock, is_locked
from treehammer.config import Settings
from treehammer.errors import BatchError, ConfigError, NothingToDoError, SoftwareError, suggest_word
from treehammer.hctests.definition.judged_metrics import HeadlineMetric, find_headline_metric
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.hctests.pinned_tests import load_pinned_test, open_repository
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import job_reporting
from treehammer.submit.campaigns.campaign_polling import make_tracker, wait_for_campaign
from treehammer.submit.campaigns.campaign_request import plan_request
from treehammer.submit.campaigns.submission import resume_campaign, submit_plan
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import (
    DEFAULT_OPTIONS,
    CampaignRequest,
    SubmissionOptions,
)
from treehammer.submit.tools import FOLDER_PLACEHOLDER
from treehammer.text_formatting import ProgressFactory, no_progress
from treehammer.watch.bisection.bisection_search import Conclusion, SearchOutcome
from treehammer.watch.bisection.bisection_state import (
    MEASURED,
    RUNNING,
    SKIPPED,
    BisectionState,
    BuildFailedError,
    CommitBuilder,
    ProbeRecord,
)

#: Probes in a row without any result, after which the search stops.
MAX_LOST_PROBES = 3
#: Series that a message names.
MAX_SHOWN_SERIES = 4

#: Receives the state and the conclusion after each probe.
ShowProbe = Callable[[BisectionState, Conclusion], None]
AXIS = "root"


@dataclass
class BisectionRun:
    """A search under way; ``state`` is on disk before and after each step."""

    state: BisectionState
    settings: Settings
    show: ShowProbe
    options: SubmissionOptions = DEFAULT_OPTIONS
    bars: ProgressFactory = no_progress

    def run(self) -> Conclusion:
        """Measure builds until the answer is certain, or the limit of jobs is reached.

        Raises:
            ConfigError: another process runs this search, or GOOD or BAD cannot be measured.
            TreehammerError: a campaign cannot be planned or submitted; the search can be resumed.
        """
        find_metric(self.state.question.metric, self._definition)  # an unknown one ends it here
        lock = self.settings.bisections_dir / f"{self.state.id}.lock"
        if is_locked(lock):
            raise ConfigError("another process runs this search", where=f"bisect {self.state.id}")
        with hold_lock(lock):
            self.state.save(self.settings)
            if self.state.pending is not None:
                self._continue_pending(self.state.pending)
            while (build := self.choose_build()) is not None:
                self._probe(build)
        return self.state.make_search().conclude()

    def choose_build(self) -> int | None:
        """Choose the build to measure next; None at the end, which is stored."""
        search = self.state.make_search()
        conclusion = search.conclude()
        if self.state.probes:
            self.show(self.state, conclusion)
        is_decided = conclusion.outcome is not SearchOutcome.UNDECIDED
        if is_decided or self.state.jobs >= self.state.question.job_limit:
            self._save(replace(self.state, is_finished=True))
            return None
        return search.choose_next()

    @cached_property
    def _definition(self) -> TestDefinition:
        spec = self.state.question.test_spec
        return load_pinned_test(spec, {}, {}, self.settings).definition

    def _probe(self, build: int) -> None:
        """Measure a build against GOOD, or skip it."""
        try:
            self._prepare_build(0)
            self._prepare_build(build)
        except BuildFailedError as failure:
            self.skip_build(build, str(failure))
            return
        try:
            plan = plan_request(self.make_request(build), self.settings, bars=self.bars)
        except (SoftwareError, ConfigError) as error:
            if build == len(self.state.question.builds) - 1:
                raise
            self.skip_build(build, error.message)
            return
        _check_one_series(plan)
        # Stored first: after a kill it is known which campaign may exist.
        self._save(self.state.add_probe(ProbeRecord(build, RUNNING, plan.campaign_id)))
        self._finish(submit_plan(plan, self.settings), build)

    def _continue_pending(self, probe: ProbeRecord) -> None:
        """Finish the probe that a killed process left, or drop it if nothing was submitted."""
        campaign: CampaignRow | None = None
        try:
            with Store.open(self.settings.database, create=False) as store:
                row = store.campaign(probe.campaign)
                tracker = make_tracker(store, self.settings)
                if any(job.batch_id for job in tracker.refresh_jobs(row)):
                    service = job_reporting.reporting_for_submission(self.settings, self.options)
                    resume_campaign(tracker, row, self.settings, service=service)
                    campaign = row
        except (NothingToDoError, ConfigError):  # the campaign was not stored
            pass
        if campaign is None:
            self._save(self.state.settle_pending(None))
        else:
            self._finish(campaign, probe.build)

    def _finish(self, campaign: CampaignRow, build: int) -> None:
        """Wait for a probe's campaign and note its result."""
        wait_for_campaign(campaign, self.settings, self.bars)
        with Store.open(self.settings.database) as store:
            self.record_probe(store, campaign.id, build)

    def record_probe(self, store: Store, campaign: str, build: int) -> None:
        """Read the result of a build's finished campaign and note it.

        Raises:
            TreehammerError: GOOD or BAD cannot be measured, or no campaign returns results.
        """
        result = read_probe(
            store,
            campaign,
            find_metric(self.state.question.metric, self._definition),
            self._name_build(0),
            self._name_build(build),
            exact=self.state.question.is_exact,
        )
        if not result.failure:
            self._save(
                self.state.settle_pending(
                    ProbeRecord(build, MEASURED, campaign, result.effects, result.counter)
                )
            )
            return
        if result.good_failed:
            self._save(self.state.settle_pending(None))
            raise ConfigError(
                f"GOOD cannot be measured: {result.failure}",
                where=self.state.question.builds[0].title,
                hint=f"See treehammer status {campaign}.",
            )
        if not result.was_run:
            self._note_lost(campaign, build)
            return
        self._save(self.state.settle_pending(None))
        self.skip_build(build, result.failure, campaign)

    def _note_lost(self, campaign: str, build: int) -> None:
        """Note a probe without any result; it is repeated a few times."""
        self._save(self.state.settle_pending(ProbeRecord(build, MEASURED, campaign, reason="lost")))
        last = self.state.probes[-MAX_LOST_PROBES:]
        if len(last) == MAX_LOST_PROBES and all(probe.reason == "lost" for probe in last):
            raise BatchError(
                f"{MAX_LOST_PROBES} campaigns in a row returned no results",
                where=f"bisect {self.state.id}",
                hint=f"See treehammer status {campaign}; then treehammer bisect --resume.",
            )

    def skip_build(self, build: int, reason: str, campaign: str = "") -> None:
        """Note a build that is left out.

        Raises:
            ConfigError: it is BAD, without which there is no search.
        """
        question = self.state.question
        if build in (0, len(question.builds) - 1):
            raise ConfigError(
                f"BAD cannot be measured: {reason}",
                where=question.builds[-1].title,
                hint="Choose a BAD that can be built and measured.",
            )
        self._save(self.state.add_probe(ProbeRecord(build, SKIPPED, campaign, reason=reason)))

    def _save(self, state: BisectionState) -> None:
        self.state = state
        state.save(self.settings)

    def make_request(self, build: int) -> CampaignRequest:
        """Make the request of the campaign that measures a build against GOOD."""
        question = self.state.question
        number = len(self.state.probes) + 1
        overrides = {"repeats": "1", **question.overrides}
        if not question.is_exact:
            overrides = {"mode": "paired", **overrides}
        return CampaignRequest(
            question.test_spec,
            {
                "bundle": (AXIS,),
                **question.axes,
                AXIS: (self._name_build(0), self._name_build(build)),
            },
            overrides,
            question.sites,
            question.from_sites,
            f"bisect {self.state.id} probe {number}",
            self.options,
        )

    def _prepare_build(self, build: int) -> None:
        """Build a commit if that is needed.

        Raises:
            BuildFailedError: the commit cannot be built.
            ConfigError: GOOD cannot be built.
        """
        builder = self._builder
        if builder is None:
            return
        build_name = self.state.question.builds[build]
        try:
            with self.bars(f"Building {build_name.title}", 1) as step:
                builder.build(build_name.name)
                step(1)
        except BuildFailedError as failure:
            if build == 0:
                raise ConfigError(
                    f"GOOD cannot be built: {failure}",
                    where=build_name.title,
                    hint=f"The log is {builder.locate(build_name.name)}.log.",
                ) from failure
            raise

    def _name_build(self, build: int) -> str:
        """Return the value of the root axis for a build."""
        name, builder = self.state.question.builds[build].name, self._builder
        if builder is None:
            return name
        assert self.state.question.source is not None
        folder = str(builder.locate(name))
        return self.state.question.source.software.replace(FOLDER_PLACEHOLDER, folder)

    @cached_property
    def _builder(self) -> CommitBuilder | None:
        source = self.state.question.source
        if source is None:
            return None
        first = self.state.question.builds[0].name
        repository, _ = open_repository(source.url, first, self.settings.git_dir)
        return CommitBuilder(repository, source.command, self.settings.builds_dir)


def _check_one_series(plan: Plan) -> None:
    """Refuse a plan that measures several series of each build, before it is submitted.

    Raises:
        ConfigError: there are several; the message has the values in which they differ.
    """
    all_series = _list_series(plan)
    if len(all_series) > 1:
        differing = [
            key for key in all_series[0] if len({series.get(key) for series in all_series}) > 1
        ]
        words = [
            ", ".join(f"{key}={series.get(key)}" for key in differing) for series in all_series
        ]
        more = "; …" if len(words) > MAX_SHOWN_SERIES else ""
        raise ConfigError(
            f"the test measures {len(all_series)} series of each build: "
            f"{'; '.join(words[:MAX_SHOWN_SERIES])}{more}",
            where="bisect",
            hint="Choose one value of each axis with -P, and one site.",
        )


def _list_series(plan: Plan) -> list[dict[str, object]]:
    """List place and variant of each series that a plan measures, without the build."""
    all_series: list[dict[str, object]] = []
    for job, _ in plan.jobs.iterate_kinds():
        place = {
            "site": job.site.name,
            "storage": job.access.storage.name,
            "doors": job.access.door_label,
        }
        for execution in job.spec.executions:
            series: dict[str, object] = {**place, **execution.variant}
            series.pop(AXIS, None)
            if execution.kind == TIMED and series not in all_series:
                all_series.append(series)
    return all_series


@dataclass(frozen=True)
class BuildProbeResult:
    """Result of a probe.

    Attributes:
        effects: ln(build/GOOD) of each paired job.
        counter: exact counter of GOOD and of the build.
        failure: why the build could not be measured; ''.
        was_run: whether any execution of the build returned a result.
        good_failed: whether it is GOOD that could not be measured.
    """

    effects: tuple[float, ...] = ()
    counter: tuple[float, float] | None = None
    failure: str = ""
    was_run: bool = True
    good_failed: bool = False


def find_metric(name: str, definition: TestDefinition) -> HeadlineMetric:
    """Find a metric of a test by its name: the test's own, of the catalogue, or of operations.

    Raises:
        ConfigError: there is none, or it is not a number.
    """
    if name in definition.metrics:
        declared = definition.metrics[name]
        return HeadlineMetric(name, declared.unit, declared.better or "lower")
    catalogued = METRICS_BY_NAME.get(name)
    if catalogued is not None and catalogued.type in ("int", "float"):
        return HeadlineMetric(name, catalogued.unit, catalogued.better or "lower")
    try:
        return find_headline_metric(name, {}, is_load=definition.load is not None)
    except (KeyError, ValueError) as error:
        names = [*definition.metrics, *METRICS_BY_NAME]
        raise ConfigError(
            "no metric of this name has values",
            where=f"--metric {name}",
            hint=f"{suggest_word(name, names)}Known: {', '.join(definition.metrics)} of the test, "
            "and those of the reference.",
        ) from error


def is_exact_counter(name: str, definition: TestDefinition) -> bool:
    """Return whether one job decides: the test declares the metric exact, or the catalogue does."""
    declared = definition.metrics.get(name)
    return declared.exact if declared else name in COUNTER_NAMES


def read_probe(
    store: Store, campaign_id: str, metric: HeadlineMetric, good: str, build: str, *, exact: bool
) -> BuildProbeResult:
    """Read the result of a probe's campaign from the store.

    Raises:
        ConfigError: the campaign has several series, or an exact counter varies.
    """
    rows = load_metric_rows(store, Selection((campaign_id,)), SAMPLE_COLUMNS, (metric,))
    samples = assign_compilers(map(Sample.from_row, rows))
    series = split_sides(samples, AXIS, good, build)
    if len(series) > 1:
        labels = ", ".join(f"{sides.label} at {sides.site}" for sides in series)
        raise ConfigError(
            f"the test measures {len(series)} series of each build: {labels}",
            where="bisect",
            hint="Choose one value of each axis with -P, and one site.",
        )
    if not series or not series[0].b:
        return BuildProbeResult(failure="none of its executions returned a result", was_run=False)
    if exact:
        return _read_counter(series[0], metric)
    effect = measure_effect(series[0], metric, AXIS, collect_checksums(samples))
    if effect.pairs:
        return BuildProbeResult(effects=tuple(pair.d for pair in effect.pairs))
    good_failed = all(sample.reason_unusable(metric.name) for sample in series[0].a)
    return BuildProbeResult(failure=effect.why, good_failed=good_failed)


def _read_counter(series: SeriesSides, metric: HeadlineMetric) -> BuildProbeResult:
    sides = [
        {s.metrics[metric.name] for s in side if not s.failure_class and metric.name in s.metrics}
        for side in (series.a, series.b)
    ]
    if any(len(values) > 1 for values in sides):
        raise ConfigError(
            "the metric differs between executions of one build: it is not exact here",
            where=f"--metric {metric.name}",
            hint="Search it as a noisy one, with --noisy.",
        )
    if not all(sides):
        failures = {s.failure_class or f"no {metric.name}" for s in (*series.a, *series.b)}
        return BuildProbeResult(failure=", ".join(sorted(failures)), good_failed=not sides[0])
    (good,), (build,) = sides
    return BuildProbeResult(counter=(good, build))
