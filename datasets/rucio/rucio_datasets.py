"""Datasets in Rucio: the catalogue, upload, and replication in repeatable steps.

Dataset ``NAME`` is the DID ``SCOPE:NAME``, its file ``FILE`` is ``SCOPE:NAME.FILE``, unless the
settings have other templates for experiments whose names follow a pattern.  The manifest is an
ordinary file of the dataset (``SCOPE:NAME.manifest.json``), so planning requires none of the data.

Files are written once, to one storage, and registered; then a rule for each requested storage makes
Rucio copy them.  Existing files and rules are kept, so an interrupted command can be repeated.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from treehammer.collectors.storage_access import list_aliases, normalize_url
from treehammer.config import Settings
from treehammer.datasets import doors
from treehammer.datasets.manifest import MANIFEST_NAME, Manifest, Replica
from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.datasets.rucio.rucio_conversions import (
    DidFile,
    RseExpressionError,
    RucioNotFoundError,
)
from treehammer.errors import CatalogueError, DatasetError


class RucioCatalogue:
    """Catalogue of the datasets of one scope in Rucio.

    Args:
        settings: All settings.
        rucio: Client; by default for the server and account of the settings.
    """

    def __init__(self, settings: Settings, rucio: RucioClient | None = None) -> None:
        self.rucio = rucio or RucioClient(settings)
        self._manifests_folder = settings.rucio_dir / "manifests"
        self._rse = cache(self.rucio.fetch_rse)
        self._list_files = cache(self.rucio.list_files)

    def manifest(self, name: str) -> Manifest:
        """Read a dataset's manifest through a door, and cache it.

        Raises:
            DatasetError: The dataset does not exist or was not placed by Treehammer.
            CatalogueError: No replica of its manifest can be read.
        """
        did = self.rucio.names.dataset(name)
        try:
            files = self._list_files(did)
        except RucioNotFoundError as error:
            raise DatasetError(
                f"there is no dataset {self.rucio.scope}:{did}",
                where="Rucio",
                hint=f"Place it: treehammer datasets place {name} --sites SITES",
            ) from error
        manifest_did = self.rucio.names.file(name, MANIFEST_NAME)
        if manifest_did not in files:
            raise DatasetError(
                f"{self.rucio.scope}:{did} has no {manifest_did}",
                where="Rucio",
                hint="Treehammer has not placed it, or has not ended: treehammer datasets place.",
            )
        return self._read_manifest(files[manifest_did])

    def replicas(
        self, name: str, protocol: str, sites: Sequence[str] = (), *, domain: str = "wan"
    ) -> tuple[Replica, ...]:
        """List available replicas on disk by site and file, best first.

        Args:
            name: Name of the dataset.
            protocol: ``root``, ``https``, ``http`` or ``file``.
            sites: Names of sites; empty for all.
            domain: ``lan`` for jobs at the site itself, ``wan`` for other readers.

        Raises:
            DatasetError: The dataset does not exist.
            CatalogueError: Rucio does not respond.
        """
        names = self.rucio.names
        files_by_did = {names.file(name, f.name): f.name for f in self.manifest(name).files}
        expression = "|".join(f"site={site}" for site in sites)
        try:
            locations = self.rucio.list_locations(
                files_by_did, list_aliases(protocol), expression, domain
            )
        except RseExpressionError:
            return ()
        return tuple(
            Replica(
                site=self._rse(location.rse).site,
                rse=location.rse,
                file=files_by_did[location.file],
                url=normalize_url(location.url),
                path=_path_below_prefix(location.url, self._rse(location.rse).prefixes),
            )
            for location in sorted(locations, key=lambda location: self._rse(location.rse).site)
        )

    def _read_manifest(self, file: DidFile) -> Manifest:
        key = f"{self.rucio.server} {self.rucio.scope} {file.name} {file.size} {file.adler32}"
        folder = self._manifests_folder / hashlib.sha256(key.encode()).hexdigest()[:16]
        if not (folder / MANIFEST_NAME).is_file():
            self._fetch_manifest(file, folder)
        return Manifest.read(folder)

    def _fetch_manifest(self, file: DidFile, folder: Path) -> None:
        """Read a small file from the first valid replica."""
        folder.mkdir(parents=True, exist_ok=True)
        if not file.adler32:
            file = self.rucio.find_files([file.name]).get(file.name, file)  # which may have an md5
        problems = []
        for location in self.rucio.list_locations([file.name]):
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                part = Path(temporary) / MANIFEST_NAME
                observation = doors.read_file(normalize_url(location.url), file.size, copy_to=part)
                if not observation.failure and file.verify_content(
                    part, observation.size, observation.adler32
                ):
                    part.rename(folder / MANIFEST_NAME)
                    return
            problems.append(f"{location.url}: {observation.message or 'is another file'}")
        lines = [f"no replica of {file.name} can be read:", *(problems or ["there is none"])]
        raise CatalogueError(
            "\n  ".join(lines),
            where="Rucio",
            hint="Place the dataset again from a machine that has it: treehammer datasets place.",
        )


def _path_below_prefix(url: str, prefixes: Sequence[str]) -> str:
    """Remove the longest matching prefix from a URL; return '' without a match."""
    return url.removeprefix(max(filter(url.startswith, prefixes), key=len, default=url)).lstrip("/")
