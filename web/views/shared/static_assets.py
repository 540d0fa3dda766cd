"""Static files of the pages, versioned by content so that browsers cache them forever."""

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

#: Smaller files are sent uncompressed.
_MIN_PACKED_BYTES = 1000
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_MEDIA_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".md": "text/plain"}


@dataclass(frozen=True)
class StaticAsset:
    """Content and media type of a static file."""

    body: bytes
    media_type: str

    @cached_property
    def version(self) -> str:
        """A hash of the content."""
        return hashlib.sha256(self.body).hexdigest()[:12]

    @cached_property
    def packed(self) -> bytes:
        """The content compressed with gzip."""
        return gzip.compress(self.body, mtime=0)


class StaticAssets:
    """All static files of a folder, read once at startup.

    Args:
        folder: searched recursively.
    """

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): StaticAsset(path.read_bytes(), _media_type(path))
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def versioned_path(self, name: str) -> str:
        """Return the path of a file relative to the static route, with its version.

        Raises:
            KeyError: the file does not exist.
        """
        return f"{name}?v={self._files[name].version}"

    async def serve(self, request: Request) -> Response:
        """Answer a request for a file; 304 if the browser has this version."""
        asset = self._files.get(request.path_params["name"])
        if asset is None:
            raise RequestRefusedError(404, "this address does not exist")
        is_current = request.query_params.get("v") == asset.version
        headers = {
            "Cache-Control": _CACHE_FOREVER if is_current else "no-cache",
            "ETag": f'"{asset.version}"',
            "Vary": "Accept-Encoding",
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
    media_type = _MEDIA_TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    return media_type or "text/plain"
