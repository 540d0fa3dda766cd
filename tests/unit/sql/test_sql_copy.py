"""Copies from SQLite to SQLite."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from store_helpers import check_corruption_is_refused, install_corrupting_trigger

from treehammer.errors import ConfigError, ExitCode
from treehammer.sql.transfer.database_copy import copy_database
from treehammer.text_formatting import no_progress


@pytest.mark.parametrize("spelled", ["{0}/./source.db", "{0}/link.db", "{0}/../{1}/source.db"])
def test_copy_onto_alias_of_source_is_refused(source: str, spelled: str) -> None:
    folder = Path(source.removeprefix("sqlite:///")).parent
    if not (link := folder / "link.db").exists():
        link.symlink_to(folder / "source.db")
    with pytest.raises(ConfigError, match="the same database"):
        copy_database(source, "sqlite:///" + spelled.format(folder, folder.name), bars=no_progress)


@pytest.mark.parametrize("memory", ["sqlite://", "sqlite:///:memory:"])
def test_copy_into_memory_is_refused(source: str, memory: str) -> None:
    with pytest.raises(ConfigError, match="in memory is gone"):
        copy_database(source, memory, bars=no_progress)


def test_broken_reference_is_reported_once(source: str, url: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    shutil.copyfile(source.removeprefix("sqlite:///"), broken)
    with closing(sqlite3.connect(broken)) as connection, connection:
        connection.execute("DELETE FROM subject")
    said = subprocess.run(
        [sys.executable, "-m", "treehammer", "db", "copy", f"sqlite:///{broken}", url],
        capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert said.returncode == ExitCode.INFRASTRUCTURE
    assert "FOREIGN KEY" in said.stderr
    assert "Traceback" not in said.stderr
    assert "Error closing" not in said.stderr


def test_corrupted_copy_is_refused(source: str, url: str) -> None:
    install_corrupting_trigger(
        url,
        [
            "CREATE TRIGGER spoil AFTER INSERT ON job WHEN new.id = 'b' "
            "BEGIN UPDATE job SET label = 'x' WHERE id = 'b'; END"
        ],
    )
    check_corruption_is_refused(source, url)
