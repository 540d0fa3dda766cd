"""What a site is: where jobs run, and the doors through which they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote


@dataclass(frozen=True)
class Door:
    """A storage endpoint of a site.

    ``protocol`` is ``file``, ``root``, ``https`` or ``http``.  Where there is an ``rse``, Rucio knows
    where the files of a dataset lie, and ``prefix`` is '' or stands in place of the RSE's own; else
    they lie at ``prefix/DATASET/FILE``.  ``middleware`` and its ``version`` are information, '' when
    unknown.
    """

    name: str
    protocol: str
    prefix: str = ""
    middleware: str = ""
    version: str = ""
    rse: str = ""

    def file_url(self, dataset: str, file: str) -> str:
        """What ROOT opens to read a file of a dataset through this door, if it has no RSE."""
        path = f"{dataset}/{file}"
        return f"{self.prefix}/{path if self.protocol == 'file' else quote(path)}"


@dataclass(frozen=True)
class HTCondorPool:
    """An HTCondor pool that jobs are submitted to.

    Attributes:
        name: how sites refer to it.
        config: its configuration file (CONDOR_CONFIG); None for what HTCondor finds by itself.
        collector: ``host:port``, '' for that of the configuration.
        schedd: name of the schedd, '' for the one of this machine.
        token_dir: folder with the IDTOKENS to authenticate with; None for HTCondor's default.
        scitoken_file: a SciToken to authenticate with instead.
        spool: whether inputs are sent to the schedd and outputs fetched from it, as a schedd on
            another machine needs.
        submit_dir: where the inputs and outputs of jobs lie that are not spooled; it must be
            readable and writable by whom the schedd runs the jobs' shadows as.  None: below
            ``data_dir``.
    """

    name: str
    config: Path | None = None
    collector: str = ""
    schedd: str = ""
    token_dir: Path | None = None
    scitoken_file: Path | None = None
    spool: bool = False
    submit_dir: Path | None = None


@dataclass(frozen=True)
class Ceilings:
    """The most that a site wants of one campaign; 0 means no ceiling.

    ``jobs`` in all, ``in_flight`` in its queue or running at a time, ``bytes_per_day`` and
    ``mb_per_s`` (10⁶ bytes) through its doors.
    """

    jobs: int = 0
    in_flight: int = 0
    bytes_per_day: int = 0
    mb_per_s: float = 0.0


@dataclass(frozen=True)
class Site:
    """A place where jobs run: the batch system that takes them and at least one door.

    The first door is used by tests that name none.

    Attributes:
        name: as people know it.
        batch: ``local``, or ``htcondor@POOL``.
        doors: its storage endpoints.
        ceilings: what it takes of one campaign.
        storage: kind of storage, e.g. ``EOS``, ``dCache``; information.
        requirements: ClassAd expression that selects the site's machines, '' for any.
        grid_resource: of the grid universe, '' for the vanilla universe.
        software: release -> value of the root axis as this site has it, e.g.
            ``{"*": "cvmfs:ROOT/{version}/x86_64-debian12-gcc12-opt"}``; ``*`` stands for all others.
            Empty: as the test asks.
        cvmfs: where CVMFS is mounted on its nodes, '' for ``/cvmfs``.
        python: interpreter of its nodes that starts the worker.
        templates: folder with templates of its own, None for the shipped ones.
        submit: further submit commands, e.g. ``{"accounting_group": "group_io"}``.
        labels: free words to choose sites by.
    """

    name: str
    batch: str
    doors: tuple[Door, ...]
    ceilings: Ceilings = Ceilings()
    storage: str = ""
    requirements: str = ""
    grid_resource: str = ""
    software: Mapping[str, str] = field(default_factory=dict)
    cvmfs: str = ""
    python: str = "/usr/bin/python3"
    templates: Path | None = None
    submit: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()

    @property
    def batch_kind(self) -> str:
        """Which batch system: ``local`` or ``htcondor``."""
        return self.batch.partition("@")[0]

    def find_door(self, name: str) -> Door | None:
        """The door of that name, None when the site has none."""
        return next((door for door in self.doors if door.name == name), None)
