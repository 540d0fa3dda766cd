"""Filters of a comparison's page: by verdict, metric, site and variant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from starlette.requests import Request

from treehammer.analysis.comparison.counter_changes import SAME, CounterChange
from treehammer.analysis.comparison.wording import verdict_text
from treehammer.sql.core.rows import VerdictRow
from treehammer.web.views.shared.page_links import link_to_same_page

Filtered = TypeVar("Filtered", VerdictRow, CounterChange)


@dataclass(frozen=True)
class FilterChoice:
    """A value to filter by, or the removal of a filter; ``address`` shows the page with it."""

    title: str
    address: str
    is_current: bool = False


@dataclass(frozen=True)
class VerdictFilter:
    """Values that shown rows must have; '' for any.

    Attributes:
        verdict: a verdict, of time or of a counter.
        metric: a headline metric or an exact counter.
        site: a site.
        variant: label of a variant.
    """

    verdict: str = ""
    metric: str = ""
    site: str = ""
    variant: str = ""

    @classmethod
    def parse(cls, request: Request) -> VerdictFilter:
        """Read the filters of a URL."""
        return cls(**{name: request.query_params.get(name, "") for name in FILTER_NAMES})

    @property
    def is_one_cell(self) -> bool:
        """Whether a single site and variant are shown."""
        return bool(self.site and self.variant)

    def select(self, rows: Iterable[Filtered], *, any_metric: bool = False) -> list[Filtered]:
        """Select the rows that pass.

        Args:
            rows: verdicts on headline metrics, or changes of counters.
            any_metric: ignore the filter by metric.
        """
        metric = "" if any_metric else self.metric
        columns = {"metric": metric, "verdict": self.verdict}
        columns |= {"site": self.site, "label": self.variant}
        filters = {name: value for name, value in columns.items() if value}
        if not filters:
            return list(rows)
        return [
            row
            for row in rows
            if all(getattr(row, name) == value for name, value in filters.items())
        ]


FILTER_NAMES = tuple(field.name for field in fields(VerdictFilter))


def list_filter_choices(
    request: Request,
    chosen: VerdictFilter,
    rows: Sequence[VerdictRow],
    changes: Sequence[CounterChange],
) -> Mapping[str, list[FilterChoice]]:
    """List metrics and verdicts to choose from, and the filters by site and variant to remove.

    Args:
        request: of the page.
        chosen: its filters.
        rows: all verdicts.
        changes: all changes of counters.
    """

    def choose(name: str, value: str, title: str) -> FilterChoice:
        address = link_to_same_page(request, **{name: value or None, "page": None})
        return FilterChoice(title, address, getattr(chosen, name) == value)

    changed = dict.fromkeys(change.metric for change in changes if change.verdict != SAME)
    metrics = [*verdict_text.list_metrics(rows), *changed]
    verdicts = Counter(row.verdict for row in rows if row.site)
    return {
        "metric": [
            choose("metric", "", "all metrics"),
            *(choose("metric", metric, _title_metric(metric)) for metric in metrics),
        ],
        "verdict": [
            choose("verdict", "", "all verdicts"),
            *(
                choose("verdict", verdict, f"{verdict} ({n})")
                for verdict, n in verdicts.most_common()
            ),
        ],
        "remove": [
            FilterChoice(f"{name} {value}", link_to_same_page(request, **{name: None}))
            for name, value in (("site", chosen.site), ("variant", chosen.variant))
            if value
        ],
    }


def _title_metric(name: str) -> str:
    return verdict_text.title_metric(name).replace("_", " ")
