"""Where replicas of datasets are: what every catalogue tells, whoever keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from treehammer.datasets.manifest import Manifest

AVAILABLE = "available"


@dataclass(frozen=True)
class Replica:
    """One file of a dataset at one door, as a catalogue has it; the door may know better.

    Attributes:
        site: where jobs that are near it run.
        rse: Rucio's name of the storage, '' where the catalogue has no such names.
        file: as the manifest calls it.
        url: what ROOT opens.
        size: in bytes, by the manifest.
        adler32: 8 hex digits, by the manifest.
        state: :data:`AVAILABLE`; catalogues tell of no others.
        path: what follows the storage's own prefix in ``url``, '' where that is not known.
    """

    site: str
    rse: str
    file: str
    url: str
    size: int
    adler32: str
    state: str = AVAILABLE
    path: str = ""

    def behind(self, prefix: str) -> str:
        """What ROOT opens to read it through a door that leads to the storage's own prefix."""
        return f"{prefix.rstrip('/')}/{self.path}"


class Catalogue(Protocol):
    """Knows datasets, and where their files are."""

    def has(self, name: str) -> bool:
        """Whether there is a dataset of that name."""
        ...

    def manifest(self, name: str) -> Manifest:
        """What a dataset is.

        Raises:
            DatasetError: there is no such dataset.
        """
        ...

    def replicas(self, name: str, protocol: str, sites: Sequence[str] = ()) -> tuple[Replica, ...]:
        """Replicas that can be read by a protocol, by site and file, the best first.

        Args:
            name: of the dataset.
            protocol: ``root``, ``https``, ``http`` or ``file``.
            sites: names; none for all.

        Raises:
            DatasetError: there is no such dataset.
        """
        ...
