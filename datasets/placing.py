"""Bringing a dataset to sites through Rucio, step by step; each step may be done again.

Its files are written once, to one storage, and told to the catalogue; a rule for each wanted storage
lets Rucio do the rest.  What is there already is left as it is, so that whoever was interrupted gives
the same command again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.filesize import decimal

from treehammer.datasets import doors
from treehammer.datasets.content import digest
from treehammer.datasets.doors import xrootd
from treehammer.datasets.doors.seen import BROKEN, SILENT, Advance
from treehammer.datasets.manifest import MANIFEST_NAME, Manifest
from treehammer.datasets.progress import bytes_bar
from treehammer.datasets.rucio import Rucio
from treehammer.datasets.rucio_answers import Absent, Denied, DidFile, Exists, Rse, Rule
from treehammer.datasets.rucio_catalogue import RucioCatalogue, did_of
from treehammer.errors import CatalogueError, DatasetError
from treehammer.terminal import Bars, silent

WAITING, COPYING, HERE, STUCK, REFUSED = "waiting", "copying", "here", "stuck", "refused"

#: Seconds between two tries of a write that failed for a while only.
PAUSES_S = (2.0, 10.0)
#: Seconds between two looks at the rules, at first and later.
LOOK_S, LOOK_LATER_S = 1.0, 15.0
#: Seconds after which a stuck rule is asked to be tried again; each time twice as many.
BOOST_S = 30.0
#: Seconds for which the copy is kept that the others are made from, where it was not asked for.
UPLOAD_KEPT_S = 14 * 86_400
#: Words in the reason of a stuck rule against which trying again does not help.
_LASTING = ("checksum", "permission", "not authori", "no space", "quota", "no such file")


@dataclass(frozen=True)
class Wish:
    """How replicas are asked for; ``lifetime_s`` in seconds, None for no end."""

    lifetime_s: int | None
    comment: str
    activity: str


@dataclass(frozen=True)
class Standing:
    """How a replica stands.

    Attributes:
        site: of the RSE.
        rse: where it is to be.
        state: ``waiting``, ``copying``, ``here``, ``stuck`` or ``refused``.
        files: that are there, and ``of`` how many.
        reason: why it is stuck or refused.
        rule: id of the rule that holds it.
    """

    site: str
    rse: str
    state: str = WAITING
    files: int = 0
    of: int = 0
    reason: str = ""
    rule: str = ""


def bring(
    manifest: Manifest,
    folder: Path,
    catalogue: RucioCatalogue,
    through: Sequence[Rse],
    bars: Bars = silent,
) -> str:
    """Have all files of a dataset in the catalogue, with a replica somewhere.

    Args:
        manifest: of the dataset.
        folder: with its files and its manifest.
        catalogue: of Rucio.
        through: the RSEs to write to, the first that takes the files.
        bars: opens progress bars.

    Returns:
        The RSE that files were written to, '' when there was nothing to write.

    Raises:
        DatasetError: Rucio has a dataset or file of that name with other content.
        CatalogueError: no RSE takes the files, or Rucio does not answer.
    """
    rucio = catalogue.rucio
    attached = _attached(manifest.name, rucio)
    files = _wanted(manifest, folder, catalogue, attached or {})
    missing = _without_replica(files, rucio)
    used = _upload(missing, through, rucio, bars) if missing else ""
    if attached is None:
        rucio.define(manifest.name)
    if left := [name for name in files if name not in (attached or {})]:
        rucio.attach(manifest.name, left)
    rucio.close(manifest.name)
    return used


def _attached(name: str, rucio: Rucio) -> dict[str, DidFile] | None:
    """The files that Rucio's dataset of that name has, None when there is no such dataset."""
    try:
        return {file.name: file for file in rucio.files(name)}
    except Absent:
        return None


def _wanted(
    manifest: Manifest, folder: Path, catalogue: RucioCatalogue, known: Mapping[str, DidFile]
) -> dict[str, tuple[DidFile, Path]]:
    """What there must be: DID -> file and its path; the manifest first, which is small."""
    name = manifest.name
    files = {
        did_of(name, file.name): (
            DidFile(did_of(name, file.name), file.size, file.adler32),
            folder / file.name,
        )
        for file in manifest.files
    }
    path = folder / MANIFEST_NAME
    theirs = did_of(name, MANIFEST_NAME)
    content = digest(path)
    if theirs in known:
        if catalogue.manifest(name).hash != manifest.hash:
            raise DatasetError(
                f"{catalogue.rucio.scope}:{name} has other files than the dataset here",
                where="Rucio",
                hint="A dataset never changes: give this one another name.",
            )
        # Of another machine, perhaps: it tells the same files.
        return {theirs: (known[theirs], path), **files}
    return {theirs: (DidFile(theirs, content.size, content.adler32), path), **files}


def _without_replica(
    files: dict[str, tuple[DidFile, Path]], rucio: Rucio
) -> list[tuple[DidFile, Path]]:
    """The files that are nowhere yet; one of other content under the same name is refused."""
    missing = []
    for name, (file, path) in files.items():
        try:
            known = rucio.file(name)
        except Absent:
            missing.append((file, path))
            continue
        if known != file:
            raise DatasetError(
                f"{rucio.scope}:{name} is another file: {known.size} bytes with adler32 "
                f"{known.adler32}, and {file.size} with {file.adler32} here",
                where="Rucio",
                hint="A file never changes in Rucio: give the dataset another name.",
            )
        if not rucio.locations([name]):
            missing.append((file, path))
    return missing


# --- writing


def _upload(
    missing: Sequence[tuple[DidFile, Path]], through: Sequence[Rse], rucio: Rucio, bars: Bars
) -> str:
    """Write files to the first RSE that takes them, and what it did not take to the next; its name."""
    refusals = []
    quotas = rucio.quotas()
    left = list(missing)
    for rse in through:
        if not rse.writable:
            refusals.append(f"{rse.name}: takes nothing now")
            continue
        total = sum(file.size for file, _ in left)
        if rse.name in quotas and quotas[rse.name].free < total:
            refusals.append(f"{rse.name}: our quota has no room for {decimal(total)} more")
            continue
        try:
            with bytes_bar(bars, f"Writing to {rse.name}", total) as advance:
                while left:
                    _bring_file(*left[0], rse.name, rucio, advance)
                    del left[0]
            return rse.name
        except CatalogueError as error:
            refusals.append(f"{rse.name}: {error.message}")
    raise CatalogueError(
        "\n  ".join(["no storage takes the files:", *refusals]),
        where="Rucio",
        hint="Name an RSE where your account may add files, e.g. a scratch disk: --upload-to RSE",
    )


def _bring_file(file: DidFile, path: Path, rse: str, rucio: Rucio, advance: Advance) -> None:
    urls = rucio.upload_urls(rse, file.name, "root")
    if not urls:
        raise CatalogueError("cannot be written to by the XRootD protocol")
    (url,) = urls
    written = _write(file, path, url, advance)
    try:
        rucio.register(rse, file)
    except Denied:
        if written:
            xrootd.remove(url)
        raise


def _write(file: DidFile, path: Path, url: str, advance: Advance) -> bool:
    """Write a file, unless it is there, and compare what is there then; whether it was written."""
    if _is_right(file, url):
        advance(file.size)
        return False
    for pause in (*PAUSES_S, None):
        seen = xrootd.write(path, url, advance)
        if not seen.trouble:
            break
        if seen.trouble not in (SILENT, BROKEN) or pause is None:
            raise CatalogueError(f"{url}: {seen.message}")
        time.sleep(pause)
    if not _is_right(file, url):
        xrootd.remove(url)
        raise CatalogueError(f"{url}: the storage has other bytes than it was given")
    return True


def _is_right(file: DidFile, url: str) -> bool:
    seen = doors.stat(url)
    if seen.size == file.size and not seen.adler32:
        seen = doors.read(url)
    return (seen.size, seen.adler32) == (file.size, file.adler32)


# --- asking, and following


def ask(manifest: Manifest, rses: Sequence[Rse], wish: Wish, rucio: Rucio) -> list[Standing]:
    """Have a rule of ours for each RSE; where there is one already, its end is moved.

    Raises:
        CatalogueError: Rucio does not answer.
    """
    ours = {rule.expression: rule for rule in rucio.rules(manifest.name)}
    return [_asked(manifest, rse, ours.get(rse.name), wish, rucio) for rse in rses]


def _asked(manifest: Manifest, rse: Rse, rule: Rule | None, wish: Wish, rucio: Rucio) -> Standing:
    standing = Standing(rse.site, rse.name, of=len(manifest.files) + 1)
    if rule is not None:
        try:
            rucio.prolong(rule, wish.lifetime_s)
        except Denied:
            pass  # it ends when it was to end
        return replace(standing, rule=rule.id)
    try:
        made = rucio.ask_for(
            manifest.name,
            rse.name,
            lifetime_s=wish.lifetime_s,
            comment=wish.comment,
            activity=wish.activity,
        )
    except Denied as error:
        return replace(standing, state=REFUSED, reason=error.message)
    return replace(standing, rule=made)


def keep(manifest: Manifest, rse: str, wish: Wish, rucio: Rucio) -> None:
    """Hold the copy that the others are made from for some time, where nobody asked for it."""
    kept_s = min(wish.lifetime_s or UPLOAD_KEPT_S, UPLOAD_KEPT_S)
    try:
        rucio.ask_for(
            manifest.name,
            rse,
            lifetime_s=kept_s,
            comment=f"{wish.comment} (source of the others)",
            activity=wish.activity,
        )
    except (Denied, Exists):
        pass  # it stays until the storage needs the room


def follow(
    standings: Sequence[Standing],
    rucio: Rucio,
    patience_s: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[Standing]]:
    """Look at rules until all replicas are there, or only stuck ones are left for too long.

    Stuck rules whose reason may pass are tried again, where the account may ask for that; Rucio
    itself does so from time to time.

    Args:
        standings: from :func:`ask`.
        rucio: whom to ask.
        patience_s: seconds without another file there, after which stuck replicas are left.
        sleep: waits.
        clock: seconds.

    Yields:
        All standings, after each look.
    """
    current = list(standings)
    began = progress = clock()
    boosts = _Boosts(rucio, clock)
    while True:
        before = current
        current = [_look(standing, rucio) for standing in before]
        yield current
        now = clock()
        if _there(current) != _there(before):
            progress = now
        states = {standing.state for standing in current}
        if not states & {WAITING, COPYING, STUCK}:
            return
        if not states & {WAITING, COPYING} and now - progress >= patience_s:
            return
        boosts.ask([standing for standing in current if standing.state == STUCK])
        sleep(min(LOOK_LATER_S, max(LOOK_S, (now - began) / 20)))


def _there(standings: Sequence[Standing]) -> list[int]:
    return [standing.files for standing in standings]


def _look(standing: Standing, rucio: Rucio) -> Standing:
    if standing.state == REFUSED:
        return standing
    try:
        rule = rucio.rule(standing.rule)
    except Absent:
        return replace(standing, state=REFUSED, reason="its rule is no more")
    state, reason = _state(rule)
    return replace(standing, state=state, files=rule.ok, reason=reason)


def _state(rule: Rule) -> tuple[str, str]:
    if rule.state == "OK":
        return HERE, ""
    if rule.state == "STUCK":
        return STUCK, rule.error or "Rucio does not say why"
    if rule.state in ("SUSPENDED", "WAITING_APPROVAL"):
        return STUCK, f"the rule is {rule.state.lower().replace('_', ' for ')}"
    return (COPYING if rule.copying else WAITING), ""


class _Boosts:
    """Asks for another try of stuck rules now and then, as long as we may."""

    def __init__(self, rucio: Rucio, clock: Callable[[], float]) -> None:
        self._rucio = rucio
        self._clock = clock
        self._next: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._allowed = True

    def ask(self, stuck: Sequence[Standing]) -> None:
        now = self._clock()
        for standing in stuck:
            lasting = any(word in standing.reason.lower() for word in _LASTING)
            if lasting or not self._allowed or now < self._next.get(standing.rule, now):
                continue
            pause = self._pauses.get(standing.rule, BOOST_S)
            self._next[standing.rule] = now + pause
            self._pauses[standing.rule] = 2 * pause
            try:
                self._rucio.boost(standing.rule)
            except Denied:
                self._allowed = False
