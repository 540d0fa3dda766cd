"""Exported trees equal the database in every supported reader."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uproot

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.transfer.file_writers import AMBIGUOUS_ROWS_KEY
from treehammer.version import __version__

pytestmark = pytest.mark.root

HERE = Path(__file__).parent
UNKNOWN_INT = -(2**63)
UNKNOWN = {"text": "", "int": UNKNOWN_INT, "float": math.nan, "bool": 255, "ints": [], "floats": []}
BRANCH_TYPES = {
    "text": "string",
    "int": "Long64_t",
    "float": "Double_t",
    "bool": "UChar_t",
    "ints": "ROOT::VecOps::RVec<Long64_t>",
    "floats": "ROOT::VecOps::RVec<double>",
}


def kind(name: str) -> str:
    if name == AMBIGUOUS_ROWS_KEY:
        return "text"
    return METRICS_BY_NAME[name].type if name in METRICS_BY_NAME else "float"


def in_tree(name: str, value: Any) -> Any:
    """Convert a database value to its representation in the tree."""
    value = UNKNOWN[kind(name)] if value is None else value
    return int(value) if kind(name) == "bool" else value


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and math.isnan(wanted):
        return isinstance(found, float) and math.isnan(found)
    return bool(found == wanted)


def differences(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> list[Any]:
    assert len(found) == len(wanted)
    assert all(list(row) == list(wanted[0]) for row in found)
    return [
        (place, name, row[name], value)
        for place, (row, of_database) in enumerate(zip(found, wanted, strict=True))
        for name, value in of_database.items()
        if not same(row[name], in_tree(name, value))
    ]


@pytest.mark.parametrize("reader", ["6.38.00", "6.40.00"])
def test_draw_and_rdataframe(
    exports: Mapping[str, Any], release: Callable[[str], SoftwareRequest], reader: str
) -> None:
    python = Path(release(reader).location) / "bin" / "python"
    run = [python, HERE / "read_tree.py", *(each.file for each in exports.values())]
    printed = subprocess.run(run, check=True, capture_output=True, timeout=300).stdout
    for exported, line in zip(exports.values(), printed.splitlines(), strict=True):
        check_reading(exported, json.loads(line))


def check_reading(exported: Any, read: Mapping[str, Any]) -> None:
    """Compare the output of ``read_tree.py`` with the rows of the database."""
    names = list(exported.rows[0])
    assert sorted(read["frame"]) == sorted(names)
    found = [
        {name: read["frame"][name][place] for name in names} for place in range(len(exported.rows))
    ]
    assert differences(found, exported.rows) == []
    assert read["types"] == {name: BRANCH_TYPES[kind(name)] for name in names}

    for name, values in read["drawn"].items():
        wanted = [in_tree(name, row[name]) for row in exported.rows]
        if kind(name) in ("ints", "floats"):
            wanted = [item for some in wanted for item in some]
        assert len(values) == len(wanted), name
        assert all(same(v, float(w)) for v, w in zip(values, wanted, strict=True)), name
    assert read["drawn_where"] == [1.0, 2.0]
    assert read["filtered"] == 2

    assert read["about"]["selection"] == "all measurements"
    assert read["about"]["treehammer_version"] == __version__
    assert read["about"]["unknown_int"] == str(UNKNOWN_INT)
    assert "unknown" in read["title"]
    assert read["meaning"]["eff_job"] == f"{METRICS_BY_NAME['eff_job'].meaning} [1]"


def test_uproot(exported: Any) -> None:
    with uproot.open(exported.file) as file:
        columns = file["results"].arrays(library="np")
    found = [
        {name: column[place] for name, column in columns.items()}
        for place in range(len(exported.rows))
    ]
    plain = [
        {n: v.tolist() if hasattr(v, "tolist") else v for n, v in row.items()} for row in found
    ]
    assert differences(plain, exported.rows) == []


def test_jsroot(exported: Any, jsroot: Path) -> None:
    run = ["node", HERE / "read_tree.mjs", jsroot, exported.file]
    lines = subprocess.run(run, check=True, capture_output=True, timeout=120).stdout.splitlines()
    found = [
        {name: from_javascript(name, value) for name, value in json.loads(line).items()}
        for line in lines
    ]
    wanted = [
        {name: from_database(name, value) for name, value in row.items()} for row in exported.rows
    ]
    assert differences(found, wanted) == []


def from_javascript(name: str, value: Any) -> Any:
    if kind(name) in ("int", "ints"):
        whole = [
            int(str(v).removeprefix("int ")) for v in (value if kind(name) == "ints" else [value])
        ]
        # JSROOT reads integers far below zero 2^32 too high, so only "far below" is checked.
        clipped = [UNKNOWN_INT if v < -(2**62) else v for v in whole]
        return clipped if kind(name) == "ints" else clipped[0]
    return math.nan if value == "NaN" else float(value) if kind(name) == "float" else value


def from_database(name: str, value: Any) -> Any:
    if kind(name) == "ints" and value:
        return [UNKNOWN_INT if v < -(2**62) else v for v in value]
    return value
