"""Charts in the HTML of a page."""

from __future__ import annotations

import json
import re
from typing import Any


def load_charts(page: str) -> list[dict[str, Any]]:
    """Load the specifications that a page passes to Vega."""
    found = re.findall(
        r'<div class="plot">.*?<script type="application/json">(.*?)</script>', page, re.DOTALL
    )
    return [json.loads(one) for one in found]


def list_marks(chart: dict[str, Any]) -> list[dict[str, Any]]:
    """List the rows that a chart draws."""
    marks: list[dict[str, Any]] = chart["datasets"]["marks"]
    return marks


def list_names(chart: dict[str, Any], kind: str) -> list[str]:
    """List the names of ``panels``, ``places`` or ``series``."""
    (found,) = [one["value"] for one in chart["params"] if one["name"] == kind]
    return list(found)
