"""Comparison of the working tree of a test with a commit: its plan, and a trial of both sides.

The trial comes before anything is measured: do both sides compile, and do they differ?
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from treehammer.collectors.job_spec import PAIRED, TIMED, ExecutionSpec
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError, SourceError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition.model import (
    COMMIT_AXIS,
    RELEASE_AXIS,
    WORKING_TREE,
    format_commit,
)
from treehammer.hctests.definition.test_identity import PinnedTest, compute_test_hash
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.submit.campaigns.campaign_request import plan_request
from treehammer.submit.campaigns.job_rendering import copy_payload
from treehammer.submit.planning.job_planner import locate_payload, make_payload_spec
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import CampaignRequest
from treehammer.submit.tools.checked_test import (
    PayloadTrial,
    can_try_payload,
    make_trial_spec,
    try_executions,
)
from treehammer.text_formatting import ProgressFactory

#: Keys of [test] that the comparison chooses itself.
FIXED_KEYS = {"mode", "repeats", "rounds"}


@dataclass(frozen=True)
class TreeComparison:
    """A planned comparison of the working tree with a commit.

    Attributes:
        plan: its jobs; the axis ``commit`` has the commit first and then the working tree.
        against: the commit as typed.
    """

    plan: Plan
    against: str

    @property
    def names(self) -> dict[str, str]:
        """Display names of the values of the axis ``commit``, the base first."""
        base, tree = self.plan.pinned_test.commits
        return {base: f"{self.against} ({format_commit(base)})", tree: "the working tree"}


def find_changed_test(path: Path, against: str, settings: Settings) -> Path:
    """Find the one test at or below a path whose working tree differs from a commit.

    Raises:
        NothingToDoError: there is none.
        ConfigError: there are several, or the path holds no test.
        SourceError: the path is not in a repository, or the commit does not exist.
    """
    specs = pinned_tests.find_tests(str(path), settings)
    if not specs:
        raise ConfigError(
            "no test here", where=str(path), hint="A test is a folder that contains test.toml."
        )
    if len(specs) == 1:
        return Path(specs[0])
    changed = [spec for spec in specs if _has_changed(spec, against, settings)]
    if len(changed) == 1:
        return Path(changed[0])
    if not changed:
        raise NothingToDoError(
            f"none of {len(specs)} tests differs from {against}",
            where=str(path),
            hint="Change a test, or name another commit, --against REF.",
        )
    specs_text = ", ".join(str(Path(spec).relative_to(path.resolve())) for spec in changed)
    raise ConfigError(
        f"{len(changed)} tests differ from {against}: {specs_text}",
        where=str(path),
        hint="Name one of them: treehammer try PATH",
    )


def _has_changed(spec: str, against: str, settings: Settings) -> bool:
    """Return whether a test that the commit has differs from it."""
    tree = pinned_tests.pin_test(spec, settings)
    try:
        committed = pinned_tests.pin_at_commit(tree, spec, against, settings)
    except SourceError:  # a new test has nothing to be compared with
        return False
    return compute_test_hash(tree) != compute_test_hash(committed)


def plan_tree_comparison(
    folder: Path,
    against: str,
    axes: Mapping[str, tuple[str, ...]],
    overrides: Mapping[str, str],
    settings: Settings,
    bars: ProgressFactory,
) -> TreeComparison:
    """Plan the comparison of the working tree of a test with a commit.

    Raises:
        ConfigError: an axis or override belongs to the comparison.
    """
    if COMMIT_AXIS in axes:
        raise ConfigError("the commit is named by --against", where=f"-P {COMMIT_AXIS}")
    for key in FIXED_KEYS & overrides.keys():
        raise ConfigError(
            "the comparison takes turns and ends when it is decided",
            where=f"-S {key}",
            hint="--max-launches limits it; -P commit=A,B of 'treehammer submit' takes any size.",
        )
    tree = load_pinned_test(str(folder), {}, {}, settings)
    compared = {
        # The last ROOT release that the test names.
        RELEASE_AXIS: tuple(map(str, tree.definition.axes[RELEASE_AXIS][-1:])),
        **axes,
        COMMIT_AXIS: (against, WORKING_TREE),
    }
    request = CampaignRequest(str(folder), compared, {**overrides, "mode": PAIRED})
    return TreeComparison(plan_request(request, settings, bars=bars), against)


#: Trials that run at once: one of each side.
_AT_ONCE = 2


@dataclass(frozen=True)
class SideTrials:
    """Trials of all sides.

    Attributes:
        failures: commit -> its first failure in words.
        same_work: whether all sides certainly do the same: their loops are the same machine code, and
            nothing else of the payload differs.
    """

    failures: Mapping[str, str]
    same_work: bool = False


def try_sides(plan: Plan) -> SideTrials:
    """Compile each side of a comparison of commits, as its jobs would; other payloads are not tried.

    Raises:
        SourceError: the test's files changed since they were pinned.
        KeyboardInterrupt: a stop signal arrived.
    """
    commits = plan.pinned_test.commits
    if not all(map(can_try_payload, commits.values())):
        return SideTrials({})
    definition = plan.pinned_test.definition
    specs = [
        make_trial_spec(number, spec.variant, spec.software, definition, spec.payload)
        for number, spec in enumerate(_select_executions(plan), start=1)
    ]
    sides = [str(spec.payload.folder) if spec.payload else "" for spec in specs]
    with tempfile.TemporaryDirectory(prefix="treehammer-try-") as name:
        folder = Path(name).resolve()
        for commit, test in commits.items():
            copy_payload(test, folder / locate_payload(commit))
        trials = dict(try_executions(definition, specs, folder, _AT_ONCE))
    names = {locate_payload(commit): commit for commit in commits}
    failures: dict[str, str] = {}
    for number, trial in sorted(trials.items()):
        if trial.failure:
            text = trial.failure.message.replace(f"{folder}/{sides[number]}/", "")
            failures.setdefault(names[sides[number]], text)
    return SideTrials(failures, _do_same_work([*commits.values()], specs, trials))


def _select_executions(plan: Plan) -> Iterable[ExecutionSpec]:
    """Select an execution for each commit, ROOT and format."""
    executions: dict[tuple[object, ...], ExecutionSpec] = {}
    for job in plan.jobs:
        for spec in job.spec.executions:
            folder = spec.payload.folder if spec.payload else ""
            key = (folder, spec.software.request, spec.variant.get("format"))
            if spec.kind == TIMED:
                executions.setdefault(key, spec)
    return executions.values()


def _do_same_work(
    tests: Sequence[PinnedTest], specs: Sequence[ExecutionSpec], trials: Mapping[int, PayloadTrial]
) -> bool:
    """Return whether the sides differ in nothing but sources that compile to the same machine code."""
    hashes: dict[tuple[str, str], set[str]] = {}
    for number, spec in enumerate(specs):
        reader = (spec.software.request, str(spec.variant.get("format")))
        hashes.setdefault(reader, set()).add(trials[number].loop_hash)
    are_equal = all(len(loops) == 1 and "" not in loops for loops in hashes.values())
    return are_equal and len({_describe_rest(test) for test in tests}) == 1


def _describe_rest(test: PinnedTest) -> str:
    """Describe what is not compiled into the loop: settings and files, but for the script itself."""
    payload = make_payload_spec(test.definition)
    files = {
        name: digest
        for name, digest in test.hashes.items()
        if name not in (payload.entry, "test.toml")
    }
    return f"{replace(payload, folder='')} {sorted(files.items())} {test.definition.build_command}"
