"""``tests list | show | check | schema``, and the options ``-P/--axis`` and ``-S/--set`` of tests.

Every command that takes a test has these options.
"""

from __future__ import annotations

import functools
import json
import re
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import click

from treehammer.collectors.job_spec import PAIRED
from treehammer.config import Settings
from treehammer.errors import NothingToDoError, TreehammerError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition import toml_models
from treehammer.hctests.definition.judged_metrics import find_numeric_metric
from treehammer.hctests.definition.matrix import (
    OrderedExecution,
    derive_job_seed,
    expand_variants,
    group_variants,
    order_job,
)
from treehammer.hctests.definition.model import PinnedTest, Variant, compute_test_hash
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.hctests.git_repository import mask_credentials
from treehammer.tables import TableColumn
from treehammer.terminal import (
    TEST,
    CommandOutput,
    TextTable,
    prints_rows,
)

P = ParamSpec("P")
R = TypeVar("R")

_TEST_COLUMNS = (
    TableColumn("test", "test"),
    TableColumn("name", "name"),
    TableColumn("variants", "variants", is_number=True),
    TableColumn("dataset", "dataset"),
    TableColumn("description", "description"),
)
_VARIANT_LETTERS = string.ascii_uppercase + string.ascii_lowercase


def definition_options(function: Callable[P, R]) -> Callable[P, R]:
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


@click.group()
def tests() -> None:
    """List, show and check tests."""


@tests.command("list")
@click.argument("where", nargs=-1)
@prints_rows(*_TEST_COLUMNS)
@click.pass_obj
def list_tests(settings: Settings, where: tuple[str, ...]) -> list[dict[str, Any]]:
    """List the shipped tests, or those of folders and repositories (URL@REF:).

    Example: treehammer tests list https://gitlab.example.org/io/tests.git@main:
    """
    specs = [spec for place in where for spec in pinned_tests.find_tests(place, settings)]
    rows = [
        _describe_test(spec, settings)
        for spec in specs or ([] if where else pinned_tests.list_shipped_tests())
    ]
    if not rows:
        raise NothingToDoError(
            "no test.toml found",
            where=", ".join(mask_credentials(place) for place in where),
            hint="A test is a folder that contains test.toml.",
        )
    return rows


def _describe_test(spec: str, settings: Settings) -> dict[str, Any]:
    """Build a test's row; a test with mistakes is listed with them."""
    row: dict[str, Any] = {"test": mask_credentials(spec)}
    empty = dict.fromkeys(("name", "variants", "dataset"))
    try:
        definition = pinned_tests.pin_test(spec, settings).definition
    except TreehammerError as error:
        return {**row, **empty, "description": f"{error.message}: see 'tests check'"}
    count = sum(len(expand_variants(definition, door)) for door in _display_doors(definition))
    return {
        **row,
        "name": definition.test.name,
        "variants": count,
        "dataset": ", ".join(definition.dataset_names) or None,
        "description": definition.test.description,
    }


def _display_doors(definition: TestDefinition) -> tuple[str, ...]:
    """Return the doors that a test names; without names all doors have the same variants."""
    return tuple(str(door) for door in definition.axes.get("door", ("any",)))


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
    pinned = pinned_tests.load_pinned_test(spec, axes, overrides, settings)
    rows, orders = _build_variant_rows(pinned.definition)
    executions = sum(row["executions"] for row in orders)
    facts = _collect_facts(pinned, len(rows), len(orders), executions)
    axes_shown = _displayed_axes(pinned.definition)
    orders_shown = [{**row, "orders": ", ".join(row["orders"])} for row in orders]
    job = TableColumn("job", "job", is_number=True)
    return CommandOutput(
        rows,
        [
            job,
            TableColumn("letter", "letter"),
            *(TableColumn(axis, axis, is_number=axis == "cache_mb") for axis in axes_shown),
        ],
        above=[*_describe_facts(facts, pinned.definition), ""],
        below=[
            "",
            TextTable(
                orders_shown, [job, TableColumn("orders", "orders, drawn again for each job")]
            ),
        ],
        document={"test": facts, "variants": rows, "orders": orders},
    )


def _displayed_axes(definition: TestDefinition) -> tuple[str, ...]:
    named = (("door",) if "door" in definition.axes else ()) + definition.label_axes
    return named or ("root", "branches", "cache_mb")


def _build_variant_rows(
    definition: TestDefinition,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Build a row for each variant, and for each job a row with the orders of its rounds."""
    rows: list[dict[str, Any]] = []
    orders: list[dict[str, Any]] = []
    doors = _display_doors(definition)
    for shared in [doors] if definition.bundles_doors else [(door,) for door in doors]:
        for group in group_variants(definition, *shared):
            number = len(orders) + 1
            letters = {variant: _variant_letter(n) for n, variant in enumerate(group.variants)}
            named = {"door": shared[0]} if "door" in definition.axes else {}
            rows += [
                {
                    "job": number,
                    "letter": letters[variant],
                    **(named | ({"door": variant.door} if variant.door else {})),
                    **dict(variant.values),
                }
                for variant in group.variants
            ]
            seed = derive_job_seed(definition.test.seed, number)
            order = order_job(definition, group, seed)
            orders.append(
                {"job": number, "executions": len(order), "orders": _format_orders(order, letters)}
            )
    return rows, orders


def _variant_letter(number: int) -> str:
    return _VARIANT_LETTERS[number] if number < len(_VARIANT_LETTERS) else f"<{number + 1}>"


def _format_orders(order: Iterable[OrderedExecution], letters: Mapping[Variant, str]) -> list[str]:
    texts: dict[int, str] = {}
    for execution in order:
        texts[execution.round] = texts.get(execution.round, "") + letters[execution.variant]
    return list(texts.values())


def _collect_facts(
    pinned: PinnedTest, variants: int, groups: int, executions: int
) -> dict[str, Any]:
    definition, tables = pinned.definition, pinned.definition.describe()
    return {
        "name": definition.test.name,
        "description": definition.test.description,
        "repository": pinned.repository,
        "ref": pinned.ref,
        "commit": pinned.commit,
        "dirty": pinned.dirty,
        "path": pinned.path,
        "payload": definition.test.payload,
        "kind": definition.payload_kind,
        "dataset": definition.dataset,
        "datasets": list(definition.dataset_names),
        "tree": definition.test.tree,
        "files": dict(pinned.hashes),
        "test_hash": compute_test_hash(pinned),
        "bundle": list(definition.matrix.bundle),
        **({"headline": list(definition.test.headline)} if definition.test.headline else {}),
        "repeats": definition.test.repeats,
        "mode": definition.test.mode,
        "rounds": definition.test.rounds,
        "passes": definition.test.passes,
        "variants": variants,
        "jobs": groups * definition.test.repeats,
        "executions": executions * definition.test.repeats,
        "settings": dict(definition.settings),
        **{key: tables[key] for key in ("load", "expect", "before", "build") if tables[key]},
    }


def _describe_facts(facts: dict[str, Any], definition: TestDefinition) -> list[str]:
    state = ", modified in the working tree" if facts["dirty"] else ""
    paired = "in paired mode, " if facts["mode"] == PAIRED else ""
    of_each = "site" if definition.bundles_doors else "site and door"
    commit = f"commit {facts['commit'][:12]}{state}" if facts["commit"] else "not in Git"
    lines = {
        "test": f"{facts['name']}  {facts['description']}".rstrip(),
        "from": f"{facts['repository']} {facts['path']} ({commit})",
        "payload": f"{facts['payload']} ({facts['kind']})",
        "reads": f"{', '.join(facts['datasets']) or 'no dataset'} {facts['tree']}".rstrip(),
        "hash": facts["test_hash"][:16],
        "plan": f"variants {facts['variants']}, jobs {facts['jobs']}, executions "
        f"{facts['executions']} for each {of_each} ({paired}"
        f"repeats {facts['repeats']}, rounds {facts['rounds']}, passes {facts['passes']})",
    }
    if "headline" in facts:
        lines["headline"] = ", ".join(facts["headline"])
    if "before" in facts:
        command, applied = facts["before"]["command"], ", ".join(facts["before"]["settings"])
        lines["before"] = f"{command} applies {applied} before each execution"
    if definition.build:
        made = ", ".join(definition.build.outputs)
        lines["build"] = f"{definition.build.command} makes {made} once for each ROOT of a job"
    if definition.load:
        lines["load"] = definition.load.describe()
    is_load = definition.load is not None
    limits = [
        limit.describe(find_numeric_metric(limit.metric, definition.metrics, is_load=is_load).unit)
        for limit in definition.expect
    ]
    pairs = [*lines.items(), *(("expect", text) for text in limits)]
    return [f"{name:8} {text}" for name, text in pairs]


@tests.command()
def schema() -> None:
    """Print the JSON Schema of test.toml, for editors.

    Example: treehammer tests schema > test.schema.json
    """
    click.echo(json.dumps(toml_models.build_test_schema(), indent=1, sort_keys=True))
