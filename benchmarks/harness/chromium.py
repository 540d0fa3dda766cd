"""The browser of the tests, for benchmarks."""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, cast

from benchmarks.harness.worker_runs import REPOSITORY

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def run_chromium() -> AbstractContextManager[Browser]:
    """Run the tests' headless browser."""
    for folder in ("common", "web"):
        sys.path.append(str(REPOSITORY / "tests" / "helpers" / folder))
    found = importlib.import_module("browser").run_chromium()
    return cast("AbstractContextManager[Browser]", found)
