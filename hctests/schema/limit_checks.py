"""Checks of the limits in [[expect]]: known metrics, possible bounds, bases that are measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from treehammer.errors import suggest_nearest
from treehammer.hctests.matrix import headline
from treehammer.hctests.matrix.definition import Scalar, TestDefinition
from treehammer.hctests.matrix.expected_limits import BOUNDS
from treehammer.hctests.schema import definition_checks
from treehammer.hctests.schema.document_problems import DocumentProblem
from treehammer.hctests.schema.toml_models import DefinitionDocument, ExpectTable, SiteLimitTable
from treehammer.hctests.schema.toml_positions import KeyPath


def check_limits(
    limits: Sequence[ExpectTable],
    document: DefinitionDocument,
    matrix: Mapping[str, Sequence[Scalar]],
) -> Iterator[DocumentProblem]:
    """Check that limits are of metrics that exist, and that their bounds leave something."""
    declared, is_load = definition_checks.declare_metrics(document), document.load is not None
    for index, limit in enumerate(limits):
        path: KeyPath = ("expect", index)
        try:
            headline.find_numeric_metric(limit.metric, declared, is_load=is_load)
        except KeyError:
            suggestion = suggest_nearest(
                limit.metric, headline.list_numeric_names(declared, is_load=is_load)
            )
            yield DocumentProblem(
                (*path, "metric"), f"{limit.metric!r} is not a metric{suggestion}"
            )
        except ValueError as error:
            yield DocumentProblem((*path, "metric"), f"{limit.metric!r} {error}")
        if limit.where:
            yield from definition_checks.check_rule(limit.where, matrix, (*path, "where"))
        yield from _check_bounds(limit, path)


def _check_bounds(limit: ExpectTable, path: KeyPath) -> Iterator[DocumentProblem]:
    """Check the bounds of a limit, and those of each site together with the ones they complete."""
    tables: list[tuple[ExpectTable | SiteLimitTable, KeyPath]] = [(limit, path)]
    tables += [(site_limit, (*path, "sites", site)) for site, site_limit in limit.sites.items()]
    if limit.at_most is None and limit.at_least is None and not limit.sites:
        yield DocumentProblem(path, "has no bound: add at_most or at_least")
    for table, key_path in tables:
        at_most = limit.at_most if table.at_most is None else table.at_most
        at_least = limit.at_least if table.at_least is None else table.at_least
        if table is not limit and table.at_most is None and table.at_least is None:
            yield DocumentProblem(key_path, "has no bound: add at_most or at_least")
        if at_most is not None and at_least is not None and at_least > at_most:
            yield DocumentProblem(
                key_path, f"at_least = {at_least:g} is above at_most = {at_most:g}"
            )
        for kind in BOUNDS:
            bound = getattr(table, kind)
            if limit.base and bound is not None and bound <= 0:
                yield DocumentProblem(
                    (*key_path, kind), f"{bound:g} is no multiple of a base (expected more than 0)"
                )


def check_bases(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that the bases of limits are values of their axes."""
    for index, limit in enumerate(definition.expect):
        axis, value = limit.resolve_base(definition.axes, definition.bundle)
        included = (rule[axis] for rule in definition.include if axis in rule)
        values = [*definition.axes.get(axis, ()), *included]
        if axis and value not in values:
            texts = [str(candidate) for candidate in values]
            suggestion = suggest_nearest(str(value), texts)
            yield DocumentProblem(
                ("expect", index, "base"),
                f"{str(value)!r} is not a value of {axis} (expected one of: {', '.join(texts)}){suggestion}",
            )
