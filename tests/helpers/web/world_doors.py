"""Doors to the numbers of a world: pages, API, commands, digest, Prometheus and report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import shared_world
from click.testing import CliRunner
from page_contents import parse_numbers
from prometheus_client.parser import text_string_to_metric_families
from service_thread import ServiceThread

from treehammer.cli import cli

#: A number as a program reads it, a text that people read, with the unit of its heading, or None.
Value = float | str | tuple[str, str] | None


class Doors:
    """All ways to read the results of a world; each is read once.

    Args:
        service: serves it.
        folder: of the database.
    """

    def __init__(self, service: ServiceThread, folder: Path) -> None:
        self._service, self._folder = service, folder
        # Methods are called with few different arguments, and live as long as the world.
        self.page = cache(service.read)
        self.html = cache(service.load_page)
        self.api = cache(service.load_document)
        self.tables = cache(service.load_tables)
        self.run = cache(self._run)

    def _run(self, *words: str) -> str:
        """Return what a command prints to standard output."""
        database = f"sqlite:///{self._folder / 'results.db'}"
        options = ["--database", database, "--data-dir", str(self._folder)]
        return str(CliRunner().invoke(cli, [*options, *words], catch_exceptions=False).stdout)

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """Return the rows of a command."""
        rows: list[dict[str, Any]] = json.loads(self.run(*words, "--json"))
        return rows

    @cached_property
    def metrics(self) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
        """Samples of Prometheus by name and labels."""
        text = self._service.client.get("/metrics").text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def sample(self, family: str, **labels: str) -> float:
        """Return the sum of the samples with some labels."""
        samples = [
            value
            for (name, pairs), value in self.metrics.items()
            if name == f"treehammer_{family}" and labels.items() <= dict(pairs).items()
        ]
        assert samples, (family, labels)
        return sum(samples)

    def campaign(self, name: str) -> dict[str, Any]:
        """Return the row of a campaign in the list."""
        return find_row(self.api("/campaigns")["tables"]["campaigns"], campaign=name)

    @cached_property
    def comparison(self) -> str:
        """Identity of the stored comparison."""
        (row,) = self.api("/comparisons")["tables"]["comparisons"]
        return str(row["comparison_id"])

    def digest(self, *, since_us: int = 0) -> str:
        """Return the digest of the week of a time, by default that of the newest campaign."""
        since_us = since_us or int(self.campaign(shared_world.RUNNING)["submitted_us"])
        return self.run("digest", "--week", f"{datetime.fromtimestamp(since_us / 1e6, UTC):%G-W%V}")


def find_row(rows: list[dict[str, Any]], **values: Any) -> dict[str, Any]:
    """Find the only row with some values."""
    (row,) = (row for row in rows if values.items() <= row.items())
    return row


def match(pattern: str, text: str) -> str:
    """Return the first group of a pattern in a text."""
    result = re.search(pattern, text)
    assert result, (pattern, text[:3000])
    return result[1]


#: A name, and the value at each door.
Shared = tuple[str, dict[str, Value]]
Numbers = Iterator[Shared]


def share(name: str, **values: Value) -> Shared:
    """Return a number that several doors share."""
    return name, values


def write_minute(time_us: float) -> str:
    """Write a time as pages do."""
    return f"{datetime.fromtimestamp(time_us / 1e6, UTC):%Y-%m-%d %H:%M}"


@dataclass(frozen=True)
class Reading:
    """A value with half of its last digit; '' as text for a number."""

    text: str
    value: float = 0.0
    tolerance: float = 0.0

    @classmethod
    def of(cls, value: Value) -> Reading:
        """Read a value of a door."""
        if isinstance(value, int | float):
            return cls("", float(value), 1e-9 * abs(value))
        text, unit = value if isinstance(value, tuple) else (value or "", "")
        if re.fullmatch(r"[+−]?[\d.,]+( ?(%|ms|s|MB))?( ± .*)?", text):
            number, tolerance = parse_numbers(text.lstrip("+"), unit)[0]
            return cls("", number, tolerance)
        return cls(text)

    def agrees_with(self, other: Reading) -> bool:
        """Return whether both are the same number, rounded, or the same text."""
        margin = self.tolerance + other.tolerance + 1e-12
        return self.text == other.text and abs(self.value - other.value) <= margin
