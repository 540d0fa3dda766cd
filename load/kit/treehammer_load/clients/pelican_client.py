"""Client of Pelican federations: HTTP requests to the director, which redirects them to caches."""

from __future__ import annotations

import http.client
import os
from typing import Any

from .....collectors.kit.treehammer_kit.payload_task import PayloadError
from .....collectors.pelican_director import find_object_url
from .http_client import HttpClient


class PelicanClient(HttpClient):
    """Client of ``pelican://`` and ``osdf://`` for public objects: a load presents no token.

    Raises:
        ImportError: aiohttp is not installed.
        PayloadError: the federation names no director.
    """

    def __init__(self, clients: int, timeout_s: float, url: str) -> None:
        super().__init__(clients, timeout_s, url)
        try:
            find_object_url(url, os.environ)  # the load itself waits for no discovery
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            message = f"{url}: the federation names no director: {reason}."
            raise PayloadError("open", "director", "setup", message, transient=True) from error

    def make_address(self, method: str, url: str) -> Any:
        """Return the director's address of an object, or that of the cache that answered."""
        return find_object_url(url, os.environ) if url.startswith("pelican://") else url
