"""Results for Python programs, from SQLite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from measurement_factory import make_measurement

import treehammer
from treehammer.sql.write.store import Store


@pytest.mark.usefixtures("in_process_reader")
def test_database_location_comes_from_settings(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add([make_measurement()])
    assert treehammer.results(columns="site", data_dir=tmp_path).num_rows == 1
    monkeypatch.setenv("TREEHAMMER_DATA_DIR", str(tmp_path))
    assert treehammer.results(columns="site").num_rows == 1


def test_importing_treehammer_does_not_load_arrow() -> None:
    code = "import sys, treehammer; assert not {'pyarrow', 'sqlalchemy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert treehammer.results.__doc__
    with pytest.raises(AttributeError, match="no attribute 'result'"):
        treehammer.result  # noqa: B018
