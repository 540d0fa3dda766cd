"""Files that pages ask for: styles, scripts, libraries of others; each kept by browsers for good."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from treehammer.web.core.responses import RequestRefusedError

#: Below this a browser waits no longer for what is not packed.
_MIN_PACKED_BYTES = 1000
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_MEDIA_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".md": "text/plain"}


@dataclass(frozen=True)
class StaticAsset:
    """A file as it is sent."""

    body: bytes
    media_type: str

    @cached_property
    def version(self) -> str:
        """Changes with the content."""
        return hashlib.sha256(self.body).hexdigest()[:12]

    @cached_property
    def packed(self) -> bytes:
        """The body under gzip."""
        return gzip.compress(self.body, mtime=0)


class StaticAssets:
    """The files of a folder, read once.

    Args:
        folder: with folders in it.
    """

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): StaticAsset(path.read_bytes(), _media_type(path))
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def versioned_path(self, name: str) -> str:
        """The path that a page names, beneath that of the files; it changes with the content.

        Raises:
            KeyError: there is no such file.
        """
        return f"{name}?v={self._files[name].version}"

    async def serve(self, request: Request) -> Response:
        """The file that is asked for."""
        asset = self._files.get(request.path_params["name"])
        if asset is None:
            raise RequestRefusedError(404, "there is nothing at this address")
        right = request.query_params.get("v") == asset.version
        headers = {
            "Cache-Control": _CACHE_FOREVER if right else "no-cache",
            "ETag": f'"{asset.version}"',
            "Vary": "Accept-Encoding",
            "X-Content-Type-Options": "nosniff",
        }
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        if len(asset.body) > _MIN_PACKED_BYTES and "gzip" in request.headers.get(
            "accept-encoding", ""
        ):
            headers["Content-Encoding"] = "gzip"
            return Response(asset.packed, headers=headers, media_type=asset.media_type)
        return Response(asset.body, headers=headers, media_type=asset.media_type)


def _media_type(path: Path) -> str:
    known = _MEDIA_TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    return known or "text/plain"
