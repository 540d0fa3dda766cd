"""Facts of tests for people and programs: rows of a list, variants with their order, and what a test reads."""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping
from typing import Any

from treehammer.collectors.http_requests import mask_credentials
from treehammer.collectors.job_spec import PAIRED
from treehammer.config import Settings
from treehammer.errors import NothingToDoError, TreehammerError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition.execution_order import (
    derive_job_seed,
    expand_variants,
    group_variants,
    order_job,
)
from treehammer.hctests.definition.judged_metrics import find_numeric_metric
from treehammer.hctests.definition.test_identity import PinnedTest, compute_test_hash
from treehammer.hctests.definition.toml_models import TestDefinition

_VARIANT_LETTERS = string.ascii_uppercase + string.ascii_lowercase


def list_tests(places: Collection[str], settings: Settings) -> list[dict[str, Any]]:
    """List the tests of folders and repositories; without any, the shipped ones.

    Raises:
        NothingToDoError: there are none.
    """
    specs = [spec for place in places for spec in pinned_tests.find_tests(place, settings)]
    if not places:
        specs = [*pinned_tests.list_shipped_tests()]
    if not specs:
        raise NothingToDoError(
            "no test.toml found",
            where=", ".join(map(mask_credentials, places)),
            hint="A test is a folder that contains test.toml.",
        )
    return [_describe_test(spec, settings) for spec in specs]


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


def displayed_axes(definition: TestDefinition) -> tuple[str, ...]:
    """Return the axes that tell the variants of a test apart."""
    axes = (("door",) if "door" in definition.axes else ()) + definition.label_axes
    return axes or ("root", "branches", "cache_mb")


def build_variant_rows(
    definition: TestDefinition,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Build a row for each variant, and for each job a row with the orders of its rounds."""
    rows: list[dict[str, Any]] = []
    orders: list[dict[str, Any]] = []
    doors = _display_doors(definition)
    for shared in [doors] if definition.bundles_doors else [(door,) for door in doors]:
        for group in group_variants(definition, *shared):
            number = len(orders) + 1
            letters = {variant: _format_letter(n) for n, variant in enumerate(group.variants)}
            defaults = {"door": shared[0]} if "door" in definition.axes else {}
            rows += [
                {
                    "job": number,
                    "letter": letters[variant],
                    **(defaults | ({"door": variant.door} if variant.door else {})),
                    **dict(variant.values),
                }
                for variant in group.variants
            ]
            seed = derive_job_seed(definition.test.seed, number)
            order = order_job(definition, group, seed)
            texts: dict[int, str] = {}
            for execution in order:
                texts[execution.round] = texts.get(execution.round, "") + letters[execution.variant]
            orders.append({"job": number, "executions": len(order), "orders": list(texts.values())})
    return rows, orders


def _format_letter(number: int) -> str:
    """Format the letter of a variant, by its number in a job from 0; ``<53>`` when letters run out."""
    return _VARIANT_LETTERS[number] if number < len(_VARIANT_LETTERS) else f"<{number + 1}>"


def list_facts(
    pinned: PinnedTest, rows: Collection[Any], orders: Collection[Mapping[str, Any]]
) -> dict[str, Any]:
    """Collect the facts of a test with the results of :func:`build_variant_rows`."""
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
        "variants": len(rows),
        "jobs": len(orders) * definition.test.repeats,
        "executions": sum(row["executions"] for row in orders) * definition.test.repeats,
        "settings": dict(definition.settings),
        **{key: tables[key] for key in ("load", "expect", "before", "build") if tables[key]},
    }


def describe_facts(facts: dict[str, Any], definition: TestDefinition) -> list[str]:
    """Describe the facts of a test in lines."""
    paired = "in paired mode, " if facts["mode"] == PAIRED else ""
    of_each = "site" if definition.bundles_doors else "site and door"
    lines = {
        "test": f"{facts['name']}  {facts['description']}".rstrip(),
        "from": f"{facts['repository']} {facts['path']} ({_describe_commit(facts)})",
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
        outputs = ", ".join(definition.build.outputs)
        lines["build"] = f"{definition.build.command} makes {outputs} once for each ROOT of a job"
    if definition.load:
        lines["load"] = definition.load.describe()
    is_load = definition.load is not None
    pairs = [*lines.items()]
    for limit in definition.expect:
        metric = find_numeric_metric(limit.metric, definition.metrics, is_load=is_load)
        pairs.append(("expect", limit.describe(metric.unit)))
    return [f"{name:8} {text}" for name, text in pairs]


def _describe_commit(facts: Mapping[str, Any]) -> str:
    if not facts["commit"]:
        return "not in Git"
    commit = f"commit {facts['commit'][:12]}"
    return f"{commit}, modified in the working tree" if facts["dirty"] else commit
