"""Reads of single files: a dataset and a test in memory, through the usual planning and submission."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from treehammer.collectors.http_requests import mask_credentials
from treehammer.collectors.job_spec import LOCAL_BATCH, PAIRED, SOLO, InputFile, SoftwareRequest
from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError, select_branches
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.software import providers, wheels
from treehammer.collectors.storage_access import READ, find_limit, find_scheme, normalize_url
from treehammer.config import Settings
from treehammer.datasets import DEFAULT_ROOT, doors, tree_measurement
from treehammer.datasets.catalogues import folder_catalogue
from treehammer.datasets.catalogues.dataset_verification import choose_file_names, require_root_file
from treehammer.datasets.doors.observations import FileObservation
from treehammer.datasets.manifest import (
    RNTUPLE,
    UNREADABLE_BRANCHES,
    FileDigest,
    Manifest,
    format_some,
)
from treehammer.errors import ConfigError, DatasetError, DefinitionError
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.submit.planning.job_planner import JobInputs
from treehammer.submit.planning.plan import Plan, make_plan
from treehammer.submit.planning.reading_checks import check_contents
from treehammer.submit.planning.site_selection import SiteSelection, select_doors
from treehammer.submit.planning.submission_options import CampaignRequest, SubmissionOptions
from treehammer.submit.sites.replicas import RucioPlacement
from treehammer.submit.sites.site_model import Door, Site, find_user_error
from treehammer.text_formatting import ProgressFactory, byte_progress

#: The ROOT of this environment, as a value of the axis root.
CURRENT = "current"
#: Test of reads with several threads.
_THREADS_TEST = "rdf-read"
#: Columns of such a read by default: a histogram of each is compiled.
MAX_COLUMNS = 50
#: Types of numbers, arrays and vectors of them, as ROOT names them.
_NUMBER = r"(?:std::)?(?:U?(?:Short|Int|Long|Long64)_t|u?int(?:16|32|64)_t|(?:Float|Double)_t|float|double|(?:unsigned )?(?:int|long|short))"
_NUMBERS = re.compile(rf"(?:{_NUMBER}(?:\[[^\]]*\])*|(?:std::)?vector<{_NUMBER}>)")
_COLLECTION = re.compile(r"[\[<]")

#: Rates in bytes/s by which the passes and the time limit of an execution are chosen.
EXPECTED_UNZIPPED_RATE = 200e6
LOWEST_ZIPPED_RATE = 1e6
#: Seconds that the passes of an execution should take, and their number.
READ_S = 1.0
MIN_PASSES, MAX_PASSES = 3, 100
#: Jobs of a comparison: each has two launches of each further release, and one of the first
#: release against itself.
PAIRED_JOBS = 2


@dataclass(frozen=True)
class ReadRequest:
    """A read as requested by a user.

    Attributes:
        releases: values of the root axis; the first is the base of comparisons.
        branches: patterns of branches, comma separated; '' for all.
        cache_mb: MB (10^6 bytes) of TTreeCache; 0 turns the cache off.
        is_cold: evict local files from the page cache before each execution.
        threads: threads that read; more than one fill histograms of columns with RDataFrame.
        name: display name of the campaign; '' if nothing is kept.
        tree: the TTree or RNTuple; '' for the largest.
    """

    releases: tuple[str, ...]
    branches: str = ""
    cache_mb: float = 30.0
    is_cold: bool = False
    threads: int = 1
    name: str = ""
    tree: str = ""

    @property
    def compares_releases(self) -> bool:
        """Whether further releases are compared with the first, by turns."""
        return len(self.releases) > 1 and self.threads == 1


@dataclass(frozen=True)
class OpenedFiles:
    """Files to read, with their content on this machine.

    Attributes:
        names: unique names without special characters.
        urls: addresses that ROOT opens: absolute paths or URLs.
        paths: the files themselves, or copies of remote ones.
        digests: sizes and checksums.
    """

    names: tuple[str, ...]
    urls: tuple[str, ...]
    paths: tuple[Path, ...]
    digests: tuple[FileDigest, ...]

    @property
    def door(self) -> Door:
        """The door through which jobs read them; its prefix is the folder of the first."""
        scheme = find_scheme(self.urls[0])
        assert scheme is not None
        # A file may have any name, also one that the sites file does not permit.
        return Door.model_construct(
            name=scheme.protocol, protocol=scheme.protocol, prefix=self.urls[0].rpartition("/")[0]
        )


@dataclass(frozen=True)
class MeasuredFiles:
    """Main tree of the files: a dataset that is kept nowhere, and the type of each leaf."""

    manifest: Manifest
    types: Mapping[str, str]

    def _select_columns(self, patterns: str) -> list[str]:
        names = self.manifest.branches
        try:
            return [names[i] for i in select_branches(names, {}, patterns, seed=1, folder="")]
        except PayloadError as error:
            raise ConfigError(str(error), where=f"--branches {patterns}") from error

    def choose_columns(self, patterns: str) -> tuple[str, list[str]]:
        """Choose the columns that RDataFrame fills histograms of, and one number for each event.

        Args:
            patterns: patterns of columns; '' for the first :data:`MAX_COLUMNS` with numbers.

        Raises:
            ConfigError: a pattern matches no column, or one without numbers; no column has one number
                for each event.
        """
        names = self.manifest.branches
        numbers = [name for name in names if _NUMBERS.fullmatch(self.types.get(name, ""))]
        scalars = (name for name in numbers if not _COLLECTION.search(self.types[name]))
        scalar = next(scalars, "")
        if not scalar:
            raise ConfigError(
                "no column has one number for each event, which RDataFrame's read needs",
                where="--threads",
                hint="Read the file with one thread.",
            )
        if not patterns:
            return scalar, numbers[:MAX_COLUMNS]
        selected = self._select_columns(patterns)
        if unusable := [name for name in selected if name not in numbers]:
            raise ConfigError(
                f"with several threads, columns must hold numbers: not {format_some(unusable)}",
                where=f"--branches {patterns}",
                hint="Choose others, or read with one thread.",
            )
        return scalar, selected


def choose_releases(
    texts: Sequence[str], addresses: Sequence[str], software_dir: Path
) -> tuple[str, ...]:
    """Choose the releases to read with: those named, else a ROOT at hand, else one to fetch.

    At hand are cached releases, the newest first, and the ROOT of this environment: of conda, a view on
    CVMFS, or a build whose ``thisroot.sh`` was sourced.

    Raises:
        ConfigError: a text names no ROOT, or a release that cannot read the addresses.
    """
    if texts:
        for text in texts:
            try:
                provider = providers.parse_software_request(text).provider
            except ValueError as error:
                raise ConfigError(str(error), where="--root") from error
            if provider in providers.WITHOUT_ROOT:
                raise ConfigError(f"{text!r} is no ROOT", where="--root")
            if problem := _find_limit(text, addresses):
                hint = f"Releases that can: {', '.join(_select_able(providers.WHEELS, addresses))}."
                raise ConfigError(problem, where=f"--root {text}", hint=hint)
        return tuple(dict.fromkeys(texts))
    able_cached = _select_able(reversed(providers.list_prepared_releases(software_dir)), addresses)
    if not able_cached and _has_own_root():
        return (CURRENT,)
    return ([*able_cached, *_select_able((DEFAULT_ROOT, *providers.WHEELS), addresses)][0],)


def _select_able(releases: Iterable[str], addresses: Sequence[str]) -> list[str]:
    return [release for release in releases if not _find_limit(release, addresses)]


def _has_own_root() -> bool:
    """Return whether a Python of this environment imports ROOT."""
    try:
        providers.setup_software(providers.parse_software_request(CURRENT), os.environ, "")
    except ExecutionError:
        return False
    return True


def describe_fetches(requests: Iterable[SoftwareRequest], software_dir: Path) -> Iterator[str]:
    """Say what will be fetched before these releases can read, and how much."""
    for request in requests:
        if title := providers.find_missing_release(request, software_dir):
            yield f"{title} is fetched once ({wheels.find_release(request).size}), into {software_dir}."


def _find_limit(text: str, addresses: Sequence[str]) -> str:
    """Say why a release cannot read the addresses; '' if it can."""
    request = providers.parse_software_request(text)
    limits = (find_limit(READ, address, request, has_credential=False) for address in addresses)
    return next((limit.partition(". ")[0] for limit in limits if limit), "")


def open_files(addresses: Sequence[str], folder: Path, bars: ProgressFactory) -> OpenedFiles:
    """Read files once for their checksums; remote ones are copied into a folder for the moment.

    Args:
        addresses: paths, or URLs of root, https or http, all with one scheme.
        folder: folder for copies of remote files.
        bars: opens progress bars.

    Raises:
        ConfigError: the addresses have several schemes, or an unknown one.
        DatasetError: a file is missing or cannot be read.
    """
    protocols = set()
    for address in addresses:
        if error := find_user_error(address):
            raise ConfigError(error, where=mask_credentials(address))
        scheme = find_scheme(address)
        if scheme is None:
            raise ConfigError("neither a path nor a URL of root, https or http", where=address)
        protocols.add(scheme.protocol)
    if len(protocols) > 1:
        raise ConfigError(
            "paths and URLs, or URLs of several protocols, cannot be read together",
            where=" ".join(addresses),
            hint="Read them one after the other.",
        )
    urls = [
        url if "://" in url else str(Path(url).expanduser().absolute())
        for url in map(normalize_url, addresses)
    ]
    plain = choose_file_names([Path(url.partition("?")[0]) for url in urls])
    names = [
        name if plain.count(name) == 1 else f"{number}-{name}"
        for number, name in enumerate(plain, 1)
    ]
    opened = [_open_file(url, folder / name, bars) for url, name in zip(urls, names, strict=True)]
    paths, digests = zip(*opened, strict=True)
    return OpenedFiles(tuple(names), tuple(urls), paths, digests)


def _open_file(url: str, copy: Path, bars: ProgressFactory) -> tuple[Path, FileDigest]:
    """Digest a local file, or copy a remote one; return its path here."""
    is_local = "://" not in url
    size = _require_success(url, doors.stat_file(url)).size or 0
    if re.fullmatch("https?:[^?%]+", url):  # ROOT reads ranges of it, unlike the copy below
        prefix, _, name = url.rpartition("/")
        probe = doors.probe_door(prefix, doors.ProbeTarget(name, size), is_local=False)
        if probe.problem:
            raise DatasetError(probe.problem, where=url, hint=probe.remedy)
    title = f"{'Checking' if is_local else 'Copying'} {url.rpartition('/')[2]}"
    with byte_progress(bars, title, size) as advance:
        observation = _require_success(
            url, doors.read_file(url, size, advance, copy_to=None if is_local else copy)
        )
    path = Path(url) if is_local else copy
    require_root_file(path, url)
    return path, FileDigest(observation.size or 0, observation.adler32, observation.sha256)


def _require_success(url: str, observation: FileObservation) -> FileObservation:
    if observation.failure:
        raise DatasetError(observation.message, where=url, hint=observation.remedy)
    return observation


def describe_files(
    files: OpenedFiles, software: SoftwareRequest, bars: ProgressFactory, *, tree: str = ""
) -> MeasuredFiles:
    """Measure the main tree of files as a dataset that is kept nowhere.

    Raises:
        DatasetError: a file is no ROOT file, or has no such tree.
        SoftwareError: this ROOT cannot be used.
    """
    try:
        layouts, content = tree_measurement.measure_files(
            files.paths, software, tree=tree, bars=bars
        )
    except DatasetError as error:
        urls = dict(zip(map(str, files.paths), files.urls, strict=True))
        raise DatasetError(
            error.message, where=urls.get(error.where, error.where), hint=error.hint
        ) from error
    described = zip(files.names, files.digests, layouts, strict=True)
    name = re.sub("[+=@]", "-", Path(files.names[0]).stem.lower())
    manifest = Manifest(
        name.strip(".-_")[:64] or "file",
        tuple(folder_catalogue.describe_file(*parts) for parts in described),
        folder_catalogue.describe_added_origin(files.urls, software, content),
    )
    return MeasuredFiles(manifest, content.types)


def leave_out_unreadable(
    measured: MeasuredFiles, files: OpenedFiles, software: SoftwareRequest, bars: ProgressFactory
) -> MeasuredFiles:
    """Read all branches in processes that may crash, and list those that ROOT cannot read.

    Raises:
        DatasetError: ROOT can read none.
    """
    manifest = measured.manifest
    first = next(index for index, file in enumerate(manifest.files) if file.layout.entries)
    unreadable = tree_measurement.probe_file(
        files.paths[first], manifest.files[first].layout, software, bars=bars
    )
    if unreadable and set(unreadable) >= set(manifest.branches):
        raise DatasetError(
            f"ROOT can read no branch of {manifest.tree!r}",
            where=files.urls[0],
            hint=f"Branch {next(iter(unreadable))}: {next(iter(unreadable.values()))}",
        )
    origin = {**manifest.origin, UNREADABLE_BRANCHES: unreadable}
    return replace(measured, manifest=replace(manifest, origin=origin))


def plan_read(
    request: ReadRequest,
    files: OpenedFiles,
    measured: MeasuredFiles,
    software: Mapping[str, SoftwareRequest],
    settings: Settings,
    *,
    mode: str,
) -> Plan:
    """Plan a read on this machine.

    Args:
        request: the read.
        files: the files.
        measured: their main tree; its unreadable branches are left out.
        software: value of the root axis -> prepared ROOT.
        settings: all settings.
        mode: ``solo`` for the rates of each release, ``paired`` for comparing them with the first.

    Raises:
        ConfigError: a pattern matches no branch, or one that several threads cannot read.
    """
    manifest = measured.manifest
    test, axes, overrides = _choose_test(request, measured)
    axes = {
        "root": request.releases,
        "cache_mb": (f"{request.cache_mb:g}",),
        "cache": ("cold" if request.is_cold else "warm",),
        "bundle": ("root",) if len(request.releases) > 1 else (),
        **axes,
    }
    pinned = load_pinned_test(test, axes, {**_choose_counts(manifest, mode), **overrides}, settings)
    try:
        check_contents(pinned.definition, [manifest], pinned.folder)
    except DefinitionError as error:
        raise ConfigError(
            error.message, where=f"--branches {request.branches}", hint=error.hint
        ) from error
    site = Site.model_construct(name=LOCAL_BATCH, batch=LOCAL_BATCH, doors=(files.door,))
    inputs = tuple(
        InputFile(name, url, digest.size, digest.adler32)
        for name, url, digest in zip(files.names, files.urls, files.digests, strict=True)
    )
    # Campaigns of one read have different names; the comparison has the user's.
    suffix = "-readable" if manifest.unreadable_branches else ""
    suffix += "-alone" if mode == SOLO and request.compares_releases else ""
    return make_plan(
        CampaignRequest(
            test,
            name=request.name and request.name + suffix,
            options=SubmissionOptions(use_service=False),
            # The values of a single release are compared with nothing.
            max_jobs=1 if mode == SOLO else 0,
        ),
        pinned,
        select_doors(SiteSelection((site,)), pinned.definition),
        JobInputs(
            software,
            manifests=[manifest],
            placement=RucioPlacement({(site.name, files.door.name, manifest.name): inputs}),
        ),
    )


def _choose_test(
    request: ReadRequest, measured: MeasuredFiles
) -> tuple[str, dict[str, tuple[str, ...]], dict[str, str]]:
    """Choose the shipped test that reads the files, its own axes, and keys of ``[settings]``."""
    format_ = measured.manifest.files[0].layout.format
    if request.threads > 1:
        event_column, columns = measured.choose_columns(request.branches)
        axes: dict[str, tuple[str, ...]] = {
            "format": (format_,),
            "threads": (str(request.threads),),
            "branches": (",".join(columns),),
        }
        # The filter keeps all events.
        keys = {"settings.filter": event_column, "settings.minimum": str(-(2**62))}
        return _THREADS_TEST, axes, keys
    all_branches = "readable" if measured.manifest.unreadable_branches else "1.0"
    own_axes: dict[str, tuple[str, ...]] = {"branches": (request.branches or all_branches,)}
    if format_ == RNTUPLE:
        return "rntuple-read", {**own_axes, "format": (RNTUPLE,)}, {}
    return "ttree-read", own_axes, {}


def _choose_counts(manifest: Manifest, mode: str) -> dict[str, str]:
    """Choose passes and jobs by the size of the files, as keys of ``[test]``."""
    unzipped = sum(file.layout.unzipped_bytes for file in manifest.files)
    zipped = sum(file.layout.zipped_bytes for file in manifest.files)
    pass_s = max(unzipped / EXPECTED_UNZIPPED_RATE, 1e-6)
    passes = min(max(math.ceil(READ_S / pass_s) + 1, MIN_PASSES), MAX_PASSES)
    values: dict[str, Any] = {
        "dataset": manifest.name,
        "tree": manifest.tree,
        "mode": mode,
        "repeats": PAIRED_JOBS if mode == PAIRED else 1,
        "rounds": 2 if mode == PAIRED else 1,
        "passes": passes,
        "wall_limit_s": 600 + math.ceil(passes * zipped / LOWEST_ZIPPED_RATE),
    }
    return {key: str(value) for key, value in values.items()}
