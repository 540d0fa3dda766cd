"""Daily budgets of sites: limits, reservations and settled cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.day_numbers import DAY_US
from treehammer.sql.core.schema import patrol_charge
from treehammer.sql.core.watch_rows import PatrolChargeRow


@dataclass(frozen=True)
class SiteLimits:
    """Limits of a site per UTC day; None for no limit."""

    cpu_s: float | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class SiteUse:
    """CPU seconds and bytes charged to a site on one day: settled, or else reserved."""

    cpu_s: float = 0.0
    bytes: int = 0


def utc_day(now_us: int) -> int:
    """Return the UTC day of a time, in days since 1970."""
    return now_us // DAY_US


def fetch_use(connection: Connection, day: int) -> dict[str, SiteUse]:
    """Fetch the charges of each site on a day."""
    table = patrol_charge
    query = (
        sa.select(
            table.c.site,
            sa.func.sum(sa.func.coalesce(table.c.used_cpu_s, table.c.reserved_cpu_s)),
            sa.func.sum(sa.func.coalesce(table.c.used_bytes, table.c.reserved_bytes)),
        )
        .where(table.c.day == day)
        .group_by(table.c.site)
    )
    return {
        str(site): SiteUse(float(cpu_s), int(size))
        for site, cpu_s, size in connection.execute(query)
    }


def find_exhausted_sites(
    connection: Connection, charges: Sequence[PatrolChargeRow], limits: Mapping[str, SiteLimits]
) -> tuple[str, ...]:
    """Return the sites whose limits the further charges, all of one day, would exceed."""
    if not charges:
        return ()
    use = fetch_use(connection, charges[0].day)
    return tuple(
        row.site
        for row in charges
        if _exceeds(use.get(row.site, SiteUse()), row, limits.get(row.site, SiteLimits()))
    )


def _exceeds(use: SiteUse, charge: PatrolChargeRow, limits: SiteLimits) -> bool:
    over_cpu = limits.cpu_s is not None and use.cpu_s + charge.reserved_cpu_s > limits.cpu_s
    over_bytes = limits.bytes is not None and use.bytes + charge.reserved_bytes > limits.bytes
    return over_cpu or over_bytes
