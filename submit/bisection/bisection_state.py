"""State of a search on disk: its question and its probes, so that a killed search continues."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from treehammer.analysis.bisection.counter_search import CounterSearch
from treehammer.analysis.bisection.step_search import StepSearch
from treehammer.collectors.shared_files import write_atomically
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.submit.bisection.build_list import CommitSource, ListedBuild

FORMAT = 1
#: States of a probe: its campaign may be running; its effects are known; its build is left out.
RUNNING, MEASURED, SKIPPED = "running", "measured", "skipped"


@dataclass(frozen=True)
class BisectionQuestion:
    """Which of ``builds`` changed ``metric``?

    Attributes:
        builds: from GOOD to BAD.
        source: repository of the builds; None for builds that exist.
        test_spec: the test that measures it.
        axes: axis -> values as typed; of all but ``root`` one value each.
        overrides: key of [test] -> value as typed.
        sites: site whose storage is read.
        from_sites: site that runs the jobs; empty for the same.
        metric: name of the metric.
        is_exact: whether one job decides.
        certainty: probability at which the search ends.
        job_limit: jobs at most.
    """

    builds: tuple[ListedBuild, ...]
    source: CommitSource | None
    test_spec: str
    axes: Mapping[str, tuple[str, ...]]
    overrides: Mapping[str, str]
    sites: tuple[str, ...]
    from_sites: tuple[str, ...]
    metric: str
    is_exact: bool
    certainty: float
    job_limit: int

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> BisectionQuestion:
        """Build a question from its JSON document."""
        source = document["source"]
        return cls(
            **{
                **document,
                "builds": tuple(ListedBuild(**build) for build in document["builds"]),
                "source": CommitSource(**source) if source else None,
                "axes": {axis: tuple(values) for axis, values in document["axes"].items()},
                "sites": tuple(document["sites"]),
                "from_sites": tuple(document["from_sites"]),
            }
        )


@dataclass(frozen=True)
class ProbeRecord:
    """Measurement of one build against GOOD.

    Attributes:
        build: number of the build.
        state: RUNNING, MEASURED or SKIPPED.
        campaign: its campaign; '' if there is none.
        effects: ln(build/GOOD) of each job.
        counter: exact counter of GOOD and of the build.
        reason: why the build is left out.
    """

    build: int
    state: str
    campaign: str = ""
    effects: tuple[float, ...] = ()
    counter: tuple[float, float] | None = None
    reason: str = ""


@dataclass(frozen=True)
class BisectionState:
    """A search with all its probes."""

    id: str
    started_us: int
    question: BisectionQuestion
    probes: tuple[ProbeRecord, ...] = ()
    is_finished: bool = False

    @classmethod
    def start(cls, question: BisectionQuestion) -> BisectionState:
        """Start a search."""
        now_us = time.time_ns() // 1000
        text = json.dumps([now_us, asdict(question)], sort_keys=True)
        return cls(hashlib.sha256(text.encode()).hexdigest()[:12], now_us, question)

    @property
    def jobs(self) -> int:
        """Jobs that were measured."""
        return sum(len(probe.effects) or int(probe.counter is not None) for probe in self.probes)

    @property
    def pending(self) -> ProbeRecord | None:
        """The probe whose campaign may be running, if any."""
        return next((probe for probe in self.probes if probe.state == RUNNING), None)

    def add_probe(self, probe: ProbeRecord) -> BisectionState:
        """Return the state with a new probe."""
        return replace(self, probes=(*self.probes, probe))

    def settle_pending(self, probe: ProbeRecord | None) -> BisectionState:
        """Return the state with the running probe replaced; None removes it."""
        settled = tuple(recorded for recorded in self.probes if recorded.state != RUNNING)
        return replace(self, probes=settled if probe is None else (*settled, probe))

    def make_search(self) -> StepSearch | CounterSearch:
        """Rebuild the search from its probes."""
        builds = len(self.question.builds)
        skipped = frozenset(p.build for p in self.probes if p.state == SKIPPED)
        if self.question.is_exact:
            search = CounterSearch(builds, skipped=skipped)
            for probe in self.probes:
                if probe.counter is not None:
                    search = search.add_value(probe.build, probe.counter[1], probe.counter[0])
            return search
        steps = StepSearch(builds, self.question.certainty, skipped=skipped)
        for probe in self.probes:
            steps = steps.add_effects(probe.build, probe.effects)
        return steps

    def save(self, settings: Settings) -> None:
        """Write the state; readers see the old one or the new one."""
        settings.bisections_dir.mkdir(parents=True, exist_ok=True)
        document = {"format": FORMAT, **asdict(self)}
        write_atomically(
            settings.bisections_dir / f"{self.id}.json", json.dumps(document, indent=1)
        )


def load_state(settings: Settings, id_start: str) -> BisectionState:
    """Load a search by the start of its id; ``last`` is the newest unfinished one.

    Raises:
        NothingToDoError: no search is unfinished.
        ConfigError: no search, or several, have this id.
    """
    states = list(_iterate_states(settings.bisections_dir))
    if id_start == "last":
        unfinished = [state for state in states if not state.is_finished]
        if not unfinished:
            raise NothingToDoError("no search is unfinished", where="bisect --resume")
        return max(unfinished, key=lambda state: state.started_us)
    matching = [state for state in states if state.id.startswith(id_start)]
    if len(matching) != 1:
        ids = ", ".join(state.id for state in states) or "none"
        raise ConfigError(
            f"{len(matching)} searches have an id that begins with {id_start!r}",
            where="bisect --resume",
            hint=f"Searches: {ids}.",
        )
    return matching[0]


def _iterate_states(folder: Path) -> Iterator[BisectionState]:
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("format") == FORMAT:
            probes = tuple(_parse_probe(probe) for probe in document.pop("probes"))
            question = BisectionQuestion.from_document(document.pop("question"))
            yield BisectionState(question=question, probes=probes, **document)


def _parse_probe(document: Mapping[str, Any]) -> ProbeRecord:
    counter = document["counter"]
    return ProbeRecord(
        **{
            **document,
            "effects": tuple(document["effects"]),
            "counter": (counter[0], counter[1]) if counter else None,
        }
    )
