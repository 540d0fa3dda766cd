"""Options ``-P/--axis`` and ``-S/--set`` of every command that takes a test, and their application.

On the axis ``commit``, one job compares commits of the same test, each with its own payload.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import click

from treehammer.config import Settings
from treehammer.errors import DefinitionError, NothingToDoError, SourceError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition import definition_loader, identity
from treehammer.hctests.definition.model import (
    COMMIT_AXIS,
    WORKING_TREE,
    PinnedTest,
    Scalar,
    TestDefinition,
    format_commit,
)

#: Tables of test.toml whose replaced keys hold for every commit.
_OVERRIDDEN_TABLES = ("settings.", "environment.")


class EqualCommitsError(NothingToDoError):
    """Two compared commits hold the same test."""


def pin_commits(
    pinned: PinnedTest, spec: str, overrides: Mapping[str, str], settings: Settings
) -> PinnedTest:
    """Pin a test at each value of its axis ``commit``, if it has this axis.

    Payload, files, libraries, settings, variables and own metrics are those of each commit; all else
    is that of ``pinned``. The values of the axis become those of :func:`.identity.identify_commit`.

    Args:
        pinned: the test, whose definition states the shared part.
        spec: the specification by which it was pinned.
        overrides: key of [test] -> value as typed; those of settings and variables hold for all.
        settings: ``git_dir`` contains mirrors and the files of pinned tests.

    Raises:
        SourceError: a commit, or the test in it, does not exist.
        DefinitionError: the test has mistakes at a commit, or lacks a file that is read.
        EqualCommitsError: two values hold the same test.
    """
    texts = tuple(map(str, pinned.definition.axes.get(COMMIT_AXIS, ())))
    if not texts:
        return pinned
    values: dict[str, str] = {}
    commits: dict[str, PinnedTest] = {}
    tests: dict[str, str] = {}
    for text in texts:
        at_commit = _pin_value(pinned, spec, text, overrides, settings)
        test_hash = identity.compute_test_hash(at_commit)
        if test_hash in tests:
            raise EqualCommitsError(
                f"{_describe_value(tests[test_hash])} and {_describe_value(text)} hold the same "
                "payload, files and settings",
                where=pinned.definition.name,
                hint="Choose commits that differ in this test.",
            )
        tests[test_hash] = text
        values[text] = identity.identify_commit(at_commit.commit, at_commit.dirty, test_hash)
        commits[values[text]] = at_commit
    return replace(pinned, definition=_resolve_values(pinned.definition, values), commits=commits)


def _pin_value(
    pinned: PinnedTest, spec: str, text: str, overrides: Mapping[str, str], settings: Settings
) -> PinnedTest:
    """Pin the test at one value of the axis, with the definitions that all commits share."""
    where = f"{pinned.definition.name}: axis {COMMIT_AXIS}"
    if not pinned.commit:
        raise SourceError(
            "the test is not committed in a Git repository",
            where=where,
            hint="Commit it, or name it as URL@REF:path.",
        )
    if text == WORKING_TREE and pinned.ref:
        raise SourceError(
            f"a test named by its commit has no working tree ({WORKING_TREE!r})",
            where=where,
            hint="Name the test by its folder.",
        )
    if text == WORKING_TREE:
        at_commit = pinned_tests.pin_test(str(pinned.folder), settings)
    else:
        at_commit = pinned_tests.pin_at_commit(pinned, spec, text, settings)
    shared = {key: value for key, value in overrides.items() if key.startswith(_OVERRIDDEN_TABLES)}
    at_commit_definition = definition_loader.override_definition(at_commit.definition, {}, shared)
    merged = _merge_definitions(pinned.definition, at_commit_definition)
    _check_branch_files(merged, f"{_describe_value(text)}: {pinned.path}")
    return replace(at_commit, definition=merged)


def _merge_definitions(common: TestDefinition, at_commit: TestDefinition) -> TestDefinition:
    """Combine the definition shared by all commits with that of one commit."""
    return replace(
        common,
        payload=at_commit.payload,
        settings=at_commit.settings,
        environment=at_commit.environment,
        metrics=at_commit.metrics,
        files=at_commit.files,
        libraries=at_commit.libraries,
        imports=at_commit.imports,
        build=at_commit.build,
    )


def _check_branch_files(definition: TestDefinition, where: str) -> None:
    """Check that a commit has the files ``@FILE`` that list branches."""
    for value in definition.axis_values("branches"):
        if value.startswith("@") and value[1:] not in definition.files:
            raise DefinitionError(
                f"there is no file {value[1:]!r}, which lists branches",
                where=where,
                hint="Give branches that both commits have, -P branches=...",
            )


def _resolve_values(definition: TestDefinition, values: Mapping[str, str]) -> TestDefinition:
    def resolve(rule: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        text = str(rule.get(COMMIT_AXIS, ""))
        return {**rule, COMMIT_AXIS: values[text]} if text in values else rule

    return replace(
        definition,
        axes={**definition.axes, COMMIT_AXIS: tuple(values.values())},
        exclude=tuple(map(resolve, definition.exclude)),
        include=tuple(map(resolve, definition.include)),
    )


def _describe_value(text: str) -> str:
    return "the working tree" if text == WORKING_TREE else f"commit {format_commit(text)}"


P = ParamSpec("P")
R = TypeVar("R")


def definition_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add ``-P axis=v1,v2`` and ``-S key=value``.

    The command receives ``axes`` (axis -> values as typed) and ``overrides`` (key -> value as
    typed), both for :func:`load_pinned_test`.
    """

    @click.option(
        "-P",
        "--axis",
        "parameters",
        multiple=True,
        metavar="AXIS=V1,V2",
        help="Replace the values of an axis (or 'bundle'). Write a comma inside a value as '\\,'; "
        "repeat the option for the same axis to add values.",
    )
    @click.option(
        "-S",
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="Replace a key of [test], settings.KEY, environment.NAME or load.KEY.",
    )
    @functools.wraps(function)
    def wrapper(
        *args: Any, parameters: tuple[str, ...], assignments: tuple[str, ...], **kwargs: Any
    ) -> Any:
        axes = parse_axis_options(parameters)
        overrides = dict(_split_option(text, "-S", "KEY=VALUE") for text in assignments)
        return function(*args, axes=axes, overrides=overrides, **kwargs)  # type: ignore[arg-type]  # by click

    return wrapper  # type: ignore[return-value]  # click supplies the parameters


def parse_axis_options(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Parse ``axis=v1,v2`` texts to axis -> values; ``\\,`` is a comma inside a value.

    Raises:
        click.UsageError: a text without ``=`` or without a name.
    """
    axes: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, values = _split_option(text, "-P", "AXIS=V1,V2")
        parts = re.split(r"(?<!\\),", values) if values else []
        axes[name] = axes.get(name, ()) + tuple(part.replace("\\,", ",").strip() for part in parts)
    return axes


def _split_option(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.UsageError(f"{option} {text!r}: expected {option} {form}.")
    return name.strip(), value.strip()


def load_pinned_test(
    spec: str, axes: Mapping[str, tuple[str, ...]], overrides: Mapping[str, str], config: Settings
) -> PinnedTest:
    """Pin a test (see :func:`treehammer.hctests.pinned_tests.pin_test`) and apply ``-P`` and ``-S``.

    Raises:
        treehammer.errors.SourceError: the test cannot be fetched.
        treehammer.errors.NothingToDoError: two values of the axis ``commit`` hold the same test.
        treehammer.errors.DefinitionError: the test or an override has mistakes.
    """
    pinned = pinned_tests.pin_test(spec, config)
    if axes or overrides:
        definition = definition_loader.override_definition(pinned.definition, axes, overrides)
        pinned = dataclasses.replace(pinned, definition=definition)
    return pin_commits(pinned, spec, overrides, config)
