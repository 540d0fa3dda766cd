"""Searches that the patrol starts: which build brought a confirmed regression of a release?"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.statistics.verdict import DEFAULT_CERTAINTY, Verdict
from treehammer.collectors.json_documents import parse_json
from treehammer.config import Settings
from treehammer.errors import NothingToDoError, TreehammerError
from treehammer.hctests.definition.model import DOOR_AXIS, RELEASE_AXIS, format_scalar
from treehammer.hctests.pinned_tests import pin_test
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.core.watch_rows import PatrolStartRow, ReleaseCheck
from treehammer.sql.write.store import Store
from treehammer.text_formatting import join_lines
from treehammer.watch.alarms.alarm_overview import CheckState
from treehammer.watch.alarms.release_checks import MAX_AGE_US
from treehammer.watch.bisection import bisection_report
from treehammer.watch.bisection.bisection_run import BisectionRun, is_exact_counter
from treehammer.watch.bisection.bisection_state import (
    BisectionQuestion,
    BisectionState,
    ListedBuild,
    find_state,
    list_builds,
    name_search,
)
from treehammer.watch.patrol.campaign_starts import PatrolRequest
from treehammer.watch.patrol.occasions import Occasion, list_releases, name_occasion
from treehammer.watch.patrol.patrol_file import ReleaseSource
from treehammer.watch.store.alarms import BISECT, ReleaseCheckTable
from treehammer.watch.store.patrol_starts import OPEN_STATES, PatrolStarts

_LOG = logging.getLogger(__name__)
#: Jobs of a search at most.
JOB_LIMIT = 40


class ReleaseSearches:
    """Searches for the builds behind confirmed regressions, whose probes are occasions of their entries.

    A search has the identity of its check. Its state is the file that ``treehammer bisect`` writes.

    Args:
        settings: all settings.
        store: the database.
        starts: the starts of the patrol.
        source: the releases, which are the builds unless it names others; None without any.
    """

    def __init__(
        self, settings: Settings, store: Store, starts: PatrolStarts, source: ReleaseSource | None
    ) -> None:
        self._settings = settings
        self._store = store
        self._starts = starts
        self._source = source
        #: Number of searches that ended.
        self.ended = 0

    def find_probes(self, now_us: int) -> Mapping[str, list[Occasion]]:
        """Bring all searches up to date; return entry -> occasions of the next probes."""
        occasions: defaultdict[str, list[Occasion]] = defaultdict(list)
        if self._source is None or not self._source.bisects:
            return occasions
        for check in ReleaseCheckTable(self._store).list_checks(states=(CheckState.CONFIRMED,)):
            start = self._starts.find_campaign(check.campaign_id)
            if start is None or check.server or check.changed_us < now_us - MAX_AGE_US:
                continue
            state = find_state(self._settings, name_search(check.id))
            if state is None:
                state = self._begin(check, start, self._source)
            if not state.is_finished and (occasion := self._continue(state, start, now_us)):
                occasions[start.entry].append(occasion)
        return occasions

    def _begin(
        self, check: ReleaseCheck, start: PatrolStartRow, source: ReleaseSource
    ) -> BisectionState:
        """Begin the search of a check, or store why there is none."""
        builds = (ListedBuild(check.a, check.a), ListedBuild(check.b, check.b))
        question = BisectionQuestion(
            builds, None, "", {}, {}, (), (), "", False, DEFAULT_CERTAINTY, JOB_LIMIT
        )
        state = BisectionState(name_search(check.id), check.changed_us, question)
        try:
            row = _select_series(self._store.verdicts(check.comparison_id))
            state = replace(state, question=self._ask(question, start, row))
            between = _list_builds_between(check, source)
            state = replace(state, question=replace(state.question, builds=between))
            _LOG.info("%s: %s", start.entry, bisection_report.describe_start(state))
        except TreehammerError as error:
            state = self._end(state, f"Not bisected: {join_lines(str(error))}.")
        state.save(self._settings)
        return state

    def _ask(
        self, question: BisectionQuestion, start: PatrolStartRow, row: VerdictRow
    ) -> BisectionQuestion:
        """Ask about the series of a verdict: its test, variant, site and metric."""
        request = parse_json(PatrolRequest, start.request)
        side = row.evidence.of_b
        values = {**json.loads(str(side["variant"])), DOOR_AXIS: side.get("door")}
        definition = pin_test(request.test_spec, self._settings).definition
        axes = {
            name: (format_scalar(values[name]),)
            for name in {*definition.axes, *request.axes} - {RELEASE_AXIS, "bundle"}
            if values.get(name) is not None
        }
        storage = str(side.get("storage_site") or row.site)
        return replace(
            question,
            test_spec=request.test_spec,
            axes=axes,
            overrides={key: text for key, text in request.overrides.items() if key != "repeats"},
            sites=(storage,),
            from_sites=(row.site,) if request.from_sites else (),
            metric=row.metric,
            is_exact=is_exact_counter(row.metric, definition),
        )

    def _continue(
        self, state: BisectionState, start: PatrolStartRow, now_us: int
    ) -> Occasion | None:
        """Read finished probes; return the occasion of the next one unless one is under way."""
        run = BisectionRun(state, self._settings, lambda *_: None)
        try:
            while (build := run.choose_build()) is not None:
                name = name_occasion(BISECT, f"{state.id}:{len(run.state.probes) + 1}")
                probe = self._starts.find_start(start.entry, name)
                if probe is None:
                    request = run.make_request(build)
                    return Occasion(
                        name, now_us, request.test_spec, request.axes, request.overrides,
                        *request.sites[:1], *request.from_sites[:1],
                    )  # fmt: skip
                if probe.state in OPEN_STATES:
                    return None
                if probe.campaign_id:
                    run.record_probe(self._store, probe.campaign_id, build)
                else:
                    run.skip_build(build, probe.message)
        except TreehammerError as error:
            run.state = self._end(run.state, f"Search ended: {join_lines(str(error))}.")
            run.state.save(self._settings)
            return None
        _LOG.warning("%s: %s", start.entry, bisection_report.describe_answer(run.state))
        self.ended += 1
        return None

    def _end(self, state: BisectionState, remark: str) -> BisectionState:
        _LOG.warning("%s", remark)
        self.ended += 1
        return replace(state, is_finished=True, remark=remark)


def _list_builds_between(check: ReleaseCheck, source: ReleaseSource) -> tuple[ListedBuild, ...]:
    """List the builds from one release of a check to the other, with at least one between them.

    Raises:
        NothingToDoError: there is none between them.
        ConfigError: the list lacks one of both.
    """
    over = source.builds
    if not over:
        versions = sorted(list_releases(source), key=natural_sort_key)
        over = ",".join(map(source.axis_value, versions))
    builds = list_builds(check.a, check.b, over)
    if len(builds) < 3:
        raise NothingToDoError(
            f"no build lies between {check.a} and {check.b}; "
            "[releases] builds may name a list of them"
        )
    return tuple(builds)


def _select_series(rows: list[VerdictRow]) -> VerdictRow:
    """Select the verdict of one site to search for, the largest slowdown first.

    Raises:
        NothingToDoError: no verdict of a site alone is slower.
    """
    slower = [row for row in rows if row.verdict == Verdict.SLOWER and row.site]
    if not slower:
        raise NothingToDoError("the slowdown is certain over several sites alone")
    return max(slower, key=lambda row: abs(row.effect or 0.0))
