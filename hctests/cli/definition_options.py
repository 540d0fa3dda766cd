"""Options ``-P/--axis`` and ``-S/--set`` of every command that takes a test."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import click

from treehammer.config import Settings
from treehammer.hctests.git import compared_commits, pinned_tests
from treehammer.hctests.matrix.definition import PinnedTest
from treehammer.hctests.schema import definition_loader

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
    """Pin a test (see :func:`treehammer.hctests.git.pinned_tests.pin_test`) and apply ``-P`` and ``-S``.

    Raises:
        treehammer.errors.SourceError: the test cannot be fetched.
        treehammer.errors.NothingToDoError: two values of the axis ``commit`` hold the same test.
        treehammer.errors.DefinitionError: the test or an override has mistakes.
    """
    pinned = pinned_tests.pin_test(spec, config)
    if axes or overrides:
        definition = definition_loader.override_definition(pinned.definition, axes, overrides)
        pinned = dataclasses.replace(pinned, definition=definition)
    return compared_commits.pin_commits(pinned, spec, overrides, config)
