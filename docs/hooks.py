"""MkDocs hooks: check reference pages against the code, and add plots of the benchmarks.

Run as a program (``make reference``), write the JSON Schemas and reference pages that are generated from the code.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from treehammer import hctests, submit
from treehammer.cli import cli
from treehammer.collectors.cli import SCHEMA_FILE, render_record_schema
from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRIC_OWNERS, metrics_owned_by
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.collectors.worker.__main__ import build_parser
from treehammer.hctests.definition.toml_models import build_test_schema
from treehammer.submit.sites.site_model import build_json_schema
from treehammer.verticals import import_parts

#: Raw data and plots for the page on benchmarks.
RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
PLOTS = "images/benchmarks/"

TEST_SCHEMA = Path(hctests.__file__).parent / "test.schema.json"
SITES_SCHEMA = Path(submit.__file__).parent / "sites" / "sites.schema.json"

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
    """Render the page of the metric catalogue."""
    parts = [
        "# What is recorded",
        f"Every measurement has these {len(CATALOGUE)} columns, in the database, the exported TTree, "
        "CSV and Parquet. Generated from `collectors/record/metric_catalogue.py`. *Better* names "
        "the direction of an improvement, if there is one. Values outside of the *possible* range make a "
        "measurement implausible. An *exact* counter is equal in equal reads of "
        "a TTree, with or without a TTreeCache, so that one job decides; elsewhere it is noisy.",
    ]
    for owner in METRIC_OWNERS:
        rows = [
            (
                f"`{m.name}`",
                m.type,
                m.unit,
                m.better,
                _format_range(m.plausible_range),
                m.meaning,
                m.source,
                "; ".join(m.exact_in),
            )
            for m in metrics_owned_by(owner)
        ]
        parts += [
            f"## {OWNER_TITLES[owner]}",
            _table(
                (
                    "name",
                    "type",
                    "unit",
                    "better",
                    "possible",
                    "meaning",
                    "source",
                    "exact at doors",
                ),
                rows,
            ),
        ]
    columns = [(f"`{m.name}`", m.type, m.unit, m.better, m.meaning) for m in OPERATION_METRICS]
    parts += [
        "## Operations of load tests",
        "A load test's measurement also has rows of operations, one for each side, operation, server and "
        "time step. The tree `op` and the CSV file add `measurement_id`, `line` (the row's place, from "
        "0) and quantiles of the latencies in seconds: `p50_s`, `p95_s`, `p99_s`, `max_s`.",
        _table(("name", "type", "unit", "better", "meaning"), columns),
    ]
    return "\n\n".join(parts) + "\n"


def _format_range(limits: tuple[float, float] | None) -> str:
    return f"{limits[0]:g} to {limits[1]:g}" if limits else ""


def _type(entry: dict[str, Any]) -> str:
    if "anyOf" in entry:
        options = [option for option in entry["anyOf"] if option != {"type": "null"}]
        return " or ".join(dict.fromkeys(_type(option) for option in options))
    if "enum" in entry:
        return " or ".join(f"`{value}`" for value in entry["enum"])
    if "$ref" in entry:
        return "table"
    if entry.get("type") == "array":
        return "list of " + _type(entry.get("items", {}))
    return str(entry.get("type", "any value"))


def _model(entry: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the table that a schema entry is, lists or maps to; empty for free keys."""
    patterns = entry.get("patternProperties", {}).values()
    for inner in (entry, entry.get("items"), entry.get("additionalProperties"), *patterns):
        if isinstance(inner, dict) and "$ref" in inner:
            model: dict[str, Any] = definitions[inner["$ref"].rsplit("/", 1)[-1]]
            return model
    return {}


def _require_table(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a table that may be missing as if it were required."""
    tables = [option for option in entry.get("anyOf", ()) if "$ref" in option]
    return {**entry, **tables[0]} if tables else entry


def _tables(
    name: str, entry: dict[str, Any], definitions: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield header, entry and model of a table and its nested tables."""
    model = _model(entry, definitions)
    if entry.get("type") == "array":
        header = f"[[{name}]]"
    elif model and "$ref" not in entry:
        name += ".NAME"
        header = f"[{name}]"
    else:
        header = f"[{name}]"
    yield header, entry, model
    for key, inner in model.get("properties", {}).items():
        if _model(inner, definitions):
            yield from _tables(f"{name}.{key}", inner, definitions)


def schema_page(title: str, path: Path) -> str:
    """Render the page of all keys of a TOML file from its JSON Schema."""
    schema = json.loads(path.read_text(encoding="utf-8"))
    definitions = schema.get("$defs", {})
    parts = [
        f"# {title}",
        f"Generated from `{path.parent.name}/{path.name}`, a JSON Schema for editors.",
        str(schema.get("description", "")),
    ]
    for section, top in schema["properties"].items():
        for header, entry, model in _tables(section, _require_table(top), definitions):
            parts.append(f"## {header}")
            if about := entry.get("description") or model.get("description"):
                parts.append(str(about))
            rows = [
                (
                    f"`{key}`",
                    _type(value),
                    f"`{json.dumps(value['default'])}`" if value.get("default") is not None else "",
                    str(value.get("description", "")),
                )
                for key, value in model.get("properties", {}).items()
                if not _model(value, definitions)
            ]
            if rows:
                parts.append(_table(("key", "type", "default", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def worker_page() -> str:
    """Render the page of the worker's command line."""
    parser = build_parser()
    (verbs,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    texts = [parser.format_help(), *(verb.format_help() for verb in verbs.choices.values())]
    titles = ["worker.pyz", *(f"worker.pyz {name}" for name in verbs.choices)]
    parts = [
        "# The worker",
        "The worker is one file that needs only Python 3.9. `treehammer worker pack worker.pyz` "
        "writes it, and every job carries it. For its uploads, see [two ways "
        "home](../campaigns.md#two-ways-home), for its benchmark [a page of its own](../bench.md).",
        *(f"## {title}\n\n```text\n{text}```" for title, text in zip(titles, texts, strict=True)),
    ]
    return "\n\n".join(parts) + "\n"


def on_startup(**_: object) -> None:
    """Load all commands, which the command line imports lazily."""
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    cli.commands = {name: verb for name, verb in commands.items() if verb}


def on_page_content(html: str, *, page: Page, **_: object) -> str:
    """Refuse a command reference that lacks a command, and leave defaults that are not set blank."""
    if page.file.src_uri != "reference/commands.md":
        return html
    verbs = cli.list_commands(click.Context(cli))
    if missing := [name for name in verbs if f'id="treehammer-{name}"' not in html]:
        raise PluginError(f"reference/commands.md lacks {', '.join(missing)}")
    return html.replace("<code>Sentinel.UNSET</code>", "")


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Refuse an index that lists other pages than the menu; let decisions be found last."""
    # Links to plots lead to their files in the repository.
    markdown = markdown.replace("../benchmarks/results/", PLOTS)
    if page.file.src_uri.startswith("decisions/"):
        page.meta["search"] = {"boost": 0.1}
    if page.file.src_uri != "index.md":
        return markdown
    menu = {name for name in _pages(config.nav) if "/" not in name} - {page.file.src_uri}
    listed_pages = set(re.findall(r"\]\(([\w-]+\.md)\)", markdown))
    if different := menu ^ listed_pages:
        raise PluginError(
            f"docs/index.md and the menu do not both name {', '.join(sorted(different))}"
        )
    return markdown


def _pages(nav: Any) -> Iterator[str]:
    """Yield the pages of a menu and its submenus."""
    if isinstance(nav, str):
        yield nav
        return
    for entry in nav.values() if isinstance(nav, dict) else nav:
        yield from _pages(entry)


def generated_files() -> Iterator[tuple[Path, str]]:
    """Yield the generated files that are in Git: JSON Schemas, then the reference pages of them."""
    yield SCHEMA_FILE, render_record_schema()
    schemas = {
        "test.toml": (TEST_SCHEMA, build_test_schema()),
        "sites.toml": (SITES_SCHEMA, build_json_schema()),
        **{name: entry for part in import_parts("schemas") for name, entry in part.SCHEMAS.items()},
    }
    for path, schema in schemas.values():
        yield path, json.dumps(schema, indent=1, sort_keys=True) + "\n"
    folder = Path(__file__).parent / "reference"
    yield folder / "metrics.md", metrics_page()
    for name, (path, _) in schemas.items():
        yield folder / f"{name.replace('.', '-')}.md", schema_page(name, path)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Refuse outdated generated files; add the worker's page and the plots."""
    for path, text in generated_files():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            raise PluginError(f"{path.name} is out of date: run make reference")
    # Help texts differ between Python versions.
    files.append(File.generated(config, "reference/worker.md", content=worker_page()))
    for plot in sorted(RESULTS.glob("*.svg")):
        files.append(File.generated(config, PLOTS + plot.name, abs_src_path=str(plot)))
    return files


if __name__ == "__main__":
    for file, content in generated_files():
        file.write_text(content, encoding="utf-8")
