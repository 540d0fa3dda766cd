"""Queries of pages on SQLite, and their use of indexes."""

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.sql.read import campaign_counts, campaign_queries, overview_queries
from treehammer.sql.write.store import Store


@pytest.mark.parametrize(
    "ask, index",
    [
        (lambda store: overview_queries.list_latest_comparisons(store, 5), "ix_verdict_latest"),
        (
            lambda store: overview_queries.list_latest_comparisons(store, 5, since_us=1),
            "ix_verdict_latest",
        ),
        (
            lambda store: overview_queries.fetch_campaign_states(store, ["c"]),
            "COVERING INDEX ix_measurement_counts",
        ),
        (overview_queries.list_first_measurements, "ix_rollup_day_subject (subject_id=?)"),
        (
            lambda store: overview_queries.list_active_campaigns(store, ["queued", "running"]),
            "ix_job_state",
        ),
        (
            lambda store: overview_queries.count_jobs_by_state(store, ["queued", "running"]),
            "ix_job_state",
        ),
        (lambda store: overview_queries.list_campaigns_since(store, 5), "ix_campaign_created"),
        # Two indexes begin with day and subject; either is fine.
        (lambda store: overview_queries.list_bad_measurements(store, "A", 20260301), "day=?"),
        (lambda store: campaign_queries.count_transient(store, "c"), "campaign_id=?"),
        (lambda store: campaign_counts.count_campaign(store, "c", 0), "campaign_id=?"),
        (lambda store: campaign_queries.list_datasets(store, "c"), "campaign_id=?"),
    ],
)
def test_page_queries_use_index(store: Store, ask: object, index: str) -> None:
    plans: list[str] = []

    @sa.event.listens_for(store._engine, "before_cursor_execute")
    def explain(
        connection: Connection, cursor: object, text: str, parameters: object, *_: object
    ) -> None:
        if text.startswith("SELECT"):
            driver = connection.connection.driver_connection
            assert driver is not None
            found = driver.execute(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall()
            plans.extend(row[-1] for row in found)

    assert callable(ask)
    ask(store)
    assert any(index in plan for plan in plans), plans
    assert not any("TEMP B-TREE FOR ORDER" in plan for plan in plans), plans
