"""Logs for people and for programs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from treehammer.program_output import JSON_FORMAT, log_to_stderr

NAME = "treehammer.test_log"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger(NAME)
    yield found
    found.handlers.clear()
    found.propagate = True


def test_json_line_has_message_and_fields(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(names=[NAME], line_format=JSON_FORMAT)
    logger.info("%s starts\ncampaign %s", "daily", "c1", extra={"entry": "daily", "campaign": "c1"})
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "info",
        "logger": NAME,
        "message": "daily starts\ncampaign c1",
        "entry": "daily",
        "campaign": "c1",
    }


def test_json_line_has_the_traceback(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(names=[NAME], line_format=JSON_FORMAT)
    try:
        raise ValueError("no such day")
    except ValueError:
        logger.exception("a request failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["exception"].endswith("ValueError: no such day")


def test_text_line_begins_with_time_and_level(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(names=[NAME])
    logger.warning("late", extra={"entry": "daily"})
    line = capsys.readouterr().err
    assert line[10] == "T"
    assert line[19:].rstrip() == "Z WARNING late"
