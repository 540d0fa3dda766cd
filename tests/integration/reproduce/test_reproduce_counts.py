"""Published counts measured again with a real ROOT, and their page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from repository_code import call_command

from treehammer.config import load_settings
from treehammer.errors import ExitCode

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_size_of_an_rntuple_agrees_with_print(tmp_path: Path) -> None:
    settings = load_settings({"data_dir": tmp_path})
    done = call_command("reproduce", settings, "rntuple-size", "--json")
    assert done.return_value == ExitCode.DONE, done.output
    (row,) = json.loads(done.stdout)
    sizes = {
        name: sum(path.stat().st_size for path in (settings.datasets_dir / name).glob("*.root"))
        for name in ("reference-small", "reference-small-rntuple")
    }
    ratio = sizes["reference-small-rntuple"] / sizes["reference-small"]
    assert (row["measured"], row["low"], row["high"]) == (ratio, ratio, ratio)
    assert row["verdict"] == "agrees"
