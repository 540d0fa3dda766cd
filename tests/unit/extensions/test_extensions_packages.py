"""Commands and export formats of a package outside Treehammer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from store_fixtures import WriteExport

from treehammer.cli import cli
from treehammer.errors import ConfigError
from treehammer.sql.transfer.file_writers import find_format
from treehammer.sql.write.store import Store

InstallPackage = Callable[[str, str, dict[str, str]], Path]

_COMMAND = """
import click


@click.command()
def tides():
    click.echo("High water at noon.")
"""
_EXPORTER = """
from contextlib import contextmanager, nullcontext

from treehammer.sql.transfer.file_writers import ExportFormat


class CountSink:
    rows = 0

    def write(self, batch):
        self.rows += batch.num_rows

    def attach(self, companion):
        pass


@contextmanager
def open_sink(file, schema):
    sink = CountSink()
    yield sink
    file.write_text(str(sink.rows))


FORMAT = ExportFormat(lambda *_: nullcontext(open_sink))
"""


def test_command_of_another_package_runs(install_package: InstallPackage) -> None:
    install_package("tide_command", _COMMAND, {"treehammer.commands": "tides = tide_command:tides"})
    result = CliRunner().invoke(cli, ["tides"])
    assert (result.exit_code, result.output) == (0, "High water at noon.\n")


def test_broken_package_is_named(install_package: InstallPackage) -> None:
    install_package("broken_command", "", {"treehammer.commands": "ebb = broken_command:ebb"})
    with pytest.raises(ConfigError, match="cannot be imported"):
        CliRunner().invoke(cli, ["ebb"], catch_exceptions=False)


@pytest.mark.usefixtures("in_process_reader")
def test_format_of_another_package_is_written(
    install_package: InstallPackage, export_rows: Store, write: WriteExport
) -> None:
    folder = install_package(
        "count_exporter", _EXPORTER, {"treehammer.exporters": "count = count_exporter:FORMAT"}
    )
    assert write(folder / "x.count") == 8
    assert (folder / "x.count").read_text() == "8"
    assert find_format(".tide") is None
