"""Trial of both sides of a comparison of commits before it measures: do they compile, and do they differ?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from treehammer.collectors.job_spec import TIMED, ExecutionSpec
from treehammer.hctests.definition.test_identity import PinnedTest
from treehammer.submit.campaigns.job_rendering import copy_payload
from treehammer.submit.planning.job_planner import locate_payload, make_payload_spec
from treehammer.submit.planning.plan import Plan
from treehammer.submit.tools.checked_test import (
    PayloadTrial,
    can_try_payload,
    make_trial_spec,
    try_executions,
)

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
    executions = [*_select_executions(plan)]
    definition = plan.pinned_test.definition
    specs = [
        make_trial_spec(number, spec.variant, spec.software, definition, spec.payload)
        for number, spec in enumerate(executions, start=1)
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


def _select_executions(plan: Plan) -> Iterator[ExecutionSpec]:
    """Select an execution for each commit, ROOT and format."""
    selected = set()
    for job in plan.jobs:
        for spec in job.spec.executions:
            folder = spec.payload.folder if spec.payload else ""
            key = (folder, spec.software.request, spec.variant.get("format"))
            if spec.kind == TIMED and key not in selected:
                selected.add(key)
                yield spec


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
