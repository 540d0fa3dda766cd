"""``treehammer purge``: removes the working folders of ended campaigns."""

from __future__ import annotations

import click

from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.write.store import Store
from treehammer.submit.lifecycle.campaign_purge import (
    campaigns_older_than,
    purge_campaign,
    retention_reason,
)
from treehammer.submit.tracking.campaign_polling import make_tracker
from treehammer.terminal import on_interrupt, print_hint
from treehammer.text_formatting import format_size


@click.command()
@click.argument("campaigns", nargs=-1)
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Also purge all ended campaigns that were submitted at least so long ago.",
)
@click.pass_obj
@on_interrupt("campaigns that are not purged yet are complete")
def purge(settings: Settings, campaigns: tuple[str, ...], days: float | None) -> None:
    """Remove the working folders and logs of ended campaigns.

    The measurements are stored in the database first; a campaign with records that the database
    rejects is kept.

    \b
    Example: treehammer purge last
             treehammer purge --older-than 30
    """
    if not campaigns and days is None:
        raise ConfigError("no campaign given", hint="Name campaigns, or use --older-than DAYS.")
    with Store.open(settings.database, create=False) as store:
        tracker = make_tracker(store, settings)
        chosen = [store.campaign(name) for name in campaigns]
        for row in chosen:
            if reason := retention_reason(tracker, row):
                raise ConfigError(f"cannot be purged: {reason}", where=row.name)
        if days is not None:
            chosen += campaigns_older_than(tracker, days)
        freed = 0
        for row in chosen:
            freed += purge_campaign(tracker, row, settings)
    for line in tracker.describe_unknown_batch_systems():
        print_hint(line, err=True)
    if not freed:
        raise NothingToDoError("nothing to remove")
    click.echo(f"{format_size(freed)} removed; the measurements are in the database")
