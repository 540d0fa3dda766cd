"""Paths of the API, and the operations of all pages."""

from __future__ import annotations

from treehammer.collectors.job_spec import API_PREFIX, CAMPAIGNS_PATH, MEASUREMENTS_PATH
from treehammer.web.pages import load_pages

#: Paths of operations that correspond to no page.
MEASUREMENT_PATH = f"{MEASUREMENTS_PATH}/{{measurement_id}}"
CAMPAIGN_OPERATIONS_PATH = f"{CAMPAIGNS_PATH}/{{campaign_id}}/operations"
TOKEN_PATH, HEALTH_PATH, LIVE_PATH, DESCRIPTION_PATH = (
    f"{API_PREFIX}/token",
    f"{API_PREFIX}/health",
    f"{API_PREFIX}/live",
    f"{API_PREFIX}/openapi.json",
)

#: Operations that return the content of pages.
OPERATIONS = tuple(operation for page in load_pages() for operation in page.operations)
