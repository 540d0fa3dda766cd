"""Retention on SQLite."""

import click
import pytest
from click.testing import CliRunner

from treehammer.config import load_settings
from treehammer.sql.cli.database_commands import db_group


@pytest.mark.parametrize("days", ["0", "36501", "1000000", str(2**70)])
def test_invalid_age_is_refused(url: str, days: str) -> None:
    settings = load_settings({"database": url}, environ={})
    done = CliRunner().invoke(db_group, ["prune", "--passes-after", days], obj=settings)
    assert done.exit_code == click.UsageError.exit_code
    assert "not in the range" in done.output
