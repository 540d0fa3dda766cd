"""Occasions on which campaigns start: times, commits, their comparisons, tags, releases, probes.

Releases are those of ROOT, and the versions that storage servers report.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from treehammer.collectors.job_spec import PAIRED
from treehammer.collectors.record.metric_catalogue import MAX_IDENTITY
from treehammer.collectors.root_releases import list_root_releases
from treehammer.collectors.shared_files import read_document
from treehammer.collectors.software.providers import split_version
from treehammer.collectors.worker.probes.storage_door import identify_server
from treehammer.config import Settings
from treehammer.errors import ConfigError, SourceError, TreehammerError, suggest_word
from treehammer.hctests.definition.model import COMMIT_AXIS, RELEASE_AXIS
from treehammer.hctests.pinned_tests import list_refs
from treehammer.submit.sites.site_model import Door
from treehammer.text_formatting import SECOND_US, join_lines
from treehammer.watch.patrol.patrol_file import (
    PACKAGE_INDEX,
    PatrolEntry,
    PatrolFile,
    ReleaseSource,
)
from treehammer.watch.store.patrol_starts import PatrolStarts

COMMIT, TAG, RELEASE, SERVER = "commit:", "tag:", "release:", "server:"
#: Comparison of a commit with an earlier one, in turns in the same jobs.
TURNS = "turns:"
#: Rounds of such a comparison, unless the entry sets them.
_ROUNDS = "4"
#: Deadline of a command before a look at servers, which may download a release.
_UPDATE_TIMEOUT_S = 1800.0
#: Letters behind the numbers of a version.
_CANDIDATE = re.compile(r"\d[a-z]+\d*$")
_VERSION = re.compile(r"v?\d+([./-]\d+)+([a-z]+\d*)?")


@dataclass(frozen=True)
class Occasion:
    """A reason to start a campaign of an entry, once.

    Attributes:
        name: unique within the entry.
        due_us: time at which the campaign is to start.
        spec: the test, pinned to a commit if it is in a repository.
        axes: axes in place of the entry's.
        overrides: keys in place of the entry's.
        site: the only one whose storage is read; '' for the entry's.
        runner: the only site that runs the jobs, where it is another.
    """

    name: str
    due_us: int
    spec: str
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    site: str = ""
    runner: str = ""

    @property
    def kind(self) -> str:
        """Beginning of its name, with the colon."""
        return self.name[: self.name.index(":") + 1]


def name_occasion(kind: str, text: str) -> str:
    """Name an occasion; long texts are replaced by their hash."""
    name = kind + text
    if len(name) > MAX_IDENTITY or not name.isascii():
        return kind + hashlib.sha256(text.encode()).hexdigest()
    return name


class RepeatedLook:
    """Value that is looked up again after a time; after an error, later and later.

    Args:
        look: looks the value up.
        every_s: seconds between two looks.
    """

    #: Longest delay after errors, in looks.
    _MAX_DELAYS = 16

    def __init__(self, look: Callable[[], Mapping[str, str]], every_s: int) -> None:
        self._look = look
        self._every_us = every_s * SECOND_US
        self._errors = 0
        self._next_us = 0
        self._value: Mapping[str, str] | None = None
        self.problem = ""

    def value(self, now_us: int) -> Mapping[str, str] | None:
        """Return the value; None if it could not be looked up lately."""
        if now_us >= self._next_us:
            try:
                self._value, self._errors, self.problem = self._look(), 0, ""
            except TreehammerError as error:
                self._value, self._errors = None, self._errors + 1
                self.problem = join_lines(str(error))
            delays = min(2**self._errors, self._MAX_DELAYS)
            self._next_us = now_us + delays * self._every_us
        return self._value


class OccasionFinder:
    """Finds the occasions of entries; remembers branches, tags and releases for a while."""

    def __init__(self, settings: Settings, file: PatrolFile) -> None:
        self._settings = settings
        self._look_every_s = file.patrol.look_every
        self._watch = file.servers
        self._followers = {name for name, entry in file.entries.items() if entry.follows_servers}
        #: Commands before the present look at servers.
        self.updates = RepeatedLook(self._run_updates, file.servers.look_every)
        #: Entry -> versions of the servers of its doors.
        self._servers: dict[str, RepeatedLook] = {}
        #: Repository -> its branches and tags; source -> its releases.
        self._refs: dict[str, RepeatedLook] = {}
        self._releases: dict[str, RepeatedLook] = {}
        self._source = file.releases

    def head_commit(self, entry: PatrolEntry, now_us: int) -> str:
        """Return the commit of an entry's branch; '' for an entry without a branch.

        Raises:
            SourceError: the repository does not answer, or has no such branch.
        """
        if not entry.branch:
            return ""
        refs = self._find_refs(entry, now_us)
        commit = refs.get(f"refs/heads/{entry.branch}", "")
        if not commit:
            branches = [name.removeprefix("refs/heads/") for name in refs if "/heads/" in name]
            raise SourceError(
                f"no branch {entry.branch!r}",
                where=entry.repository,
                hint=f"{suggest_word(entry.branch, branches)}"
                f"It has: {', '.join(sorted(branches)[:10]) or 'no branch'}.",
            )
        return commit

    def find_tags(self, entry: PatrolEntry, now_us: int) -> list[Occasion]:
        """Return an occasion for each tag that matches an entry's pattern."""
        refs = self._find_refs(entry, now_us)
        tags = {
            name.removeprefix("refs/tags/"): id_ for name, id_ in refs.items() if "/tags/" in name
        }
        return [
            Occasion(name_occasion(TAG, tag), now_us, entry.spec_at(tags[tag]))
            for tag in sorted(tags)
            if fnmatch.fnmatch(tag, entry.tags)
        ]

    def find_releases(self, spec: str, now_us: int) -> list[Occasion]:
        """Return an occasion for each ROOT release of the source."""
        source = self._source
        if source is None:
            return []
        look = RepeatedLook(lambda: list_releases(source), source.look_every)
        versions = _look_up(self._releases, source.source, look, now_us)
        occasions = []
        for version in versions.values():
            earlier = select_earlier_releases(version, versions) if source.compare else []
            axes = {RELEASE_AXIS: tuple(map(source.axis_value, (*earlier, version)))}
            occasions.append(Occasion(name_occasion(RELEASE, version), now_us, spec, axes))
        return occasions

    def find_servers(
        self,
        entry: PatrolEntry,
        spec: str,
        list_doors: Callable[[], Mapping[str, Door]],
        now_us: int,
    ) -> list[Occasion]:
        """Return an occasion for each version that a server reports.

        Args:
            entry: the entry.
            spec: its test.
            list_doors: returns label -> door through which the entry reads.
            now_us: present time.

        Raises:
            SourceError: the servers could not be listed.
        """
        look = RepeatedLook(lambda: list_server_versions(list_doors()), self._watch.look_every)
        versions = _look_up(self._servers, entry.name, look, now_us)
        names = (name_occasion(SERVER, f"{label} {version}") for label, version in versions.items())
        return [Occasion(name, now_us, spec) for name in names]

    def update_servers(self, now_us: int) -> None:
        """Run the commands that may upgrade servers, if they are due.

        Every entry looks at its servers before, so that it notes the versions that exist without the
        commands, and again afterwards. A command that fails leaves a remark.
        """
        if self._followers and self._followers <= self._servers.keys():
            self.updates.value(now_us)

    def _run_updates(self) -> dict[str, str]:
        """Run the commands in order; return the last line of each one's output.

        Raises:
            ConfigError: a command fails, or takes too long.
        """
        lines = {}
        for command in self._watch.update:
            self._servers.clear()
            try:
                result = subprocess.run(
                    shlex.split(command),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_UPDATE_TIMEOUT_S,
                    check=False,
                )
                code = result.returncode
                problem = f"exit code {code}" if code not in (0, 3) else ""
                output = (result.stderr + result.stdout).strip()
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                problem, output = str(error), ""
            if problem:
                message = join_lines(f"{problem} {output}")
                raise ConfigError(message, where=f"servers.update: {command}")
            lines[command] = output.rpartition("\n")[2]
        return lines

    def _find_refs(self, entry: PatrolEntry, now_us: int) -> Mapping[str, str]:
        look = RepeatedLook(lambda: list_refs(entry.repository, self._settings), self._look_every_s)
        return _look_up(self._refs, entry.repository, look, now_us)


def _look_up(
    looks: dict[str, RepeatedLook], key: str, look: RepeatedLook, now_us: int
) -> Mapping[str, str]:
    """Return the value of the look under a key, which is this one the first time."""
    look = looks.setdefault(key, look)
    value = look.value(now_us)
    if value is None:
        raise SourceError(look.problem)
    return value


def find_turns(
    starts: PatrolStarts, entry: PatrolEntry, commit: str, now_us: int
) -> list[Occasion]:
    """Find the comparison of a branch's commit with an earlier one, if there is one.

    The earlier commit is the one that was compared last, so that consecutive comparisons leave no
    commit out, or else the one that was measured last.
    """
    if entry.compare_at == ():
        return []
    for kind in (TURNS, COMMIT):
        earlier = starts.find_latest_occasion(entry.name, kind, without=kind + commit)
        if earlier:
            name = name_occasion(TURNS, commit)
            axes = {COMMIT_AXIS: (earlier.removeprefix(kind), commit)}
            overrides = {"rounds": entry.overrides.get("rounds", _ROUNDS), "mode": PAIRED}
            return [Occasion(name, now_us, entry.spec_at(commit), axes, overrides)]
    return []


def list_server_versions(doors: Mapping[str, Door]) -> dict[str, str]:
    """Ask the servers of doors, and the origins of caches, for their versions, by label.

    Those that do not answer or report no version are left out.
    """
    urls = {label: door.prefix for label, door in doors.items() if door.prefix}
    urls |= {f"{label} origin": door.origin for label, door in doors.items() if door.origin}
    versions = {label: identify_server(url).version for label, url in urls.items()}
    return {label: version for label, version in versions.items() if version}


def list_releases(source: ReleaseSource) -> dict[str, str]:
    """List the ROOT releases of a source: each version for itself.

    Raises:
        ConfigError: the file or folder cannot be read.
        SoftwareError: the package index does not answer.
    """
    if source.source == PACKAGE_INDEX:
        versions = list_root_releases()
    else:
        versions = _list_local_releases(Path(source.source))
    return {version: version for version in versions}


def select_earlier_releases(version: str, versions: Iterable[str]) -> list[str]:
    """Select the last release of the series before, and the patch before; candidates do not count."""
    numbers = split_version(version)
    earlier = {
        other_numbers: other
        for other in versions
        if (other_numbers := split_version(other)) < numbers and not _CANDIDATE.search(other)
    }
    patches = [other for other in earlier if other[:2] == numbers[:2]]
    releases = [other for other in earlier if other[:2] != numbers[:2]]
    return [earlier[max(group)] for group in (releases, patches) if group]


def _list_local_releases(place: Path) -> list[str]:
    try:
        if place.is_dir():
            names = [path.name for path in place.iterdir() if path.is_dir()]
            return sorted(name for name in names if _VERSION.fullmatch(name))
        lines = read_document(place).splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot be read ({getattr(error, 'strerror', '') or error})",
            where=f"releases.source {place}",
        ) from error
    return [word for line in lines if (word := line.partition("#")[0].strip())]
