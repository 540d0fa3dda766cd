"""S3 client: HTTP requests to signed addresses."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Mapping, Tuple

from .....collectors.kit.treehammer_kit.payload_task import PayloadError
from .....collectors.record.operation_steps import MKDIR, RMDIR
from .....collectors.s3_signing import S3CredentialError, load_keys, sign_address
from ..operation import Flight
from .http_client import METHODS, HttpClient


class S3Client(HttpClient):
    """Client of ``s3://`` and ``s3s://``; an open and a stat are HEAD requests.

    Object stores answer one range only: a vector read is one request for each piece, all at once.
    A folder is an empty object whose name ends with a slash.

    Raises:
        ImportError: aiohttp is not installed.
        OSError: certificates cannot be read.
        PayloadError: the keys cannot be used.
    """

    methods: Mapping[str, str] = {**METHODS, MKDIR: "PUT", RMDIR: "DELETE"}

    def __init__(self, clients: int, timeout_s: float, url: str) -> None:
        try:
            self._keys = load_keys(url, os.environ)
        except S3CredentialError as error:
            raise PayloadError("credential", "invalid", "setup", str(error)) from None
        super().__init__(clients, timeout_s, url)

    def make_address(self, method: str, url: str) -> Any:
        """Sign the address of a request."""
        make_url = self._aiohttp.client.URL  # a plain string would be quoted anew
        return make_url(sign_address(method, url, self._keys), encoded=True)

    async def perform(self, flight: Flight) -> Tuple[str, str]:
        """Perform an operation; return server and failure class."""
        operation = flight.operation
        if len(operation.chunks) < 2:
            return await self.request(flight, operation)
        pieces = [operation._replace(chunks=(chunk,)) for chunk in operation.chunks]
        outcomes = await asyncio.gather(*(self.request(flight, piece) for piece in pieces))
        return next((outcome for outcome in outcomes if outcome[1]), outcomes[0])
