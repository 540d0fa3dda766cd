"""State of a search on disk: question, builds and probes. A killed search continues from it.

Builds come from a list, a file, the releases of a package, or commits that are built in the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.json_documents import format_json, parse_document
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.root_releases import check_unknown_wheels, list_package_versions
from treehammer.collectors.shared_files import hold_lock, write_atomically
from treehammer.collectors.software.providers import parse_software_request
from treehammer.config import Settings
from treehammer.errors import (
    ConfigError,
    NothingToDoError,
    SourceError,
    make_cache_error,
    suggest_word,
)
from treehammer.hctests.git_repository import Repository
from treehammer.hctests.pinned_tests import open_repository
from treehammer.watch.bisection.bisection_search import MAX_BUILDS, CounterSearch, StepSearch

STATE_FORMAT = 1
#: States of a probe: its campaign may be running; its effects are known; its build is left out.
RUNNING, MEASURED, SKIPPED = "running", "measured", "skipped"
_PACKAGE_PREFIX = "pypi:"
#: Seconds that a build may take.
BUILD_TIMEOUT_S = 3600.0
#: Characters of a failed build's output that are kept.
_MAX_BUILD_EXCERPT = 500


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
    """A search with all its probes; a remark says why it ended without an answer."""

    id: str
    started_us: int
    question: BisectionQuestion
    probes: tuple[ProbeRecord, ...] = ()
    is_finished: bool = False
    remark: str = ""

    @classmethod
    def start(cls, question: BisectionQuestion) -> BisectionState:
        """Start a search."""
        now_us = current_us()
        text = format_json([now_us, question], sort_keys=True)
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
            values: dict[int, float] = {}
            for probe in self.probes:
                if probe.counter is not None:
                    values |= {0: probe.counter[0], probe.build: probe.counter[1]}
            return CounterSearch(builds, values, skipped)
        jobs = tuple((probe.build, effect) for probe in self.probes for effect in probe.effects)
        return StepSearch(builds, self.question.certainty, jobs, skipped)

    def save(self, settings: Settings) -> None:
        """Write the state; readers see the old one or the new one."""
        settings.bisections_dir.mkdir(parents=True, exist_ok=True)
        document = {"format": STATE_FORMAT, **vars(self)}
        write_atomically(
            settings.bisections_dir / f"{self.id}.json", format_json(document, indent=1)
        )


def name_search(identity: str) -> str:
    """Name the search of a check, whose page links it."""
    return identity[:12]


def find_state(settings: Settings, identity: str) -> BisectionState | None:
    """Find a search; None for an unknown one."""
    states = list_states(settings.bisections_dir)
    return next((state for state in states if state.id == identity), None)


def load_state(settings: Settings, id_start: str) -> BisectionState:
    """Load a search by the start of its id; ``last`` is the newest unfinished one.

    Raises:
        NothingToDoError: no search is unfinished.
        ConfigError: no search, or several, have this id.
    """
    states = list(list_states(settings.bisections_dir))
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


def list_states(folder: Path) -> Iterator[BisectionState]:
    """Load all searches of an installation."""
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("format") == STATE_FORMAT:
            yield parse_document(BisectionState, document)


@dataclass(frozen=True)
class ListedBuild:
    """One build of a search.

    Attributes:
        name: value of the root axis, or the hash of a commit.
        title: name for people.
    """

    name: str
    title: str


@dataclass(frozen=True)
class CommitSource:
    """Repository whose commits are built.

    Attributes:
        url: its address or folder.
        command: shell command that builds a commit.
        software: value of the root axis, with ``{build}`` for the folder of the build.
    """

    url: str
    command: str
    software: str


def list_builds(good: str, bad: str, over: str) -> list[ListedBuild]:
    """List the builds from GOOD to BAD of ``--over``: a file, a list, or ``pypi:PACKAGE``.

    Raises:
        ConfigError: GOOD or BAD is missing, or stands in the wrong order.
    """
    if (
        over.startswith(_PACKAGE_PREFIX)
        and "==" not in over.split(",", maxsplit=1)[0].split(maxsplit=1)[0]
    ):
        return _list_package_releases(good, bad, over.removeprefix(_PACKAGE_PREFIX))
    path = Path(over).expanduser()
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines()
        names = [line.partition("#")[0].strip() for line in lines]
    else:
        names = [part.strip() for part in over.split(",")]
    builds = [ListedBuild(name, name) for name in dict.fromkeys(filter(None, names))]
    return _select_range(builds, good, bad, "--over")


def check_builds(builds: Sequence[ListedBuild], software_dir: Path) -> None:
    """Refuse builds that are no values of the root axis, all at once and before anything is measured.

    Raises:
        ConfigError: a build names no ROOT, or a wheel that does not exist.
    """
    requests, problems = [], []
    for build in builds:
        try:
            requests.append(parse_software_request(build.name))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n  ".join(problems), where="--over")
    check_unknown_wheels(requests, software_dir, where="--over")


def _list_package_releases(good: str, bad: str, requirements: str) -> list[ListedBuild]:
    """List the releases of a package that its index has; further requirements hold for each."""
    name, *other_requirements = requirements.split()
    versions = sorted(list_package_versions(name), key=natural_sort_key)
    builds = [
        ListedBuild(" ".join([f"{_PACKAGE_PREFIX}{name}=={version}", *other_requirements]), version)
        for version in versions
    ]
    return _select_range(builds, good, bad, f"--over {_PACKAGE_PREFIX}{name}")


def list_commits(
    good: str, bad: str, source: CommitSource, settings: Settings
) -> list[ListedBuild]:
    """List the commits from GOOD to BAD.

    Raises:
        SourceError: the repository or a commit is missing, or BAD does not descend from GOOD.
    """
    repository, first = open_repository(source.url, good, settings.git_dir)
    _, last = open_repository(source.url, bad, settings.git_dir)
    later = repository.list_commits(first, last)
    builds = [ListedBuild(first, f"{first[:10]} ({good})")]
    builds += [ListedBuild(commit, f"{commit[:10]} {subject}") for commit, subject in later]
    _check_count(builds, "--repository")
    return builds


def _select_range(
    builds: Sequence[ListedBuild], good: str, bad: str, where: str
) -> list[ListedBuild]:
    places = [_find_build(builds, name, where) for name in (good, bad)]
    first, last = places
    if first >= last:
        raise ConfigError(
            f"{good} does not stand before {bad}",
            where=where,
            hint="Builds are listed from the oldest to the newest. If a newer build is the good one, "
            "exchange GOOD and BAD: a search finds improvements, too.",
        )
    selected = list(builds[first : last + 1])
    _check_count(selected, where)
    return selected


def _find_build(builds: Sequence[ListedBuild], name: str, where: str) -> int:
    for place, build in enumerate(builds):
        if name in (build.name, build.title):
            return place
    titles = [build.title for build in builds]
    raise ConfigError(
        f"{name} is not among the builds",
        where=where,
        hint=suggest_word(name, titles) or f"Builds: {', '.join(titles[:10])}.",
    )


def _check_count(builds: Sequence[ListedBuild], where: str) -> None:
    if not 2 <= len(builds) <= MAX_BUILDS:
        raise ConfigError(f"{len(builds)} builds; a search takes 2 to {MAX_BUILDS}", where=where)


class BuildFailedError(Exception):
    """A build that cannot be measured; the text is the reason."""


@dataclass(frozen=True)
class CommitBuilder:
    """Builds commits of one repository with one command, each in a folder of its own.

    Attributes:
        repository: the repository.
        command: shell command that runs in a copy of the commit.
        root: folder of all builds.
        timeout_s: seconds after which a build has failed.
    """

    repository: Repository
    command: str
    root: Path
    timeout_s: float = BUILD_TIMEOUT_S

    def build(self, commit: str) -> Path:
        """Build a commit, unless that was done before; return its folder.

        Raises:
            BuildFailedError: the command failed, now or before.
            SourceError: the cache cannot be written, or Git cannot read the commit.
        """
        folder = self.locate(commit)
        result = folder.with_suffix(".json")
        try:
            with hold_lock(folder.with_suffix(".lock")):
                if not result.is_file():
                    reason = self._build_anew(commit, folder)
                    write_atomically(result, json.dumps({"failure": reason}))
                reason = json.loads(result.read_text(encoding="utf-8"))["failure"]
        except OSError as error:
            raise make_cache_error(SourceError, error, folder) from error
        if reason:
            raise BuildFailedError(reason)
        return folder

    def locate(self, commit: str) -> Path:
        """Return the folder of a commit's build, built or not."""
        key = f"{self.repository.display_name}\n{self.command}"
        return self.root / hashlib.sha256(key.encode()).hexdigest()[:12] / commit[:20]

    def _build_anew(self, commit: str, folder: Path) -> str:
        """Build in an empty folder; return the reason of a failure, or ''."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.repository.write_tree(commit, folder)
        log = folder.with_suffix(".log")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        with log.open("wb") as stream:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self.command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
            try:
                status = process.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                _kill_group(process)
                return f"the build took longer than {self.timeout_s:g} s"
            except BaseException:
                _kill_group(process)
                raise
        if not status:
            return ""
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = lines[-1][-_MAX_BUILD_EXCERPT:] if lines else "no output"
        return f"the build command failed with status {status}: {reason}"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
