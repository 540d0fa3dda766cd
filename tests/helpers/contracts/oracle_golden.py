"""The statements that an Oracle server is sent, as files that a test holds against what is sent now.

Renew them after a change that is meant::

    PYTHONPATH=tests/helpers .venv/bin/python -m oracle_golden
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import oracledb
import pytest
from copy_contract import fill_database
from h2_oracle import VERSIONS, H2Server, start_server
from measurement_factory import full_measurement, make_campaign_row, make_job_row, make_measurement
from store_contract import build_pair, build_verdict

import treehammer
from treehammer.progress import no_progress
from treehammer.sql.auth.keyring import Keyring
from treehammer.sql.core.database_engine import read_transaction, write_transaction
from treehammer.sql.core.rows import AttemptRow, ReplicaRow
from treehammer.sql.read.figure_query import FigureQuery
from treehammer.sql.read.measurement_selection import Condition, Selection
from treehammer.sql.transfer.database_copy import copy_database
from treehammer.sql.write import rollups
from treehammer.sql.write.database_check import check_database
from treehammer.sql.write.retention import PRUNABLE
from treehammer.sql.write.store import Store

GOLDEN_FOLDER = Path(__file__).parents[2] / "unit/sql/golden"
_WIDTH = 100
_EVERYTHING = Selection()


class StatementRecorder:
    """Keeps the shortest statement of each kind: a verb and its table, by section."""

    def __init__(self) -> None:
        self.sections: dict[str, dict[tuple[str, str], tuple[str, int]]] = {}
        self._section: dict[tuple[str, str], tuple[str, int]] = {}

    def begin_section(self, name: str) -> None:
        """Attribute the statements that follow to a section."""
        self._section = self.sections.setdefault(name, {})

    def record_statement(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Consider a statement; see :class:`h2_oracle.H2Server`."""
        verb, table = statement.split(maxsplit=1)[0], _TABLE_PATTERN.search(statement)
        kind = verb, table[1] if table else ""
        if verb == "CREATE" and kind[1] not in _SHOWN_TABLES:
            return
        known = self._section.get(kind)
        if known is None or (len(statement), statement) < (len(known[0]), known[0]):
            self._section[kind] = statement, len(rows)

    def render_text(self) -> str:
        """Format all kept statements for reading and comparing."""
        lines = [
            "-- Statements that Treehammer sends to Oracle 19c and 23ai: of each kind the shortest.",
            "-- Renew with: scripts/renew-oracle-golden.sh",
        ]
        for name, statements in self.sections.items():
            lines += ["", f"-- {name}"]
            for _, (statement, rows) in sorted(statements.items()):
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


def read_golden_file(text: str) -> list[tuple[str, int]]:
    """The statements of a golden file, each with whether one row is sent or more (2)."""
    found = []
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(";"):
            found.append((" ".join(lines), 2 if "many" in line else 1))
            lines = []
        elif line and not line.startswith("--"):
            lines.append(line)
    return found


@contextmanager
def _record_statements(server: H2Server) -> Iterator[StatementRecorder]:
    recorder = StatementRecorder()
    server.watchers.append(recorder.record_statement)
    try:
        yield recorder
    finally:
        server.watchers.remove(recorder.record_statement)


def record_all_statements(server: H2Server) -> str:
    """Use every part of the store once and record its statements."""
    url = server.url("golden_rows")
    Store.open(server.url("golden_copy")).close()
    with _record_statements(server) as recorder:
        recorder.begin_section("creating the schema")
        Store.open(url).close()
    with Store.open(url) as store, _continue_recording(server, recorder):
        _run_writes(store, recorder)
        _run_reads(store, recorder)
        _run_comparison(store, recorder)
        _run_key_management(store, recorder)
        recorder.begin_section("figures, by roll-ups and by measurements")
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
        recorder.begin_section("results and exports")
        treehammer.results("last", "eff_job>0", ["site", "eff_job", "extra_hits"], database=url)
        treehammer.results(database=url)
        recorder.begin_section("db check, db rebuild and pruning")
        check_database(url)
        store.rebuild_rollups()
        with write_transaction(store._engine) as connection:
            rollups.rebuild_rollups(connection, [(20260301, 1)])
        with read_transaction(store._engine) as connection:
            assert rollups.find_difference(connection) == ""
        for what in PRUNABLE:
            store.prunable(what, date(2030, 1, 1))
            store.prune(what, date(2030, 1, 1))
        recorder.begin_section("db copy")
        with TemporaryDirectory() as folder:
            fill_database(f"sqlite:///{folder}/source.db")
            copy_database(
                f"sqlite:///{folder}/source.db", server.url("golden_copy"), bars=no_progress
            )
    for name in ("golden_rows", "golden_copy"):
        server.drop_database(name)
    return recorder.render_text()


def _run_writes(store: Store, recorder: StatementRecorder) -> None:
    recorder.begin_section("measurements come in")
    some = [full_measurement(0), make_measurement(extras={"hits": 1.0, "misses": 2.0})]
    store.add(some)
    store.add([*some, make_measurement(position=2)])
    recorder.begin_section("campaigns, jobs and attempts")
    store.add_campaign(make_campaign_row(), [make_job_row("a"), make_job_row("b")])
    store.set_jobs([make_job_row("a", state="done"), make_job_row("c")])
    store.set_attempts([AttemptRow("a", 1, "running", 5, 0, None, "", "")])
    store.set_attempts([AttemptRow("a", 1, "lost", 5, 9, 137, "lost", "gone")])
    store.campaigns()
    store.jobs("campaign")
    store.attempts(["a", "b"])


def _run_reads(store: Store, recorder: StatementRecorder) -> None:
    recorder.begin_section("measurements are asked for")
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


def _run_comparison(store: Store, recorder: StatementRecorder) -> None:
    recorder.begin_section("replicas and what was read from them")
    finding = ReplicaRow(
        "r", 9, "set", "h", "local", "d", "f", "root://h//f", False, "has 1, not 2"
    )
    store.add_replicas([finding])
    store.add([make_measurement(position=3, started_us=1, dataset_hash="h", door="d")])
    assert store.mark_bad_replicas() == 1
    recorder.begin_section("comparisons")
    store.replace_comparison("c", [build_pair("c", 0.1)], [build_verdict("c")])
    store.pairs("c")
    store.verdicts("c")


def _run_key_management(store: Store, recorder: StatementRecorder) -> None:
    recorder.begin_section("keys of the results service")
    keys = Keyring(store._engine)
    key = keys.create_key(b"m" * 32, "submit", "somebody", now_us=1, expires_us=2)
    keys.list_keys()
    keys.load_access()
    keys.revoke_key(key.key_id, now_us=3)
    for _ in range(2):
        keys.revoke_tokens("campaign", "c", now_us=3)
    keys.list_revocations()
    keys.has_subject("campaign", "c")
    keys.has_subject("job", "j")


#: File -> what makes its content.
GOLDEN_FILES = {
    "oracle-tables.sql": record_schema_statements,
    "oracle-rows.sql": record_data_statements,
}


def main() -> None:
    """Write the files anew."""
    server = start_server()
    GOLDEN_FOLDER.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracledb, "connect", server.connect)
        server.version = VERSIONS["19c"]
        for name, make in GOLDEN_FILES.items():
            (GOLDEN_FOLDER / name).write_text(make(server), encoding="utf-8")
            print(GOLDEN_FOLDER / name)


if __name__ == "__main__":
    main()
