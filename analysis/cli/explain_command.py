"""The verb ``explain``."""

from __future__ import annotations

import shlex
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from treehammer.analysis.descriptive.efficiency_diagnosis import (
    DIAGNOSIS_COLUMNS,
    EfficiencyDiagnosis,
    diagnose_efficiency,
    select_explained,
)
from treehammer.analysis.descriptive.time_breakdown import TimePart, sum_breakdowns
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError, TreehammerError
from treehammer.sql.read.overview_queries import build_unknown_site_error, list_sites
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import CAMPAIGN, SITE, CommandOutput, prints_rows
from treehammer.text_formatting import format_share, pluralize

Row = Mapping[str, Any]

_COLUMNS = ("site", *DIAGNOSIS_COLUMNS)
_PART_COLUMNS = (
    TableColumn("part", "part of the wall time"),
    TableColumn("wall_s", "s", "{:.1f}".format, is_number=True),
    TableColumn("share", "share", format_share, is_number=True),
    TableColumn("without_cpu_s", "without CPU, s", "{:.1f}".format, is_number=True),
    TableColumn("other_sites_share", "other sites", format_share, is_number=True),
)


@click.command("explain")
@click.argument("job", required=False)
@click.option("--site", type=SITE, help="A site: its measurements of the latest days.")
@click.option(
    "--campaign",
    metavar="ID|last|all",
    help="A campaign [default: last].",
    type=CAMPAIGN,
)
@click.option(
    "--days",
    default=7,
    show_default=True,
    type=click.IntRange(1, 36_500),
    help="Days of --site without a campaign.",
)
@prints_rows(*_PART_COLUMNS)
@click.pass_obj
def explain_command(
    settings: Settings, job: str | None, site: str | None, campaign: str | None, days: int
) -> CommandOutput:
    """Explain CPU efficiency: where the wall time went, and the main cause of lost time.

    JOB is the identity of a job or its beginning. Only timed measurements without failure count;
    paired ones are left out, since they wait for each other.

    \b
    Example: treehammer explain --site SITE_A
             treehammer explain --campaign last
    """
    if job and (site or campaign):
        raise ConfigError("JOB excludes --site and --campaign", where="explain")
    query = _ExplainQuery(job, site, campaign, days)
    with Store.open(settings.database, create=False) as store:
        selection = query.build_selection(store)
        with store.snapshot() as snapshot:
            measured = select_explained(snapshot.measurements(selection, _COLUMNS))
        explained = query.select_own(measured)
        diagnosis = diagnose_efficiency(explained)
        if diagnosis is None:
            raise query.build_nothing_error(store)
    other_shares = _find_other_shares(measured, {row["site"] for row in explained})
    headline, efficiency, *evidence = diagnosis.describe(query.name_subject(explained))
    rows = diagnosis.breakdown.list_parts()
    for row in rows if other_shares else ():
        row["other_sites_share"] = other_shares[TimePart(row["part"])]
    return CommandOutput(
        rows,
        _PART_COLUMNS if other_shares else _PART_COLUMNS[:-1],
        above=[click.style(headline, bold=True), efficiency],
        below=[*evidence, f"Next: {query.format_next_command(diagnosis)}"],
    )


@dataclass(frozen=True)
class _ExplainQuery:
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
            first_day = datetime.now(UTC) - timedelta(days=self.days - 1)
            return Selection.parse((), [f"day>={first_day:%Y%m%d}"])
        if self.campaign == "all":
            return Selection.parse((), [])
        return Selection.parse((store.campaign(self.campaign or "last").id,), [])

    def select_own(self, rows: Iterable[Row]) -> list[Row]:
        """Select the rows to explain among those of all sites.

        Raises:
            ConfigError: they belong to several jobs with this beginning.
        """
        selected = [row for row in rows if self.site in (None, row["site"])]
        jobs = _list_jobs(selected)
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
        if self.job and not self._has_job(store):
            return self._build_unknown_job_error(store)
        return NothingToDoError(
            "no timed measurement to explain: none succeeded, or all were paired",
            where=self._describe_scope(),
            hint='Runs with mode = "solo" measure CPU efficiency. See also --campaign and --days.',
        )

    def _describe_scope(self) -> str:
        scope = [f"job {self.job}"] if self.job else [f"site {self.site}"] if self.site else []
        if not self.campaign and self.site:
            scope.append(f"last {pluralize(self.days, 'day')}")
        elif not self.job:
            scope.append(f"campaign {self.campaign or 'last'}")
        return ", ".join(scope)

    def _has_job(self, store: Store) -> bool:
        selection = self.build_selection(store)
        return next(iter(store.measurements(selection, ("job_id",))), None) is not None

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

    def name_subject(self, rows: Sequence[Row]) -> str:
        """Name the site, the job, or all sites of the rows."""
        sites = ", ".join(sorted({row["site"] for row in rows}))
        return self.site or (f"Job {_list_jobs(rows)[0]}" if self.job else sites)

    def format_next_command(self, diagnosis: EfficiencyDiagnosis) -> str:
        """Return the command that shows the same measurements in detail."""
        words = ["treehammer summary"]
        if self.job or (self.site and not self.campaign):
            words.append("--campaign all")
        elif self.campaign and self.campaign != "last":
            words.append(f"--campaign {shlex.quote(self.campaign)}")
        if self.job:
            words.append(f"--where 'job_id~{self.job}*'")
        by = ("site", *diagnosis.next_by)
        return f"{' '.join(words)} --by {','.join(by)} --metrics {','.join(diagnosis.next_metrics)}"


def _list_jobs(rows: Iterable[Row]) -> list[str]:
    return sorted({row["job_id"] for row in rows})


def _find_other_shares(rows: Sequence[Row], excluded_sites: set[str]) -> dict[TimePart, float]:
    """Return the median over the other sites of each part's share; empty without any."""
    by_site: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["site"] not in excluded_sites:
            by_site[row["site"]].append(row)
    breakdowns = [
        breakdown for breakdown in map(sum_breakdowns, by_site.values()) if breakdown.wall_s
    ]
    if not breakdowns:
        return {}
    return {
        part: statistics.median(breakdown.share(part) for breakdown in breakdowns)
        for part in TimePart
    }
