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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from treehammer.collectors.storage_access import list_aliases, normalize_url
from treehammer.config import Settings
from treehammer.datasets import doors
from treehammer.datasets.doors.observations import FAILED, MISSING, NO_RESPONSE
from treehammer.datasets.manifest import MANIFEST_NAME, Manifest, Replica, digest_file
from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.datasets.rucio.rucio_conversions import (
    DidFile,
    ReplicationRule,
    Rse,
    RseExpressionError,
    RucioDeniedError,
    RucioDuplicateError,
    RucioNotFoundError,
    RucioSilentError,
)
from treehammer.errors import CatalogueError, DatasetError, TreehammerError
from treehammer.text_formatting import (
    ByteCallback,
    ProgressFactory,
    byte_progress,
    format_size,
    no_progress,
)

WAITING, COPYING, COMPLETE, STUCK, DENIED = "waiting", "copying", "complete", "stuck", "denied"
#: Delays in seconds between retries of a write after transient errors.
WRITE_RETRY_DELAYS_S = (2.0, 10.0)
#: Protocols of uploads, the preferred one first.
_UPLOAD_PROTOCOLS = ("root", "https", "http")
#: Seconds between two polls of the rules, initially and at most.
FIRST_POLL_INTERVAL_S, MAX_POLL_INTERVAL_S = 1.0, 15.0
#: Seconds after which a stuck rule is boosted; the interval doubles each time.
FIRST_BOOST_DELAY_S = 30.0
#: Seconds for which an unrequested source copy is kept.
SOURCE_LIFETIME_S = 14 * 86_400
#: Words in the error of a stuck rule that rule out a successful retry.
_PERMANENT_ERRORS = ("checksum", "permission", "not authori", "no space", "quota", "no such file")


# --- catalogue


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

    def has(self, name: str) -> bool:
        """Return whether the scope has a dataset of that name."""
        try:
            self.rucio.list_files(self.rucio.names.dataset(name))
        except RucioNotFoundError:
            return False
        return True

    def manifest(self, name: str) -> Manifest:
        """Read a dataset's manifest through a door, and cache it.

        Raises:
            DatasetError: The dataset does not exist or was not placed by Treehammer.
            CatalogueError: No replica of its manifest can be read.
        """
        did = self.rucio.names.dataset(name)
        try:
            files = {file.name: file for file in self.rucio.list_files(did)}
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
        files_by_did = {names.file(name, file.name): file for file in self.manifest(name).files}
        expression = "|".join(f"site={site}" for site in sites)
        try:
            locations = self.rucio.list_locations(
                [names.dataset(name)], list_aliases(protocol), expression, domain
            )
        except RseExpressionError:
            return ()
        return tuple(
            Replica(
                site=self._rse(location.rse).site,
                rse=location.rse,
                file=files_by_did[location.file].name,
                url=normalize_url(location.url),
                size=files_by_did[location.file].size,
                adler32=files_by_did[location.file].adler32,
                path=_path_below_prefix(location.url, self._rse(location.rse).prefixes),
            )
            for location in sorted(
                locations,
                key=lambda location: (
                    self._rse(location.rse).site,
                    location.file,
                    location.priority,
                ),
            )
            if location.file in files_by_did
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
            file = self.rucio.fetch_file(file.name)  # which may have an md5
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
        raise CatalogueError(
            "\n  ".join(
                [f"no replica of {file.name} can be read:", *(problems or ["there is none"])]
            ),
            where="Rucio",
            hint="Place the dataset again from a machine that has it: treehammer datasets place.",
        )


def _path_below_prefix(url: str, prefixes: Sequence[str]) -> str:
    """Remove the longest matching prefix from a URL; return '' without a match."""
    matching = [prefix for prefix in prefixes if url.startswith(prefix)]
    return url.removeprefix(max(matching, key=len)).lstrip("/") if matching else ""


# --- upload


def upload_dataset(
    manifest: Manifest,
    folder: Path,
    catalogue: RucioCatalogue,
    upload_rses: Sequence[Rse],
    bars: ProgressFactory = no_progress,
) -> str:
    """Register all files of a dataset, each with at least one replica.

    Args:
        manifest: Manifest of the dataset.
        folder: Folder with its files and its manifest.
        catalogue: Rucio catalogue.
        upload_rses: RSEs to try in order for writing.
        bars: Opens progress bars.

    Returns:
        Name of the RSE to which files were written; '' if none were missing.

    Raises:
        DatasetError: Rucio has a dataset or file of that name with other content.
        ConfigError: the server does not accept the names; nothing was written.
        CatalogueError: No RSE accepts the files, or Rucio does not respond.
    """
    rucio = catalogue.rucio
    did = rucio.names.dataset(manifest.name)
    attached = _list_attached_files(did, rucio)
    files = _list_expected_files(manifest, folder, catalogue, attached or {})
    missing = _find_missing_files(files, rucio)
    rucio.check_names(did if attached is None else None, [file.name for file, _ in missing])
    used_rse = _upload_files(missing, upload_rses, rucio, bars) if missing else ""
    if attached is None:
        rucio.create_dataset(did)
    if unattached := [name for name in files if name not in (attached or {})]:
        rucio.attach_files(did, unattached)
    rucio.close_dataset(did)
    return used_rse


def _list_attached_files(name: str, rucio: RucioClient) -> dict[str, DidFile] | None:
    """List the files of Rucio's dataset of that name; return None if it does not exist."""
    try:
        return {file.name: file for file in rucio.list_files(name)}
    except RucioNotFoundError:
        return None


def _list_expected_files(
    manifest: Manifest, folder: Path, catalogue: RucioCatalogue, attached: Mapping[str, DidFile]
) -> dict[str, tuple[DidFile, Path]]:
    """Map the DID of each expected file to file and path; the small manifest is first."""
    name, names = manifest.name, catalogue.rucio.names
    files = {
        names.file(name, file.name): (
            DidFile(names.file(name, file.name), file.size, file.adler32),
            folder / file.name,
        )
        for file in manifest.files
    }
    path = folder / MANIFEST_NAME
    manifest_did = names.file(name, MANIFEST_NAME)
    content = digest_file(path)
    if manifest_did in attached:
        if catalogue.manifest(name).hash != manifest.hash:
            raise DatasetError(
                f"{catalogue.rucio.scope}:{name} has other files than the dataset here",
                where="Rucio",
                hint="A dataset never changes: give this one another name.",
            )
        # Another machine may have written it with the same files.
        return {manifest_did: (attached[manifest_did], path), **files}
    return {manifest_did: (DidFile(manifest_did, content.size, content.adler32), path), **files}


def _find_missing_files(
    files: dict[str, tuple[DidFile, Path]], rucio: RucioClient
) -> list[tuple[DidFile, Path]]:
    """Find the files without replica; refuse other content under the same name."""
    missing = []
    for name, (file, path) in files.items():
        try:
            registered = rucio.fetch_file(name)
        except RucioNotFoundError:
            missing.append((file, path))
            continue
        if not registered.verify_content(path, file.size, file.adler32):
            checksum = (
                f"adler32 {registered.adler32}" if registered.adler32 else f"md5 {registered.md5}"
            )
            raise DatasetError(
                f"{rucio.scope}:{name} is another file: {registered.size} bytes with {checksum}, and "
                f"{file.size} with adler32 {file.adler32} here",
                where="Rucio",
                hint="A file never changes in Rucio: give the dataset another name.",
            )
        if not rucio.list_locations([name]):
            missing.append((file, path))
    return missing


def _upload_files(
    missing: Sequence[tuple[DidFile, Path]],
    upload_rses: Sequence[Rse],
    rucio: RucioClient,
    bars: ProgressFactory,
) -> str:
    """Write files to RSEs in order until all are written; return the last one used."""
    refusals = []
    quotas = rucio.list_quotas()
    remaining = list(missing)
    for rse in upload_rses:
        if not rse.writable:
            refusals.append(f"{rse.name}: accepts no files now")
            continue
        total = sum(file.size for file, _ in remaining)
        if rse.name in quotas and quotas[rse.name].free < total:
            refusals.append(
                f"{rse.name}: the account's quota has no room for {format_size(total)} more"
            )
            continue
        try:
            with byte_progress(bars, f"Writing to {rse.name}", total) as advance:
                while remaining:
                    _upload_file(*remaining[0], rse.name, rucio, advance)
                    del remaining[0]
            return rse.name
        except CatalogueError as error:
            refusals.append(f"{rse.name}: {error.message}")
    raise CatalogueError(
        "\n  ".join(["no storage takes the files:", *refusals]),
        where="Rucio",
        hint="Name an RSE where your account may add files, e.g. a scratch disk: --upload-to RSE",
    )


def _upload_file(
    file: DidFile, path: Path, rse: str, rucio: RucioClient, advance: ByteCallback
) -> None:
    schemes = [name for protocol in _UPLOAD_PROTOCOLS for name in list_aliases(protocol)]
    urls = (url for name in schemes for url in rucio.list_upload_urls(rse, file.name, name))
    url = normalize_url(next(urls, ""))
    if not url:
        raise CatalogueError(f"cannot be written to by {', '.join(schemes)}")
    written = _write_file(file, path, url, advance)
    try:
        rucio.register_replica(rse, file)
    except RucioSilentError:
        raise  # it may be registered; the same command finds out later
    except TreehammerError as error:
        problem = _discard_file(url) if written else ""
        raise CatalogueError(
            f"{error.message}{problem}", where=error.where, hint=error.hint
        ) from error


def _write_file(file: DidFile, path: Path, url: str, advance: ByteCallback) -> bool:
    """Write a file unless it exists, and verify it; return whether it was written."""
    if _has_expected_content(file, url):
        advance(file.size)
        return False
    for pause in (*WRITE_RETRY_DELAYS_S, None):
        observation = doors.write_file(path, url, advance)
        if not observation.failure:
            break
        if observation.failure not in (NO_RESPONSE, FAILED) or pause is None:
            raise CatalogueError(
                f"{url}: {observation.message}{_discard_file(url)}", hint=observation.remedy
            )
        time.sleep(pause)
    if not _has_expected_content(file, url):
        problem = _discard_file(url)
        raise CatalogueError(f"{url}: the storage has other bytes than it was given{problem}")
    return True


def _discard_file(url: str) -> str:
    """Remove a file that will not be registered; return a clause on the failure, '' for none."""
    removed = doors.remove_file(url)
    if not removed.failure or removed.failure == MISSING:
        return ""
    return f"; {url} could not be removed again ({removed.message}): remove it"


def _has_expected_content(file: DidFile, url: str) -> bool:
    observation = doors.stat_file(url)
    if observation.size == file.size and not observation.adler32:
        observation = doors.read_file(url, file.size)
    return (observation.size, observation.adler32) == (file.size, file.adler32)


# --- replication


@dataclass(frozen=True)
class RuleOptions:
    """Options of replication rules; ``lifetime_s`` in seconds, None for no end."""

    lifetime_s: int | None
    comment: str
    activity: str


@dataclass(frozen=True)
class ReplicationStatus:
    """Replication status of one replica.

    Attributes:
        site: Site of the RSE.
        rse: Requested RSE.
        state: ``waiting``, ``copying``, ``complete``, ``stuck`` or ``denied``.
        files_complete: Number of files present.
        files_total: Number of files of the dataset, with its manifest.
        reason: Cause of being stuck or denied.
        rule_id: Id of the rule that holds it.
    """

    site: str
    rse: str
    state: str = WAITING
    files_complete: int = 0
    files_total: int = 0
    reason: str = ""
    rule_id: str = ""


def request_replicas(
    manifest: Manifest, rses: Sequence[Rse], options: RuleOptions, rucio: RucioClient
) -> list[ReplicationStatus]:
    """Create a rule for each RSE; extend rules that exist.

    Raises:
        CatalogueError: Rucio does not respond.
    """
    rules = {rule.expression: rule for rule in rucio.list_rules(rucio.names.dataset(manifest.name))}
    return [_request_replica(manifest, rse, rules.get(rse.name), options, rucio) for rse in rses]


def _request_replica(
    manifest: Manifest,
    rse: Rse,
    rule: ReplicationRule | None,
    options: RuleOptions,
    rucio: RucioClient,
) -> ReplicationStatus:
    status = ReplicationStatus(rse.site, rse.name, files_total=len(manifest.files) + 1)
    if rule is not None:
        try:
            rucio.extend_rule(rule, options.lifetime_s)
        except RucioDeniedError:
            pass  # the rule keeps its end
        return replace(status, rule_id=rule.id)
    try:
        rule_id = rucio.add_rule(
            rucio.names.dataset(manifest.name),
            rse.name,
            lifetime_s=options.lifetime_s,
            comment=options.comment,
            activity=options.activity,
        )
    except RucioDeniedError as error:
        return replace(status, state=DENIED, reason=error.message)
    return replace(status, rule_id=rule_id)


def keep_source_replica(
    manifest: Manifest, rse: str, options: RuleOptions, rucio: RucioClient
) -> None:
    """Keep an unrequested source copy of the transfers for some time."""
    kept_s = min(options.lifetime_s or SOURCE_LIFETIME_S, SOURCE_LIFETIME_S)
    try:
        rucio.add_rule(
            rucio.names.dataset(manifest.name),
            rse,
            lifetime_s=kept_s,
            comment=f"{options.comment} (source of the others)",
            activity=options.activity,
        )
    except (RucioDeniedError, RucioDuplicateError):
        pass  # the copy stays until the storage needs the space


def poll_replication(
    statuses: Sequence[ReplicationStatus],
    rucio: RucioClient,
    patience_s: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[ReplicationStatus]]:
    """Poll rules until all replicas are complete, or only stuck ones remain for too long.

    Stuck rules with a transient cause are boosted if the account is permitted to; Rucio
    itself also retries from time to time.

    Args:
        statuses: Statuses from :func:`request_replicas`.
        rucio: Client.
        patience_s: Seconds without a new file after which stuck replicas are abandoned.
        sleep: Waits so many seconds.
        clock: Returns the time in seconds.

    Yields:
        All statuses after each poll.
    """
    current = list(statuses)
    began = progress = clock()
    boosts = _RuleBooster(rucio, clock)
    while True:
        before = current
        current = [_poll_rule(status, rucio) for status in before]
        yield current
        now = clock()
        if _count_complete_files(current) != _count_complete_files(before):
            progress = now
        states = {status.state for status in current}
        if not states & {WAITING, COPYING, STUCK}:
            return
        if not states & {WAITING, COPYING} and now - progress >= patience_s:
            return
        boosts.boost_stuck([status for status in current if status.state == STUCK])
        sleep(min(MAX_POLL_INTERVAL_S, max(FIRST_POLL_INTERVAL_S, (now - began) / 20)))


def _count_complete_files(statuses: Sequence[ReplicationStatus]) -> list[int]:
    return [status.files_complete for status in statuses]


def _poll_rule(status: ReplicationStatus, rucio: RucioClient) -> ReplicationStatus:
    if status.state == DENIED:
        return status
    try:
        rule = rucio.fetch_rule(status.rule_id)
    except RucioNotFoundError:
        return replace(status, state=DENIED, reason="its rule was deleted")
    state, reason = _rule_status(rule)
    return replace(status, state=state, files_complete=rule.locks_ok, reason=reason)


def _rule_status(rule: ReplicationRule) -> tuple[str, str]:
    if rule.state == "OK":
        return COMPLETE, ""
    if rule.state == "STUCK":
        return STUCK, rule.error or "Rucio gives no reason"
    if rule.state in ("SUSPENDED", "WAITING_APPROVAL"):
        return STUCK, f"the rule is {rule.state.lower().replace('_', ' for ')}"
    return (COPYING if rule.locks_copying else WAITING), ""


class _RuleBooster:
    """Booster of stuck rules at growing intervals, while the account is permitted to."""

    def __init__(self, rucio: RucioClient, clock: Callable[[], float]) -> None:
        self._rucio = rucio
        self._clock = clock
        self._next: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._allowed = True

    def boost_stuck(self, stuck: Sequence[ReplicationStatus]) -> None:
        now = self._clock()
        for status in stuck:
            is_permanent = any(word in status.reason.lower() for word in _PERMANENT_ERRORS)
            if is_permanent or not self._allowed or now < self._next.get(status.rule_id, now):
                continue
            pause = self._pauses.get(status.rule_id, FIRST_BOOST_DELAY_S)
            self._next[status.rule_id] = now + pause
            self._pauses[status.rule_id] = 2 * pause
            try:
                self._rucio.boost_rule(status.rule_id)
            except RucioDeniedError:
                self._allowed = False
