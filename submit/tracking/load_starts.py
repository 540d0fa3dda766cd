"""Common starts of load tests: their report, and the resumption that they do not permit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from treehammer.analysis.descriptive.start_spread import (
    START_COLUMNS,
    StartSpread,
    count_lonely_starts,
    summarize_starts,
)
from treehammer.errors import ConfigError
from treehammer.hctests.matrix.load_settings import LoadCeiling, LoadSettings
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.text_formatting import pluralize

#: Common starts described one by one; of more, only those that are not good.
MAX_SHOWN_STARTS = 10


def describe_starts(store: ResultsReader, campaign: CampaignRow) -> Iterator[str]:
    """Yield a line for each common start of a campaign, and one for loads without any."""
    spreads, lonely = summarize_campaign_starts(store, campaign)
    if len(spreads) > MAX_SHOWN_STARTS:
        good = [start_spread for start_spread in spreads if start_spread.judgment == "good"]
        yield f"{len(good)} of {len(spreads)} common starts are good"
        spreads = [start_spread for start_spread in spreads if start_spread not in good][
            :MAX_SHOWN_STARTS
        ]
    for spread in spreads:
        when = time.strftime("%H:%M:%SZ", time.gmtime(spread.start_us / 1e6))
        yield f"start {when} {spread.describe()}"
    if lonely:
        yield f"start bad: {pluralize(lonely, 'measurement')} began alone; see logs/worker.err"


def summarize_campaign_starts(
    store: ResultsReader, campaign: CampaignRow
) -> tuple[list[StartSpread], int]:
    """Summarize the common starts of a campaign, and count the loads without one."""
    load = read_load(campaign)
    if load is None or not load.together:
        return [], 0
    rows = list(store.measurements(Selection((campaign.id,)), START_COLUMNS))
    return summarize_starts(rows, load), count_lonely_starts(rows)


def refuse_resumption(campaign: CampaignRow) -> None:
    """Refuse to resume jobs that start together, since those that ended do not come again.

    Raises:
        ConfigError: they do.
    """
    load = read_load(campaign)
    if load is not None and load.together:
        raise ConfigError(
            "its jobs start together, and those that ended would be missing",
            where=campaign.name,
            hint="Submit the campaign again.",
        )


def read_load(campaign: CampaignRow) -> LoadSettings | None:
    """Return the load of a campaign's test; None for other tests and for invalid plans."""
    values = json.loads(campaign.plan or "{}").get("definition", {}).get("load")
    if not values:
        return None
    # Imported here: pydantic is slow to load, and few campaigns are load tests.
    from treehammer.hctests.schema.toml_models import LoadTable

    try:
        # Uploaded plans may hold anything here.
        validated = LoadTable.model_validate(values).model_dump()
        load = LoadSettings(**{**validated, "ceiling": LoadCeiling(**validated["ceiling"])})
        load.level_start_s(0)
    except (ValueError, ConfigError):
        return None
    return load
