"""Check of a published site: sizes, links, foreign references, and names that must not be in it."""

from __future__ import annotations

import json
import lzma
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from treehammer.errors import ConfigError
from treehammer.publish.public_names import find_names
from treehammer.publish.site_writer import MANIFEST
from treehammer.publish.static_html import MAX_PAGE_BYTES

_REFERENCE = re.compile(
    r"""(?:href|src|srcset|data-library|poster|action)="([^"]*)"|url\(([^)]*)\)"""
)
_IDENTITY = re.compile(r'\bid="([^"]*)"')
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]*\w")
#: Names of a kind that a problem lists.
MAX_NAMED = 5
_TEXTS = (".html", ".json", ".svg", ".atom", ".xz")


@dataclass(frozen=True)
class SiteProblem:
    """A problem of a published file."""

    file: str
    problem: str


@dataclass(frozen=True)
class PublishedSite:
    """A folder that ``treehammer publish`` wrote."""

    folder: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """List of what is published.

        Raises:
            ConfigError: the folder holds no published site.
        """
        try:
            document: dict[str, Any] = json.loads((self.folder / MANIFEST).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no published site: {MANIFEST} cannot be read",
                where=str(self.folder),
                hint="Write one: treehammer publish FOLDER",
            ) from error
        return document

    @property
    def files(self) -> list[str]:
        """Names of the published files."""
        return [MANIFEST, *self.manifest["files"]]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum((self.folder / file).stat().st_size for file in self.files)

    def read_text(self, file: str) -> str:
        """Read the text of a file, which may be compressed."""
        content = (self.folder / file).read_bytes()
        return (lzma.decompress(content) if file.endswith(".xz") else content).decode()

    def measure_pages(self) -> list[dict[str, object]]:
        """Count the pages of each kind, with the bytes of the largest."""
        sizes: dict[str, list[int]] = {}
        for page in self.manifest["pages"]:
            sizes.setdefault(page["kind"], []).append((self.folder / page["file"]).stat().st_size)
        return [
            {"kind": kind, "pages": len(of_kind), "largest": max(of_kind)}
            for kind, of_kind in sizes.items()
        ]

    def find_problems(
        self, hosts: Iterable[str] = (), people: Iterable[str] = ()
    ) -> list[SiteProblem]:
        """Find all problems: files, sizes, links, foreign references, and names as in :meth:`find_names`."""
        problems = [
            SiteProblem(file, problem) for file in self.files for problem in self._check_file(file)
        ]
        return [*problems, *self.find_names(hosts, people)]

    def find_names(self, hosts: Iterable[str], people: Iterable[str]) -> Iterator[SiteProblem]:
        """Find names of hosts and people, and addresses of electronic mail."""
        hidden = {"host": {*hosts}, "person": {*people}}
        for file in self.files:
            path = self.folder / file
            if path.suffix not in _TEXTS or not path.is_file() or file.startswith("static/"):
                continue
            text = self.read_text(file)
            for kind, names in hidden.items():
                if found_names := find_names(text, names):
                    words = ", ".join(found_names[:MAX_NAMED])
                    yield SiteProblem(file, f"contains the name of a {kind}: {words}")
            # The expression alone would try each word.
            if "@" in text and (mail := _MAIL.search(text)):
                yield SiteProblem(file, f"contains an address of electronic mail: {mail[0]}")

    def _check_file(self, file: str) -> Iterator[str]:
        path = self.folder / file
        if not path.is_file():
            yield "is missing"
            return
        if path.suffix == ".html" and (size := path.stat().st_size) > MAX_PAGE_BYTES:
            yield f"has {size / 1000:.0f} kB, more than {MAX_PAGE_BYTES / 1000:.0f} kB"
        if path.suffix not in (".html", ".svg", ".css"):
            return
        text = path.read_text("utf-8")
        identities = {*_IDENTITY.findall(text)}
        for match in _REFERENCE.finditer(text):
            address = (match[1] or match[2] or "").strip("\"'").replace("&amp;", "&")
            if address and not address.startswith("data:"):
                yield from self._check_reference(file, address, identities)

    def _check_reference(self, file: str, address: str, identities: set[str]) -> Iterator[str]:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or address.startswith("/"):
            yield f"refers to {address[:100]}"
            return
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), unquote(parts.path)))
        if parts.path and not (self.folder / target).is_file():
            yield f"links {address[:100]}, which does not exist"
        elif parts.fragment and not parts.path and unquote(parts.fragment) not in identities:
            yield f"links #{parts.fragment}, which does not exist"
