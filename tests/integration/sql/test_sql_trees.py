"""Exported trees: readers, failures, and recipes of the analysis page."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import uproot
from captured_runs import run_captured
from measurement_factory import full_measurement, make_campaign_row, make_measurement
from store_helpers import limit_file_sizes, write_export

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import StoreError
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import file_writers
from treehammer.sql.transfer.export import export_file
from treehammer.sql.transfer.file_writers import AMBIGUOUS_ROWS_KEY
from treehammer.sql.write.store import Store
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


def same(value: Any, expected: Any) -> bool:
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(value, float) and math.isnan(value)
    return bool(value == expected)


def differences(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> list[Any]:
    assert len(rows) == len(expected)
    assert all(list(row) == list(expected[0]) for row in rows)
    return [
        (place, name, row[name], value)
        for place, (row, of_database) in enumerate(zip(rows, expected, strict=True))
        for name, value in of_database.items()
        if not same(row[name], in_tree(name, value))
    ]


@pytest.mark.parametrize("exported", ["6.40.00"], indirect=True)
def test_draw_and_rdataframe(exported: Any, root: Path) -> None:
    """Read the tree of the newest release; uproot and JSROOT read those of all."""
    run = [root / "bin" / "python", HERE / "read_tree.py", exported.file]
    printed = subprocess.run(run, check=True, capture_output=True, timeout=300).stdout
    read = json.loads(printed)
    names = list(exported.rows[0])
    columns = read["frame"]
    assert {kind(name) for name in columns} == BRANCH_TYPES.keys()
    rows = [{name: columns[name][place] for name in columns} for place in range(len(exported.rows))]
    assert differences(rows, [{name: row[name] for name in columns} for row in exported.rows]) == []
    assert read["types"] == {name: BRANCH_TYPES[kind(name)] for name in names}

    for name, values in read["drawn"].items():
        expected = [in_tree(name, row[name]) for row in exported.rows]
        if kind(name) in ("ints", "floats"):
            expected = [item for items in expected for item in items]
        assert len(values) == len(expected), name
        assert all(same(v, float(w)) for v, w in zip(values, expected, strict=True)), name
    assert read["drawn_where"] == [1.0, 2.0]
    assert read["opens"] == [pytest.approx([0.001, 2.0, 3], rel=0.01)]
    assert read["filtered"] == 2

    assert read["about"]["selection"] == "all measurements"
    assert read["about"]["treehammer_version"] == __version__
    assert read["about"]["unknown_int"] == str(UNKNOWN_INT)
    assert "unknown" in read["title"]
    assert read["meaning"]["eff_job"] == f"{METRICS_BY_NAME['eff_job'].meaning} [1]"


def test_uproot(exported: Any) -> None:
    with uproot.open(exported.file) as file:
        columns = file["results"].arrays(library="np")
    rows = [
        {name: column[place] for name, column in columns.items()}
        for place in range(len(exported.rows))
    ]
    plain = [{n: v.tolist() if hasattr(v, "tolist") else v for n, v in row.items()} for row in rows]
    assert differences(plain, exported.rows) == []


def test_jsroot(exported: Any) -> None:
    """Read the tree with the JSROOT of the pages, in the Node.js that Playwright brings."""
    node = str(resources.files("playwright") / "driver" / "node")
    library = resources.files("treehammer.web") / "static" / "vendor" / "jsroot.min.mjs"
    run = [node, HERE / "read_tree.mjs", str(library), exported.file]
    lines = subprocess.run(run, check=True, capture_output=True, timeout=120).stdout.splitlines()
    rows = [
        {name: from_javascript(name, value) for name, value in json.loads(line).items()}
        for line in lines
    ]
    expected = [
        {name: from_database(name, value) for name, value in row.items()} for row in exported.rows
    ]
    assert differences(rows, expected) == []


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


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/here.db") as opened:
        yield opened


@pytest.mark.parametrize("exported", ["6.40.00"], indirect=True)
def test_companions_are_trees(exported: Any) -> None:
    with uproot.open(exported.file) as trees:
        assert list(trees["campaign"]["id"].array()) == ["campaign"]
        assert list(trees["job"]["id"].array()) == ["a", "b"]
        assert trees["attempt"].arrays(["number", "ended_us"], library="np")["number"] == [2]
        assert list(trees["attempt"]["exit_code"].array()) == [UNKNOWN_INT]
        assert trees["replica"].num_entries == 0


def test_full_disk_leaves_previous_file(own_store: Store, root: Path, tmp_path: Path) -> None:
    own_store.add(full_measurement(n) for n in range(300))
    target = tmp_path / "results.root"
    target.write_text("the last one")
    for limit in (50_000, 200_000):
        with (
            limit_file_sizes(limit),
            pytest.raises(StoreError, match=r"results\.root: cannot be written \(ROOT said:"),
        ):
            write_export(own_store, target, software=root.parent)
        assert target.read_text() == "the last one"
        assert sorted(p.name for p in tmp_path.glob("*results.root*")) == ["results.root"]
        assert not list(tmp_path.glob(".*"))


def test_broken_root_is_reported(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "root-6.40.00"
    packages = folder / "lib" / f"python3.{sys.version_info[1]}" / "site-packages" / "ROOT"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / ".treehammer.json").write_text('{"root": "6.40.00", "wheel": "0.1a12"}')
    record = packages.parent / "root-0.1a12.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("ROOT/__init__.py,,\n")
    (packages / "__init__.py").write_text("raise ImportError('libCore.so: cannot open')\n")
    with pytest.raises(StoreError, match=r"libCore\.so: cannot open"):
        write_export(store, tmp_path / "results.root", software=tmp_path)


PAGE = Path(__file__).resolve().parents[3] / "docs" / "read-results.md"


def test_recipes_of_the_documentation_work(root: Path, tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/demo-results/results.db") as store:
        for campaign in ("first", "second"):
            store.add_campaign(make_campaign_row(campaign), [])
            store.add(
                make_measurement(
                    job=f"{campaign} {n}",
                    campaign_id=campaign,
                    run_mode="solo",
                    eff_job=0.5,
                    cpu_per_event_s=n,
                )
                for n in (1, 2)
            )
        export_file(store, Selection(), tmp_path / "results.root", software_dir=root.parent)
    from_arrow, from_trees = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    environment = file_writers.root_environment(root.parent)
    for recipe, printed in ((from_arrow, "1.5"), (from_trees, "4")):
        done = run_captured(
            [sys.executable, "-c", recipe], cwd=tmp_path, env=environment, timeout=300)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == printed
