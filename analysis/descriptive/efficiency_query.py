"""Measurements whose CPU efficiency is explained: those of a job, of a site or of a campaign."""

from __future__ import annotations

import shlex
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from treehammer.analysis.descriptive.efficiency_diagnosis import (
    DIAGNOSIS_COLUMNS,
    EfficiencyDiagnosis,
    Row,
    diagnose_efficiency,
    select_solo,
)
from treehammer.analysis.descriptive.time_breakdown import TimePart, sum_breakdowns
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.errors import ConfigError, NothingToDoError, TreehammerError
from treehammer.sql.read.overview_queries import build_unknown_site_error, list_sites
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.read.site_history import load_newest
from treehammer.sql.write.store import Store
from treehammer.text_formatting import pluralize

_COLUMNS = ("site", *DIAGNOSIS_COLUMNS)
#: Newest measurements of a site that are explained: reading each takes a tenth of a millisecond.
MAX_EXPLAINED = 1000


def load_explained_rows(
    store: ResultsReader, site: str, first: date, last: date
) -> list[dict[str, Any]]:
    """Load the newest measurements of a site that say where its time went, at most :data:`MAX_EXPLAINED`."""
    days = day_to_number(first), day_to_number(last)
    return load_newest(store, site, days, MAX_EXPLAINED, _COLUMNS, solo=True)


@dataclass(frozen=True)
class EfficiencyQuery:
    """Measurements to explain: those of a job, or of a site or a campaign."""

    job: str | None
    site: str | None
    campaign: str | None
    days: int

    def build_selection(self, store: Store) -> Selection:
        """Select all sites, since the others are compared."""
        if self.job:
            return Selection.parse((), [f"job_id~{self.job}*"])
        if self.site and not self.campaign:
            return Selection.parse((), [f"day>={self._first_day:%Y%m%d}"])
        if self.campaign == "all":
            return Selection.parse((), [])
        return Selection.parse((store.campaign(self.campaign or "last").id,), [])

    @property
    def _first_day(self) -> date:
        return datetime.now(UTC).date() - timedelta(days=self.days - 1)

    def explain(self, store: Store) -> ExplainedEfficiency:
        """Explain the measurements, and find the shares of time at other sites.

        Raises:
            ConfigError: a name is mistyped, or they belong to several jobs with this beginning.
            NothingToDoError: there are none.
        """
        with store.snapshot() as snapshot:
            measured = select_solo(snapshot.measurements(self.build_selection(store), _COLUMNS))
        if self.site and not self.campaign:
            today = datetime.now(UTC).date()
            rows: Sequence[Row] = load_explained_rows(store, self.site, self._first_day, today)
        else:
            rows = self._select_own(measured)
        diagnosis = diagnose_efficiency(rows)
        if diagnosis is None:
            raise self.build_nothing_error(store)
        other_shares = _find_other_shares(measured, {row["site"] for row in rows})
        return ExplainedEfficiency(self, diagnosis, rows, other_shares)

    def _select_own(self, rows: Iterable[Row]) -> list[Row]:
        """Select the rows to explain among those of all sites."""
        selected = [row for row in rows if self.site in (None, row["site"])]
        jobs = sorted({row["job_id"] for row in selected})
        if self.job and len(jobs) > 1:
            raise ConfigError(
                f"{self.job!r} is the beginning of {len(jobs)} jobs",
                where="JOB",
                hint=", ".join(jobs[:10]),
            )
        return selected

    def build_nothing_error(self, store: Store) -> TreehammerError:
        """Build the error of a query without measurements: a mistyped name, or nothing to explain."""
        if self.site and self.site not in list_sites(store):
            return build_unknown_site_error(store, self.site)
        if self.job:
            rows = store.measurements(self.build_selection(store), ("job_id",))
            if next(iter(rows), None) is None:
                return self._build_unknown_job_error(store)
        return NothingToDoError(
            "no timed measurement to explain: none succeeded, or all were paired",
            where=self._describe_scope(),
            hint='Failures: treehammer status CAMPAIGN. Runs with mode = "solo" measure CPU efficiency. '
            "See also --campaign and --days.",
        )

    def _describe_scope(self) -> str:
        scope = [f"job {self.job}"] if self.job else [f"site {self.site}"] if self.site else []
        if not self.campaign and self.site:
            scope.append(f"last {pluralize(self.days, 'day')}")
        elif not self.job:
            scope.append(f"campaign {self.campaign or 'last'}")
        return ", ".join(scope)

    def _build_unknown_job_error(self, store: Store) -> TreehammerError:
        problem = f"no measurement is of a job {self.job!r}"
        try:
            campaign = store.campaign(str(self.job))
        except TreehammerError:
            return NothingToDoError(
                problem, hint="Jobs are listed by: treehammer summary --by job_id"
            )
        return ConfigError(
            f"{self.job!r} is a campaign, not a job",
            hint=f"treehammer explain --campaign {campaign.id[:8]}",
        )


@dataclass(frozen=True)
class ExplainedEfficiency:
    """Explanation of the efficiency of measurements.

    Attributes:
        query: the measurements that were requested.
        diagnosis: the explanation.
        rows: the measurements.
        other_shares: median over the other sites of each part's share of time; empty without any.
    """

    query: EfficiencyQuery
    diagnosis: EfficiencyDiagnosis
    rows: Sequence[Row]
    other_shares: Mapping[TimePart, float]

    def list_parts(self) -> list[dict[str, Any]]:
        """List the parts of the wall time, beside those of other sites if there are any."""
        parts = self.diagnosis.breakdown.list_parts()
        for part in parts if self.other_shares else ():
            part["other_sites_share"] = self.other_shares[TimePart(part["part"])]
        return parts

    def describe(self) -> list[str]:
        """Describe the main cause, the efficiency, the evidence and the next command."""
        sites = ", ".join(sorted({row["site"] for row in self.rows}))
        job = f"Job {self.rows[0]['job_id']}" if self.query.job else ""
        lines = self.diagnosis.describe(self.query.site or job or sites)
        return [*lines, f"Next: {self._format_next_command()}"]

    def _format_next_command(self) -> str:
        """Format the command that shows the same measurements in detail."""
        query, diagnosis = self.query, self.diagnosis
        words = ["treehammer summary"]
        if query.job or (query.site and not query.campaign):
            words.append("--campaign all")
        elif query.campaign and query.campaign != "last":
            words.append(f"--campaign {shlex.quote(query.campaign)}")
        if query.job:
            words.append(f"--where 'job_id~{query.job}*'")
        by = ("site", *diagnosis.next_by)
        return f"{' '.join(words)} --by {','.join(by)} --metrics {','.join(diagnosis.next_metrics)}"


def _find_other_shares(rows: Sequence[Row], excluded_sites: set[str]) -> dict[TimePart, float]:
    """Return the median over the other sites of each part's share; empty without any."""
    by_site: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["site"] not in excluded_sites:
            by_site[row["site"]].append(row)
    breakdowns = list(map(sum_breakdowns, by_site.values()))
    if not breakdowns:
        return {}
    return {
        part: statistics.median(breakdown.share(part) for breakdown in breakdowns)
        for part in TimePart
    }
