"""Every write of results passes the check of owners; a new way to write fails these tests."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from measurement_factory import make_campaign_row, make_job_row, make_measurement

from treehammer.sql.core.schema import campaign, campaign_owner, job, measurement, receipt
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.audit_trail import Sender
from treehammer.sql.write.store import CampaignUpload, Store
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.core.measurement_writer import MeasurementSink

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "analysis",
    "collectors",
    "datasets",
    "hctests",
    "sql",
    "src",
    "submit",
    "testbed",
    "web",
)
SENDER = Sender("0123456789ab", "alice", "127.0.0.1", 1)

#: Methods of the store that write campaigns, jobs or measurements.
GATED: dict[str, Callable[[Store], object]] = {
    "add": lambda store: store.add([make_measurement()]),
    "add_campaign": lambda store: store.add_campaign(
        make_campaign_row("b"), [make_job_row("j", campaign_id="b")]
    ),
    "extend_campaign": lambda store: store.extend_campaign(
        "given", [make_job_row("m", campaign_id="given")]
    ),
    "set_jobs": lambda store: store.set_jobs([make_job_row("k", campaign_id="given")]),
    "apply_upload": lambda store: store.apply_upload(
        CampaignUpload(make_campaign_row("d"), [make_job_row("l", campaign_id="d")]), SENDER
    ),
}
READING = {"open", "preview_add", "find_owner", "count_scope", "list_changes", "prunable"}
#: Methods that change only what is stored, or belongs to this installation.
CHANGING = {
    "writing_connection", "set_attempts", "add_replicas", "mark_bad_replicas", "apply_change",
    "add_audit_entries", "rebuild_rollups", "prune", "replace_comparison",
    "replace_instruction_count", "add_instruction_counts",
}  # fmt: skip

#: Modules that open write transactions, and why their rows need no owner of a campaign.
TRANSACTIONS = {
    "sql/write/store.py": "the store",
    "sql/write/audit_trail.py": "audit trail",
    "sql/auth/keyring.py": "keys, revocations, and sessions of browsers",
    "sql/transfer/database_copy.py": "copies owners and receipts too",
}
#: Modules that insert rows by the helpers of the store.
INSERTIONS = {
    "sql/write/store.py",
    "sql/write/audit_trail.py",
    "sql/write/recording.py",
    "sql/write/operation_recording.py",
    "sql/write/rollups.py",
    "sql/auth/keyring.py",
    "sql/transfer/database_copy.py",
}
_INSERT = {"insert_rows", "insert_new_rows", "insert_missing_rows", "upsert_rows"}


def iterate_calls() -> Iterator[tuple[str, str]]:
    """Yield module and name of every call in the product's code."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.is_symlink() or any(parent.is_symlink() for parent in path.parents):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    called = node.func
                    name = getattr(called, "attr", getattr(called, "id", ""))
                    yield str(path.relative_to(ROOT)), str(name)


def find_unowned(store: Store) -> list[str]:
    """List campaigns without an owner, and jobs without a receipt of their campaign."""
    owned, received = (
        sa.select(campaign_owner.c.campaign_id),
        (receipt.c.subject, receipt.c.campaign_id),
    )
    with store._engine.connect() as connection:
        receipts = {tuple(row) for row in connection.execute(sa.select(*received))}
        campaigns: set[str] = set()
        jobs: set[tuple[str, str]] = set()
        for ids, query in (
            (campaigns, sa.select(campaign.c.id)),
            (campaigns, sa.select(measurement.c.campaign_id)),
            (campaigns, sa.select(job.c.campaign_id)),
        ):
            ids.update(connection.scalars(query))
        for query in (
            sa.select(job.c.id, job.c.campaign_id),
            sa.select(measurement.c.job_id, measurement.c.campaign_id),
        ):
            jobs |= {tuple(row) for row in connection.execute(query)}
        unowned = campaigns - set(connection.scalars(owned))
    return [*sorted(unowned), *(" of ".join(pair) for pair in sorted(jobs - receipts))]


def test_every_method_of_the_store_is_listed() -> None:
    public = {name for name in vars(Store) if not name.startswith("_")}
    assert public == GATED.keys() | READING | CHANGING, (
        "enter the method above, and pass the gate if it writes"
    )


@pytest.mark.parametrize("name", GATED)
def test_writing_leaves_owner_and_receipts(tmp_path: Path, name: str) -> None:
    with Store.open(f"sqlite:///{tmp_path}/r.db") as store:
        store.add_campaign(make_campaign_row("given"), [])
        GATED[name](store)
        assert find_unowned(store) == []


def test_measurements_without_a_delivery_are_a_bug(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/r.db") as store:
        with pytest.raises(ValueError, match="nobody sent the measurements of job job"):
            store.add([make_measurement()], [])
        assert list(store.measurements(Selection())) == []


def test_transactions_are_opened_by_listed_modules_only() -> None:
    opened = {module for module, name in iterate_calls() if name == "write_transaction"}
    assert opened == TRANSACTIONS.keys()
    others = {module for module, name in iterate_calls() if name == "writing_connection"}
    assert {module for module in others if not module.startswith("sql/watch/")} == set(), (
        "only tables of watches are written beside the store"
    )


def test_rows_are_inserted_by_listed_modules_only() -> None:
    inserting = {
        module
        for module, name in iterate_calls()
        if name in _INSERT and not module.startswith(("sql/watch/", "sql/engine/"))
    }
    assert inserting <= INSERTIONS


def test_service_writes_for_a_sender_only() -> None:
    """The service has no way to write as this installation, which acts for all groups."""
    for kind in (MeasurementSink, LiveDatabase):
        parameter = inspect.signature(kind.add).parameters["deliveries"]
        assert parameter.default is inspect.Parameter.empty
        assert "None" not in str(parameter.annotation)
    writes = (GATED.keys() | CHANGING) - {"add", "apply_upload"}
    used = {(module, name) for module, name in iterate_calls() if module.startswith("web/")}
    calls = {(module, name) for module, name in used if name in writes}
    database = "web/core/live_database.py"
    assert calls == {(database, "mark_bad_replicas"), (database, "add_audit_entries")}
    uploads = {module for module, name in used if name == "apply_upload"}
    assert uploads == {database}
