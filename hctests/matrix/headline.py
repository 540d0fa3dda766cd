"""Headline metrics that comparisons of a test judge, with unit and direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from treehammer.collectors.record.exact_counters import COUNTER_NAMES
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.record.operation_steps import OPERATIONS
from treehammer.hctests.matrix.definition import MetricDeclaration

#: Headline metrics of a test at most: all share one correction for their number.
MAX_HEADLINE = 6

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
    """

    name: str
    unit: str = "s"
    better: str = "lower"
    figure: str = ""
    operation: str = ""

    @property
    def sign(self) -> int:
        """Sign of an effect ln(B/A) for the worse: 1 or -1."""
        return 1 if self.better == "lower" else -1


#: The headline of tests that state none: seconds per event.
DEFAULT_HEADLINE = (HeadlineMetric("cpu_per_event_s"), HeadlineMetric("wall_per_event_s"))


def find_headline_metric(
    name: str, declared: Mapping[str, MetricDeclaration], *, is_load: bool
) -> HeadlineMetric:
    """Find a headline metric by name.

    Args:
        name: name as stated in the test.
        declared: metrics that the test declares.
        is_load: whether its measurements have operations.

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
    name: str, declared: Mapping[str, MetricDeclaration], *, is_load: bool
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


def list_headline_names(
    declared: Mapping[str, MetricDeclaration], *, is_load: bool
) -> Iterator[str]:
    """Yield all names that :func:`find_headline_metric` accepts."""
    return _list_accepted(find_headline_metric, declared, is_load=is_load)


def list_numeric_names(
    declared: Mapping[str, MetricDeclaration], *, is_load: bool
) -> Iterator[str]:
    """Yield all names that :func:`find_numeric_metric` accepts."""
    return _list_accepted(find_numeric_metric, declared, is_load=is_load)


def _list_accepted(
    find: Callable[..., HeadlineMetric], declared: Mapping[str, MetricDeclaration], *, is_load: bool
) -> Iterator[str]:
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
