"""Headline metrics, which comparisons of a test judge, and the limits that a test states.

A metric has a unit and a direction; a limit is absolute or a multiple of a base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pydantic import Field

from treehammer.collectors.record.metric_catalogue import COUNTER_NAMES, METRICS_BY_NAME
from treehammer.collectors.record.operation_steps import OPERATIONS
from treehammer.hctests.definition.document_problems import StrictModel
from treehammer.hctests.definition.matrix import Rule, parse_axis_text
from treehammer.hctests.definition.model import Scalar

#: Headline metrics of a test at most: all share one correction for their number.
MAX_HEADLINE = 6

#: Last words of names of metrics without a unit whose values are equal or different, but no amounts.
_HASHES = ("checksum", "hash", "digest", "adler32", "crc32", "crc32c", "md5", "sha1", "sha256")

#: Figures of operations -> unit and direction.
OPERATION_FIGURES: Mapping[str, tuple[str, str]] = {
    "p50_s": ("s", "lower"),
    "p95_s": ("s", "lower"),
    "p99_s": ("s", "lower"),
    "max_s": ("s", "lower"),
    "rate_hz": ("Hz", "higher"),
    "bytes_per_s": ("B/s", "higher"),
    "success_fraction": ("1", "higher"),
}


@dataclass(frozen=True)
class HeadlineMetric:
    """A metric that comparisons judge.

    Attributes:
        name: name in the catalogue, of the test's own metric, or of a figure of an operation.
        unit: its unit; ``1`` for counts and ratios.
        better: ``lower`` or ``higher``; '' for neither.
        figure: of :data:`OPERATION_FIGURES`; '' for a metric that measurements hold.
        operation: operation of the figure; '' for the main one of a load.
        work: what times are per: an event, or a run of a command.
    """

    name: str
    unit: str = "s"
    better: str = "lower"
    figure: str = ""
    operation: str = ""
    work: str = field(default="event", compare=False)

    @property
    def sign(self) -> int:
        """Sign of an effect ln(B/A) for the worse: 1 or -1."""
        return 1 if self.better == "lower" else -1


def is_hash(name: str) -> bool:
    """Return whether a metric is a hash by its name: its values have no order and no ratio."""
    return name.rpartition("_")[2] in _HASHES


#: The headline of tests that state none: seconds per event.
DEFAULT_HEADLINE = (HeadlineMetric("cpu_per_event_s"), HeadlineMetric("wall_per_event_s"))
#: That of commands.
COMMAND_HEADLINE = tuple(replace(metric, work="run") for metric in DEFAULT_HEADLINE)


def find_headline_metric(
    name: str, declared: Mapping[str, MetricTable], *, is_load: bool
) -> HeadlineMetric:
    """Find a headline metric by name, with the arguments of :func:`find_numeric_metric`.

    Raises:
        KeyError: nothing has this name.
        ValueError: it cannot be judged, with the reason.
    """
    metric = find_numeric_metric(name, declared, is_load=is_load)
    if name in declared:
        if declared[name].exact:
            raise ValueError("is exact, so that every comparison lists it anyway")
        if metric.better not in ("lower", "higher"):
            raise ValueError(f'needs a direction: better = "lower" or "higher" in [metrics.{name}]')
    if name in COUNTER_NAMES:
        raise ValueError("is an exact counter, which every comparison lists anyway")
    if not metric.better:
        raise ValueError("has no direction: neither a lower nor a higher value is better")
    return metric


def find_numeric_metric(
    name: str, declared: Mapping[str, MetricTable], *, is_load: bool
) -> HeadlineMetric:
    """Find any number by name, exact counters and metrics without a direction included.

    Args:
        name: name as stated in the test.
        declared: metrics that the test declares.
        is_load: whether its measurements have operations.

    Raises:
        KeyError: nothing has this name.
        ValueError: the test's measurements hold no such number, with the reason.
    """
    if is_hash(name):
        raise ValueError(
            "is a hash, whose values are only equal or different: comparisons name those that "
            "differ, and the payload can fail on a wrong one"
        )
    if name in declared:
        return HeadlineMetric(name, declared[name].unit, declared[name].better)
    if name in METRICS_BY_NAME:
        metric = METRICS_BY_NAME[name]
        if metric.type not in ("int", "float"):
            raise ValueError("is not a number")
        return HeadlineMetric(name, metric.unit, metric.better)
    operation, figure = _split_figure(name)
    if not figure:
        raise KeyError(name)
    if not is_load:
        raise ValueError("is a figure of operations, which only a test with the table [load] has")
    return HeadlineMetric(name, *OPERATION_FIGURES[figure], figure, operation)


def _split_figure(name: str) -> tuple[str, str]:
    """Split ``open_p99_s`` into operation and figure; two empty texts for other names."""
    if name in OPERATION_FIGURES:
        return "", name
    for operation in OPERATIONS:
        figure = name.removeprefix(f"{operation}_")
        if figure != name and figure in OPERATION_FIGURES:
            return operation, figure
    return "", ""


def list_metric_names(
    find: Callable[..., HeadlineMetric], declared: Mapping[str, MetricTable], *, is_load: bool
) -> Iterator[str]:
    """Yield all names that :func:`find_headline_metric` or :func:`find_numeric_metric` accepts."""
    figures = [
        *OPERATION_FIGURES,
        *(f"{operation}_{figure}" for operation in OPERATIONS for figure in OPERATION_FIGURES),
    ]
    for name in (*declared, *METRICS_BY_NAME, *(figures if is_load else ())):
        try:
            find(name, declared, is_load=is_load)
        except ValueError:
            continue
        yield name


#: Base of a limit: the first value of the bundled axis, also if the command line replaces the values.
FIRST_VALUE: Final = "first"
#: Both kinds of bounds.
BOUNDS = AT_MOST, AT_LEAST = "at_most", "at_least"


class MetricTable(StrictModel):
    """A [metrics.NAME] table: a counter that the payload reports beyond the catalogue."""

    unit: str = Field("1", min_length=1, max_length=20, description="SI unit; 1 for counts.")
    better: Literal["lower", "higher", ""] = Field("", description="Direction of improvement.")
    description: str = Field("", max_length=500, description="One sentence.")
    exact: bool = Field(
        False, description="Equal reads give equal values, so that one job decides in comparisons."
    )


class SiteLimitTable(StrictModel):
    """A [expect.sites.SITE] table: bounds that replace those of its [[expect]] at one site."""

    at_most: float | None = Field(None, description="Upper bound at this site.")
    at_least: float | None = Field(None, description="Lower bound at this site.")


class ExpectTable(StrictModel):
    """A [[expect]] table: limits of a metric."""

    metric: str = Field(
        min_length=1,
        max_length=100,
        description="Any number of the catalogue, of [metrics], or of operations, e.g. open_p99_s.",
    )
    at_most: float | None = Field(
        None,
        description="Upper bound in the metric's unit; with base a multiple of the base's value.",
    )
    at_least: float | None = Field(None, description="Lower bound, likewise.")
    base: str = Field(
        "",
        max_length=200,
        description='ROOT release that the bounds are relative to, AXIS=VALUE, or "first": the first '
        "value of the bundled axis, also where -P replaces its values. Empty: the bounds are absolute.",
    )
    where: Rule = Field(
        default_factory=dict,
        description="Axes and values of the variants that it holds for; empty for all.",
    )
    sites: dict[str, SiteLimitTable] = Field(
        default_factory=dict, description="Bounds that replace those above at one site."
    )

    def list_bounds(self, site: str) -> Iterator[tuple[str, float]]:
        """Yield the bounds at a site, each with its kind of :data:`BOUNDS`."""
        for kind in BOUNDS:
            replaced = getattr(self.sites.get(site), kind, None)
            bound = getattr(self, kind) if replaced is None else replaced
            if bound is not None:
                yield kind, bound

    def describe(self, unit: str) -> str:
        """Describe the limit, e.g. ``max_rss_bytes at most 2e+09 B where root=6.40.00``."""
        unit = "" if unit == "1" else f" {unit}"
        unit = f" × {self.base}" if self.base else unit
        parts = [
            f"{name.replace('_', ' ')} {bound:g}{unit}{scope}"
            for scope, table in (
                ("", self),
                *((f" at {s}", at_site) for s, at_site in self.sites.items()),
            )
            for name in BOUNDS
            if (bound := getattr(table, name)) is not None
        ]
        where = " ".join(f"{axis}={value}" for axis, value in self.where.items())
        return f"{self.metric} {', '.join(parts)}" + (f" where {where}" if where else "")

    def resolve_base(
        self, axes: Mapping[str, Sequence[Scalar]], bundle: Sequence[str]
    ) -> tuple[str, Scalar]:
        """Return axis and value of the base; '' twice for absolute bounds.

        The value need not be among those of the axis.
        """
        if not self.base:
            return "", ""
        if self.base == FIRST_VALUE:
            candidates = (name for name in bundle if len(axes.get(name, ())) > 1)
            axis = next(candidates, bundle[0] if bundle else "root")
            return axis, next(iter(axes.get(axis, ())), "")
        name, _, text = self.base.partition("=")
        if name not in axes:
            name, text = "root", self.base
        return name, parse_axis_text(name, text, axes.get(name, ()))
