"""MkDocs hooks: reference pages generated from the code itself, and the plots of the benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from treehammer import hctests
from treehammer.collectors.metrics import CATALOGUE, OWNERS, owned_by

#: Raw data and plots of the run that the page on benchmarks tells of.
RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"

OWNER_TITLES = {
    "plan": "Known when the job is planned",
    "worker": "Measured outside the payload's process",
    "payload": "Measured inside the payload's process",
}


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [list(head), *(list(row) for row in rows)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(cells[0]), *lines[1:]])


def metrics_page() -> str:
    """The page of the metric catalogue."""
    parts = [
        "# What is recorded",
        f"Every measurement has these {len(CATALOGUE)} columns: in the database, in the exported "
        "TTree, in CSV and Parquet. The table is generated from `collectors/metrics.py`. "
        "*Better* says which direction is an improvement, where one is.",
    ]
    for owner in OWNERS:
        rows = [
            (f"`{m.name}`", m.type, m.unit, m.better, m.meaning, m.source) for m in owned_by(owner)
        ]
        parts += [
            f"## {OWNER_TITLES[owner]}",
            _table(("name", "type", "unit", "better", "meaning", "source"), rows),
        ]
    return "\n\n".join(parts) + "\n"


def _type(entry: dict[str, Any]) -> str:
    if "anyOf" in entry:
        return " or ".join(dict.fromkeys(_type(option) for option in entry["anyOf"]))
    if "enum" in entry:
        return " or ".join(f"`{value}`" for value in entry["enum"])
    if "$ref" in entry:
        return "table"
    if entry.get("type") == "array":
        return "list of " + _type(entry.get("items", {}))
    return str(entry.get("type", "any value"))


def _model(entry: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The table that an entry is, lists, or holds by name; empty when its keys are free."""
    for inner in (entry, entry.get("items"), entry.get("additionalProperties")):
        if isinstance(inner, dict) and "$ref" in inner:
            model: dict[str, Any] = definitions[inner["$ref"].rsplit("/", 1)[-1]]
            return model
    return {}


def test_toml_page() -> str:
    """The page of every key of test.toml, from its JSON Schema."""
    path = Path(hctests.__file__).parent / "test.schema.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    parts = [
        "# test.toml",
        "Generated from `hctests/test.schema.json`, the JSON Schema that editors can use.",
    ]
    for section, entry in schema["properties"].items():
        model = _model(entry, schema.get("$defs", {}))
        parts.append(f"## [{section}]")
        if about := entry.get("description") or model.get("description"):
            parts.append(str(about))
        rows = [
            (
                f"`{key}`",
                _type(value),
                f"`{json.dumps(value['default'])}`" if "default" in value else "",
                str(value.get("description", "")),
            )
            for key, value in model.get("properties", {}).items()
        ]
        if rows:
            parts.append(_table(("key", "type", "default", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the plots where they lie."""
    for name, text in (
        ("reference/metrics.md", metrics_page()),
        ("reference/test-toml.md", test_toml_page()),
    ):
        files.append(File.generated(config, name, content=text))
    for plot in sorted(RESULTS.glob("*.svg")):
        name = f"images/benchmarks/{plot.name}"
        files.append(File.generated(config, name, abs_src_path=str(plot)))
    return files
