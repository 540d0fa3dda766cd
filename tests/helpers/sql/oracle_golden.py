"""Examples of the statements that an Oracle server is sent, compared with a golden file.

Renew the file after an intended change::

    RENEW_GOLDEN=1 .venv/bin/pytest tests/integration/sql/oracle/test_sql_oracle.py
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from h2_oracle import H2Server
from measurement_factory import (
    HOUR_US,
    STARTED_DAY,
    STORY_US,
    build_change_point,
    build_instruction_rows,
    build_pair,
    build_verdict,
    build_watched_day,
    build_watched_series,
    full_measurement,
    make_campaign_row,
    make_downtime,
    make_job_row,
    make_measurement,
    make_override,
)
from store_helpers import fill_database

import treehammer
from treehammer.sql.core.rows import AttemptRow, ReplicaRow
from treehammer.sql.core.watch_rows import RuleSetRow, StatusChangeRow
from treehammer.sql.engine.database_engine import write_transaction
from treehammer.sql.read.query_model import Condition, FigureQuery, Selection
from treehammer.sql.transfer.database_copy import copy_database
from treehammer.sql.watch import alarms, state_history
from treehammer.sql.watch.state_history import list_run_outcomes
from treehammer.sql.write import rollups
from treehammer.sql.write.audit_trail import Delivery, Sender
from treehammer.sql.write.keyring import Keyring, SessionHolder, SessionTable
from treehammer.sql.write.maintenance import PRUNABLE, ChangeScope, DatabaseChange, check_database
from treehammer.sql.write.store import CampaignUpload, Store
from treehammer.text_formatting import no_progress

GOLDEN_FILE = Path(__file__).parents[2] / "unit/sql/golden/oracle-statements.sql"
_WIDTH = 100
# Longer statements are cut: lists of all columns prove nothing more.
_MAX_CHARACTERS = 800
_EVERYTHING = Selection()
# Tables whose definition is shown: together they have every type and kind of key.
_SHOWN_TABLES = {"campaign", "attempt", "extra", "subject"}
_TABLE_PATTERN = re.compile(r"\b(?:FROM|INTO|UPDATE|TABLE|ON) (\w+)")


class StatementRecorder:
    """Recorder of the shortest statement of each kind, defined by verb and table."""

    def __init__(self) -> None:
        self.statements: dict[tuple[str, str], tuple[str, int]] = {}

    def record_statement(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Consider a statement; see :class:`h2_oracle.H2Server`."""
        verb = " ".join(statement.split()[:2])
        verb = verb if verb.startswith("CREATE") else verb.partition(" ")[0]
        match = _TABLE_PATTERN.search(statement)
        if match is None or match[1].startswith(("all_", "ALL_")):
            return
        if verb.startswith("CREATE") and match[1] not in _SHOWN_TABLES:
            return
        known = self.statements.get((verb, match[1]))
        if known is None or (len(statement), statement) < (len(known[0]), known[0]):
            self.statements[verb, match[1]] = statement, len(rows)

    def render_text(self) -> str:
        """Format the statements for reading and comparing."""
        lines = [
            "-- The shortest statement of each kind that Treehammer sends to Oracle 19c and 23ai.",
            "-- Renew with: RENEW_GOLDEN=1 .venv/bin/pytest "
            "tests/integration/sql/oracle/test_sql_oracle.py",
        ]
        for _, (sent, rows) in sorted(self.statements.items()):
            cut = len(sent) > _MAX_CHARACTERS
            statement = sent[:_MAX_CHARACTERS] + " ..." if cut else sent
            lines += ["", *_wrap_statement(statement), "; -- many rows" if rows > 1 else ";"]
        return "\n".join(lines) + "\n"


def _wrap_statement(statement: str) -> Iterator[str]:
    for line in statement.splitlines():
        yield from textwrap.wrap(
            line.replace("\t", "  ").rstrip(),
            _WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
            subsequent_indent="    ",
        )


def record_statements(server: H2Server) -> str:
    """Use every part of the store once and format examples of its statements."""
    url = server.url("golden_rows")
    Store.open(server.url("golden_copy")).close()
    recorder = StatementRecorder()
    server.watchers.append(recorder.record_statement)
    with Store.open(url) as store:
        _run_writes(store)
        _run_reads(store)
        _run_comparison(store)
        _run_watch(store)
        _run_key_management(store)
        _run_changes(store)
        _run_status(store)
        for raw in (False, True):
            store.fetch_figure(
                FigureQuery(("eff_job",), ("day", "site"), latencies=True, from_measurements=raw)
            )
            some = Selection(
                conditions=(
                    Condition("failure_class", "=", ("open", None)),
                    Condition("site", "~", "A*"),
                )
            )
            store.fetch_figure(
                FigureQuery(
                    (), ("kind", "failure_class"), some, 20260101, kind=None, from_measurements=raw
                )
            )
        store.fetch_figure(
            FigureQuery(("extra_hits", "bytes_read"), ("host", "plausible", "month"))
        )
        treehammer.results("last", "eff_job>0", ["site", "eff_job", "extra_hits"], database=url)
        treehammer.results(database=url)
        check_database(url)
        store.rebuild_rollups()
        with write_transaction(store._engine) as connection:
            rollups.rebuild_rollups(connection, [(20260301, 1)])
        for what in PRUNABLE:
            store.prunable(what, date(2030, 1, 1))
            store.prune(what, date(2030, 1, 1))
        with TemporaryDirectory() as folder:
            fill_database(f"sqlite:///{folder}/source.db")
            copy_database(
                f"sqlite:///{folder}/source.db", server.url("golden_copy"), bars=no_progress
            )
    server.watchers.remove(recorder.record_statement)
    for name in ("golden_rows", "golden_copy"):
        server.drop_database(name)
    return recorder.render_text()


def _run_writes(store: Store) -> None:
    some = [full_measurement(0), make_measurement(extras={"hits": 1.0, "misses": 2.0})]
    store.add(some)
    store.add([*some, make_measurement(position=2)])
    store.add_campaign(make_campaign_row(), [make_job_row("a"), make_job_row("b")])
    store.set_jobs([make_job_row("a", state="done"), make_job_row("c")])
    store.set_attempts([AttemptRow("a", 1, "running", 5, 0, None, "", "")])
    store.set_attempts([AttemptRow("a", 1, "lost", 5, 9, 137, "lost", "gone")])
    store.campaigns()
    store.jobs("campaign")
    store.attempts(["a", "b"])


def _run_changes(store: Store) -> None:
    """Send measurements and a check under a key; undo both in every way."""
    sender = Sender("0123456789ab", "alice", "127.0.0.1", 1)
    delivery = Delivery(sender, "measurements", "sent", ["j"])
    reads: dict[str, Any] = {"dataset_hash": "h2", "door": "d", "started_us": 1}
    sent = make_measurement("j", campaign_id="sent", **reads)
    store.add([sent], [delivery])
    check = ReplicaRow("r2", 9, "set", "h2", "local", "d", "f", "root://h//f", False, "torn")
    store.apply_upload(CampaignUpload(make_campaign_row("sent"), (), (), [check]), sender)
    store.mark_bad_replicas()
    store.find_owner("sent")
    scope = ChangeScope("sent", sender.key_id, 0, 2**60)
    store.count_scope(scope)
    for action in ("quarantine", "restore", "delete checks", "delete"):
        store.apply_change(DatabaseChange(action, scope, "me@here", 1, "because", "all"))
    store.apply_change(DatabaseChange("delete", ChangeScope("sent"), "me@here", 1, "", "all"))
    store.list_changes()


def _run_reads(store: Store) -> None:
    list(store.measurements(_EVERYTHING))
    list(store.measurements(_EVERYTHING, ["site", "eff_job"]))
    list(store.extras(_EVERYTHING))
    for where in (
        ["site=local", "host!=x", "root_version~6.*", "door="],
        ["log_excerpt=x", "failure_message!=y", "log_excerpt~*z*"],
        ["eff_job>0.5", "retries<=3", "plausible=true", "failure_transient!=false", "dirty="],
    ):
        list(store.measurements(Selection.parse(["campaign", "other"], where), ["job_id"]))
    store.count_measurements("campaign")
    store.count_by_attempt("campaign")


def _run_comparison(store: Store) -> None:
    finding = ReplicaRow(
        "r", 9, "set", "h", "local", "d", "f", "root://h//f", False, "has 1, not 2"
    )
    store.add_replicas([finding])
    store.add([make_measurement(position=3, started_us=1, dataset_hash="h", door="d")])
    assert store.mark_bad_replicas() == 1
    store.replace_comparison("c", [build_pair("c", 0.1)], [build_verdict("c")])
    store.pairs("c")
    store.verdicts("c")
    store.replace_instruction_count(build_instruction_rows())
    store.instruction_counts(["t"])


def _run_status(store: Store) -> None:
    """Evaluate states, import downtimes and set overrides."""
    list_run_outcomes(store, STORY_US, STORY_US + 9 * HOUR_US)
    change = StatusChangeRow("", "site", "A", "", "ok", "unknown", 5, 9, "daily", "v", "fine")
    first, second = (RuleSetRow("v", "{}", 0, now_us) for now_us in (9, 10))
    state_history.record_evaluation(
        store, before=None, rule_set=first, superseded=(), changes=[change]
    )
    [made] = state_history.list_current_states(store)
    state_history.record_evaluation(
        store, before=first, rule_set=second, superseded=[made.id], changes=[]
    )
    state_history.list_state_changes(store, site="A", superseded=True)
    state_history.list_current_states(store, at_us=9, site="A")
    state_history.find_change(store, made.id)
    state_history.replace_downtimes(store, "goc", [make_downtime(1, 2)], 1)
    state_history.replace_downtimes(store, "goc", [], 1)
    state_history.list_downtimes(store)
    state_history.add_override(store, make_override(1, 2))
    state_history.end_overrides(store, "A", now_us=STORY_US + HOUR_US, who="bob")


def _run_watch(store: Store) -> None:
    series, day = build_watched_series(), build_watched_day("s", STARTED_DAY, 0.1)
    alarms.replace_watched_days(store, [series], [day], STARTED_DAY, STARTED_DAY)
    alarms.fetch_watched_series(store, kind="ratio")
    alarms.fetch_watched_days(store, STARTED_DAY, STARTED_DAY, kind="ratio")
    alarms.find_last_watched_day(store)
    alarms.replace_change_points(store, [build_change_point()], 0)
    alarms.fetch_change_points(store)
    alarms.find_change_point(store, "c")


def _run_key_management(store: Store) -> None:
    keys = Keyring(store._engine)
    key = keys.create_key(b"m" * 32, "submit", "somebody", now_us=1, expires_us=2)
    keys.list_keys()
    keys.load_access()
    sessions = SessionTable(store._engine)
    for holder in (
        SessionHolder("read", "somebody", key_id=key.key_id),
        SessionHolder("read", "else", identity="i"),
    ):
        sessions.open_session(holder, address="h", now_us=1, expires_us=2)
    sessions.end_sessions([one.token_hash for one in sessions.list_sessions(now_us=1)])
    keys.revoke_key(key.key_id, now_us=3)
    for _ in range(2):
        keys.revoke_tokens("campaign", "c", now_us=3)
    keys.list_revocations()
    keys.has_subject("campaign", "c")
    keys.has_subject("job", "j")
