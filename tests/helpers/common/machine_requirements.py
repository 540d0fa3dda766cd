"""Requirements of tests on the machine."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test with its reason; on CI, where everything is installed, fail it."""
    if os.environ.get("CI"):
        pytest.fail(f"on CI nothing may be missing: {reason}")
    pytest.skip(reason)
