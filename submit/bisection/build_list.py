"""Builds that a search runs over: a list, a file, releases of a package, or commits."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treehammer.analysis.bisection.step_search import MAX_BUILDS
from treehammer.analysis.samples.sample import natural_sort_key
from treehammer.collectors.package_index import check_unknown_wheels
from treehammer.collectors.software.provider_tools import extract_error_line
from treehammer.collectors.software.providers import parse_software_request
from treehammer.config import Settings
from treehammer.errors import ConfigError, SoftwareError, suggest_word
from treehammer.hctests.git.pinned_tests import open_repository

_PACKAGE_PREFIX = "pypi:"
_VERSIONS_LINE = re.compile(r"^Available versions: (.*)$", re.MULTILINE)
#: Seconds that the index may take to answer.
_INDEX_TIMEOUT_S = 120


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
    command = [sys.executable, "-m", "pip", "index", "versions", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_INDEX_TIMEOUT_S
        )
        failure = "" if not done.returncode else extract_error_line(done.stderr)
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = str(error)
    match = None if failure else _VERSIONS_LINE.search(done.stdout)
    if match is None:
        raise SoftwareError(
            f"cannot list the releases of {name}: {failure or 'pip did not answer'}",
            where="--over",
            hint="List them in a file, one pypi:NAME==VERSION a line, the oldest first.",
        )
    versions = sorted((part.strip() for part in match[1].split(",")), key=natural_sort_key)
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
