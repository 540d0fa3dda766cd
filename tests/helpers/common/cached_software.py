"""Software from the cache of the user who runs the tests."""

from __future__ import annotations

import os

from treehammer import config
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.software import providers


def prepare_cached(text: str) -> SoftwareRequest:
    """Prepare software by its value of the axis ``root``; it is downloaded once."""
    request = providers.parse_software_request(text)
    return providers.prepare_software(request, config.load_settings().software_dir)


def set_up_cached(text: str, kit: str) -> providers.SoftwareSetup:
    """Set up such software as a job does."""
    return providers.setup_software(prepare_cached(text), os.environ, kit)
