"""Sites: places where jobs run, with the doors through which they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from treehammer.collectors.http_requests import TOKEN_POOLS_VARIABLE, format_token_pools
from treehammer.collectors.job_spec import HTCONDOR_PREFIX, LOCAL_BATCH
from treehammer.text_formatting import format_size


@dataclass(frozen=True)
class LoadPermission:
    """Largest load of a door at a time; 0 or '' permits none.

    ``mb_per_s`` counts 10⁶ bytes; ``writable`` is the path of an area for their files.
    """

    opens_per_s: float = 0.0
    clients: int = 0
    mb_per_s: float = 0.0
    writable: str = ""

    def describe(self) -> str:
        """Describe the permitted load in words."""
        parts = (
            f"{self.opens_per_s:,.15g} opens/s" if self.opens_per_s else "",
            f"{self.clients:,} clients" if self.clients else "",
            f"{self.mb_per_s:,.15g} MB/s" if self.mb_per_s else "",
            f"writes in {self.writable}" if self.writable else "",
        )
        return ", ".join(filter(None, parts)) or "–"


@dataclass(frozen=True)
class Door:
    """A storage endpoint of a site.

    ``protocol`` is ``file``, ``root``, ``https`` or ``http``.  With an ``rse``, Rucio provides the
    location of files, and a ``prefix`` replaces the RSE's own.  Without, files are located at
    ``prefix/DATASET/FILE``.  ``middleware`` and its ``version`` are informative, '' if unknown.
    Without ``load`` it permits no load tests.  ``settings`` names settings of its server that tests
    may change.  ``token_pools`` are hosts to which a token may follow its redirects.
    """

    name: str
    protocol: str
    prefix: str = ""
    middleware: str = ""
    version: str = ""
    rse: str = ""
    load: LoadPermission | None = None
    settings: tuple[str, ...] = ()
    token_pools: tuple[str, ...] = ()

    @property
    def writable_url(self) -> str:
        """URL or path of the area for files of load tests; '' without any."""
        path = self.load.writable if self.load else ""
        if not path or self.is_path:
            return path
        parts = urlsplit(self.prefix)
        slash = "/" if self.protocol == "root" else ""  # two after the host
        return f"{parts.scheme}://{parts.netloc}{slash}{quote(path)}"

    @property
    def is_path(self) -> bool:
        """Whether jobs read it as a path of their node."""
        return self.protocol == "file"

    def file_url(self, dataset: str, file: str) -> str:
        """Return the URL or path that ROOT opens for a file, for a door without RSE."""
        path = f"{dataset}/{file}"
        return f"{self.prefix}/{path if self.protocol == 'file' else quote(path)}"


def token_pool_environment(doors: Iterable[Door]) -> dict[str, str]:
    """Return the variable that names the pools of doors to all HTTP clients; empty without pools."""
    text = format_token_pools({door.prefix: door.token_pools for door in doors})
    return {TOKEN_POOLS_VARIABLE: text} if text else {}


@dataclass(frozen=True)
class Ceilings:
    """Limits that a site sets for one campaign; 0 means unlimited.

    ``jobs`` is the total, ``in_flight`` the number queued or running at a time; ``bytes_per_day`` and
    ``mb_per_s`` (10⁶ bytes) limit the traffic through its doors.
    """

    jobs: int = 0
    in_flight: int = 0
    bytes_per_day: int = 0
    mb_per_s: float = 0.0

    def describe(self) -> str:
        """Describe the limits in words."""
        parts = (
            f"{self.jobs:,} jobs" if self.jobs else "",
            f"{self.in_flight:,} in flight" if self.in_flight else "",
            f"{format_size(self.bytes_per_day)} a day" if self.bytes_per_day else "",
            f"{self.mb_per_s:g} MB/s" if self.mb_per_s else "",
        )
        return ", ".join(filter(None, parts)) or "–"


@dataclass(frozen=True)
class Site:
    """A place where jobs run: a batch system and at least one door.

    Tests that name no door use the first.

    Attributes:
        name: display name and identity.
        batch: ``local``, ``htcondor@POOL``, or that of another package.
        doors: storage endpoints.
        ceilings: limits for one campaign.
        storage: kind of storage, e.g. ``EOS`` or ``dCache``; informative.
        requirements: ClassAd expression that selects the site's machines, '' for any.
        grid_resource: resource of the grid universe, '' for the vanilla universe.
        software: ROOT release -> value of the root axis at this site, e.g.
            ``{"*": "cvmfs:ROOT/{version}/x86_64-debian12-gcc12-opt"}``, where ``*`` stands for all
            other releases.  Empty: the test's own values.
        cvmfs: mount point of CVMFS on its nodes, '' for ``/cvmfs``.
        python: interpreter that starts the worker on its nodes.
        templates: folder with the site's own templates, None for the shipped ones.
        submit: additional submit commands, e.g. ``{"accounting_group": "group_io"}``.
        labels: words by which ``--sites`` selects it.
        cert_dir: folder of certificate authorities on its nodes, '' for the
            clients' own default.
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
    cert_dir: str = ""

    @property
    def is_local(self) -> bool:
        """Whether its jobs run on this machine."""
        return self.batch == LOCAL_BATCH

    @property
    def pool(self) -> str:
        """Name of its HTCondor pool; '' for another batch system."""
        is_htcondor = self.batch.startswith(HTCONDOR_PREFIX)
        return self.batch.removeprefix(HTCONDOR_PREFIX) if is_htcondor else ""

    def find_door(self, name: str) -> Door | None:
        """Return the door with this name, or None."""
        return next((door for door in self.doors if door.name == name), None)


@dataclass(frozen=True)
class DoorAccess:
    """A door of a storage site, as jobs of a site read it; the two are mostly the same site."""

    site: Site
    storage: Site
    door: Door

    @property
    def is_remote(self) -> bool:
        """Whether jobs read the storage of another site."""
        return self.storage.name != self.site.name

    @property
    def door_label(self) -> str:
        """Name of the door, unique among all doors that jobs of the site read."""
        return f"{self.storage.name}:{self.door.name}" if self.is_remote else self.door.name

    @property
    def key(self) -> tuple[str, str]:
        """Names of the site and of the door as its jobs read it."""
        return self.site.name, self.door_label
