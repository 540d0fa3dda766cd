"""The statements that an Oracle server is sent, as files that a test holds against what is sent now.

Renew them after a change that is meant::

    PYTHONPATH=tests/helpers .venv/bin/python -m oracle_golden
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import oracledb
import pytest
from copy_contract import fill
from h2_oracle import VERSIONS, Server, start
from old_databases import HISTORY, frozen, go_to, insert
from sql_makers import campaign_row, full_measurement, job_row, make_measurement
from store_contract import pair, verdict

import treehammer
from treehammer.sql import rollups
from treehammer.sql.copying import copy_database
from treehammer.sql.database import reading, writing
from treehammer.sql.figures import Figure
from treehammer.sql.keyring import Keyring
from treehammer.sql.retention import PRUNABLE
from treehammer.sql.rows import AttemptRow, ReplicaRow
from treehammer.sql.selection import Selection, Where
from treehammer.sql.store import Store, check_database
from treehammer.terminal import silent

FOLDER = Path(__file__).parents[1] / "unit/sql/golden"
_WIDTH = 100
_EVERYTHING = Selection()


class Recorder:
    """Every statement once, under what it was sent for first."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, int]] = {}
        self._seen: set[str] = set()
        self._part: dict[str, int] = {}

    def begin(self, name: str) -> None:
        """What is sent from here on is for this."""
        self._part = self.parts.setdefault(name, {})

    def watch(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """See :class:`h2_oracle.Server`."""
        if statement in self._seen:
            return
        self._seen.add(statement)
        self._part[statement] = len(rows)

    def text(self) -> str:
        """All of it, to be read and compared."""
        lines = [
            "-- What Treehammer sends to an Oracle server; the same for 19c and 23ai.",
            "-- Renewed by: PYTHONPATH=tests/helpers .venv/bin/python -m oracle_golden",
        ]
        for name, statements in self.parts.items():
            lines += ["", f"-- {name}"]
            for statement, rows in _sorted(list(statements.items())):
                lines += ["", *_wrapped(statement), "; -- many rows" if rows > 1 else ";"]
        return "\n".join(lines) + "\n"


def _sorted(statements: list[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """The indexes of a table by name: SQLAlchemy makes them in any order."""
    for indexes, some in groupby(statements, lambda one: one[0].startswith("CREATE INDEX")):
        run = list(some)
        yield from sorted(run) if indexes else run


def _wrapped(statement: str) -> Iterator[str]:
    for line in statement.splitlines():
        yield from textwrap.wrap(
            line.replace("\t", "  ").rstrip(),
            _WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
            subsequent_indent="    ",
        )


def read(text: str) -> list[tuple[str, int]]:
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
def _recorded(server: Server) -> Iterator[Recorder]:
    recorder = Recorder()
    server.watchers.append(recorder.watch)
    try:
        yield recorder
    finally:
        server.watchers.remove(recorder.watch)


def tables(server: Server) -> str:
    """Laying the tables of this version, and going through history with rows in them."""
    with _recorded(server) as recorder:
        recorder.begin("laying the tables")
        Store.open(server.url("golden_laid")).close()
        check_database(server.url("golden_laid"))
        url = server.url("golden_history")
        for revision in HISTORY:
            recorder.begin(f"revision {revision}")
            go_to(url, revision)
            server.watchers.remove(recorder.watch)
            insert(url, frozen(revision))
            server.watchers.append(recorder.watch)
    for name in ("golden_laid", "golden_history"):
        server.forget(name)
    return recorder.text()


def rows(server: Server) -> str:
    """Everything that is asked of a database and written to it."""
    url = server.url("golden_rows")
    Store.open(server.url("golden_copy")).close()
    with Store.open(url) as store, _recorded(server) as recorder:
        _write(store, recorder)
        _read(store, recorder)
        _judge(store, recorder)
        _keep_keys(store, recorder)
        recorder.begin("figures, by roll-ups and by measurements")
        for raw in (False, True):
            store.figure(Figure(("eff_job",), ("day", "site"), latencies=True, raw=raw))
            some = Selection(
                wheres=(Where("failure_class", "=", ("open", None)), Where("site", "~", "A*"))
            )
            store.figure(Figure((), ("kind", "failure_class"), some, 20260101, kind=None, raw=raw))
        store.figure(Figure(("extra_hits", "bytes_read"), ("host", "plausible", "month")))
        recorder.begin("results and exports")
        treehammer.results("last", "eff_job>0", ["site", "eff_job", "extra_hits"], database=url)
        treehammer.results(database=url)
        recorder.begin("db check, db rebuild and pruning")
        check_database(url)
        store.remake_rollups()
        with writing(store._engine) as connection:
            rollups.remake(connection, [(20260301, 1)])
        with reading(store._engine) as connection:
            assert rollups.difference(connection) == ""
        for what in PRUNABLE:
            store.prunable(what, date(2030, 1, 1))
            store.prune(what, date(2030, 1, 1))
        recorder.begin("db copy")
        with TemporaryDirectory() as folder:
            fill(f"sqlite:///{folder}/source.db")
            copy_database(f"sqlite:///{folder}/source.db", server.url("golden_copy"), bars=silent)
    for name in ("golden_rows", "golden_copy"):
        server.forget(name)
    return recorder.text()


def _write(store: Store, recorder: Recorder) -> None:
    recorder.begin("measurements come in")
    some = [full_measurement(0), make_measurement(extras={"hits": 1.0, "misses": 2.0})]
    store.add(some)
    store.add([*some, make_measurement(position=2)])
    recorder.begin("campaigns, jobs and attempts")
    store.add_campaign(campaign_row(), [job_row("a"), job_row("b")])
    store.set_jobs([job_row("a", state="done"), job_row("c")])
    store.set_attempts([AttemptRow("a", 1, "running", 5, 0, None, "", "")])
    store.set_attempts([AttemptRow("a", 1, "lost", 5, 9, 137, "lost", "gone")])
    store.campaigns()
    store.jobs("campaign")
    store.attempts(["a", "b"])


def _read(store: Store, recorder: Recorder) -> None:
    recorder.begin("measurements are asked for")
    list(store.measurements(_EVERYTHING))
    list(store.measurements(_EVERYTHING, ["site", "eff_job"]))
    list(store.extras(_EVERYTHING))
    for where in (
        ["site=local", "host!=x", "root_version~6.*", "door="],
        ["log_excerpt=x", "failure_message!=y", "log_excerpt~*z*"],
        ["eff_job>0.5", "retries<=3", "plausible=true", "failure_transient!=false", "dirty="],
    ):
        list(store.measurements(Selection.of(["campaign", "other"], where), ["job_id"]))
    store.counts("campaign")
    store.recorded("campaign")


def _judge(store: Store, recorder: Recorder) -> None:
    recorder.begin("replicas and what was read from them")
    finding = ReplicaRow(
        "r", 9, "set", "h", "local", "d", "f", "root://h//f", False, "has 1, not 2"
    )
    store.add_replicas([finding])
    store.add([make_measurement(position=3, started_us=1, dataset_hash="h", door="d")])
    assert store.mark_bad_replicas() == 1
    recorder.begin("comparisons")
    store.replace_comparison("c", [pair("c", 0.1)], [verdict("c")])
    store.pairs("c")
    store.verdicts("c")


def _keep_keys(store: Store, recorder: Recorder) -> None:
    recorder.begin("keys of the results service")
    keys = Keyring(store._engine)
    key = keys.create(b"m" * 32, "submit", "somebody", now_us=1, expires_us=2)
    keys.known()
    keys.access()
    keys.revoke_key(key.kid, now_us=3)
    for _ in range(2):
        keys.revoke_tokens("campaign", "c", now_us=3)
    keys.revocations()
    keys.holds("campaign", "c")
    keys.holds("job", "j")


#: File -> what makes its content.
FILES = {"oracle-tables.sql": tables, "oracle-rows.sql": rows}


def main() -> None:
    """Write the files anew."""
    server = start()
    FOLDER.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracledb, "connect", server.connect)
        server.version = VERSIONS["19c"]
        for name, make in FILES.items():
            (FOLDER / name).write_text(make(server), encoding="utf-8")
            print(FOLDER / name)


if __name__ == "__main__":
    main()
