"""Commands ``treehammer tests list | show | schema``, and options that modify tests.

Every command that takes a test has these options.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import click

from treehammer.config import Settings
from treehammer.tables import TableColumn
from treehammer.terminal import TEST, TEXT, CommandOutput, TextTable, prints_rows

_TEST_COLUMNS = (
    TableColumn("test", "test"),
    TableColumn("name", "name"),
    TableColumn("variants", "variants", is_number=True),
    TableColumn("dataset", "dataset"),
    TableColumn("description", "description"),
)


def definition_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-P axis=v1,v2`` and ``-S key=value``.

    The command receives ``axes`` (axis -> values as typed) and ``overrides`` (key -> value as
    typed), both for :func:`.pinned_tests.load_pinned_test`.
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
        return function(*args, axes=axes, overrides=overrides, **kwargs)

    return wrapper


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


@click.group()
def tests() -> None:
    """List, show and check tests."""


@tests.command("list")
@click.argument("where", nargs=-1, type=TEXT)
@prints_rows(*_TEST_COLUMNS)
@click.pass_obj
def list_tests(settings: Settings, where: tuple[str, ...]) -> list[dict[str, Any]]:
    """List the shipped tests, or those of folders and repositories (URL@REF:).

    Example: treehammer tests list https://gitlab.example.org/io/tests.git@main:
    """
    from treehammer.hctests import pinned_test_facts

    return pinned_test_facts.list_tests(where, settings)


@tests.command()
@click.argument("spec", type=TEST)
@definition_options
@prints_rows(keys="job, letter, and the axes of the test")
@click.pass_obj
def show(
    settings: Settings, spec: str, axes: dict[str, tuple[str, ...]], overrides: dict[str, str]
) -> CommandOutput:
    """Show a test's variants, their grouping into jobs and their order of execution.

    Example: treehammer tests show ttree-read -P cache_mb=0,30 -S repeats=6
    """
    from treehammer.hctests import pinned_test_facts
    from treehammer.hctests.pinned_tests import load_pinned_test

    pinned = load_pinned_test(spec, axes, overrides, settings)
    rows, orders = pinned_test_facts.build_variant_rows(pinned.definition)
    facts = pinned_test_facts.list_facts(pinned, rows, orders)
    axes_shown = pinned_test_facts.displayed_axes(pinned.definition)
    job = TableColumn("job", "job", is_number=True)
    order = TableColumn("orders", "orders, drawn again for each job", ", ".join)
    return CommandOutput(
        rows,
        [
            job,
            TableColumn("letter", "letter"),
            *(TableColumn(axis, axis, is_number=axis == "cache_mb") for axis in axes_shown),
        ],
        above=[*pinned_test_facts.describe_facts(facts, pinned.definition), ""],
        below=["", TextTable(orders, [job, order])],
        document={"test": facts, "variants": rows, "orders": orders},
    )


@tests.command()
def schema() -> None:
    """Print the JSON Schema of test.toml, for editors.

    Example: treehammer tests schema > test.schema.json
    """
    from treehammer.hctests.definition.toml_models import build_test_schema

    click.echo(json.dumps(build_test_schema(), indent=1, sort_keys=True))
