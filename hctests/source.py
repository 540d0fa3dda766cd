"""Tests from Git: ``URL@REF:path`` to a :class:`PinnedTest`.

A bare path means the working tree, a bare name a shipped test.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from treehammer.collectors.files import locked
from treehammer.config import Settings
from treehammer.errors import SourceError, did_you_mean
from treehammer.hctests import schema
from treehammer.hctests.address import Address, masked
from treehammer.hctests.definition import PinnedTest
from treehammer.hctests.repository import (
    EXECUTABLE,
    LINK,
    Entry,
    Repository,
    mirrored,
    object_id,
)
from treehammer.hctests.schema import FILE_NAME

SHIPPED = Path(__file__).resolve().parent

#: A test travels with each of its jobs; a folder above this many bytes is a slip.
MAX_BYTES = 100_000_000

#: The last @ that is followed by a ref and a colon parts the repository from the rest.
_SPEC = re.compile(r"(?P<url>.+)@(?P<ref>[^@:]+):(?P<path>.*)", re.DOTALL)


def pin(spec: str, settings: Settings) -> PinnedTest:
    """Fetch a test, pin its commit, hash its files.

    Args:
        spec: ``URL@REF:path`` (https, http, ssh, ``user@host:``, file, or the path of a local
            repository; any branch, tag, full or short commit), the path of a folder, or the name of
            a shipped test.
        settings: ``git_dir`` keeps mirrors and the files of pinned tests.

    Raises:
        SourceError: the repository, ref or path cannot be had.
        treehammer.errors.DefinitionError: the test has mistakes.
    """
    folder = _existing(spec)
    if folder:
        return _working_tree(folder)
    match = _SPEC.fullmatch(spec)
    if match:
        return _committed(match["url"], match["ref"], match["path"], settings.git_dir)
    if spec in shipped():
        return _working_tree(SHIPPED / spec)
    raise SourceError(
        "there is neither such a folder nor such a shipped test",
        where=masked(spec),
        hint=(did_you_mean(spec, shipped()) or f"Shipped: {', '.join(shipped())}. ")
        + "A test in a repository is written URL@REF:path.",
    )


def shipped() -> tuple[str, ...]:
    """Names of the tests that come with Treehammer."""
    return tuple(sorted(path.parent.name for path in SHIPPED.glob(f"*/{FILE_NAME}")))


def find(where: str, settings: Settings) -> tuple[str, ...]:
    """The spec of every test in a folder, or in a repository given as ``URL@REF:`` or with a folder.

    Raises:
        SourceError: the folder, repository or ref cannot be had.
    """
    folder = _existing(where)
    if folder:
        return tuple(str(path) for path in _folders_below(folder))
    match = _SPEC.fullmatch(where)
    if not match:
        raise SourceError(
            "is neither a folder nor URL@REF:", where=masked(where), hint="Example: .@HEAD:"
        )
    repository, commit = _opened(match["url"], match["ref"], settings.git_dir)
    below = _inside(match["path"], masked(where))
    stem = f"{match['url']}@{match['ref']}:"
    return tuple(
        stem + path
        for path in repository.tests(commit)
        if below == "." or PurePosixPath(path).is_relative_to(below)
    )


def _existing(spec: str) -> Path | None:
    path = Path(spec).expanduser()
    try:
        if path.name == FILE_NAME and path.is_file():
            return path.resolve().parent
        return path.resolve() if path.is_dir() else None
    except OSError:  # too long, or a NUL: no path at all
        return None


def _folders_below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if FILE_NAME in names:
            yield Path(place)


def _working_tree(folder: Path) -> PinnedTest:
    """The test in a folder as it is now."""
    definition = schema.load(folder)
    contents = {name: (folder / name).read_bytes() for name in definition.files}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    try:
        repository = Repository.local(folder)
        outside = repository.ignores(folder / FILE_NAME)
    except SourceError:
        outside = True
    if outside:
        return PinnedTest(definition, str(folder), "", "", False, ".", folder, hashes)
    path = folder.relative_to(Path(repository.shown).resolve()).as_posix()
    commit = repository.head()
    dirty = _differs(repository, commit, path, folder, contents)
    return PinnedTest(definition, repository.shown, "", commit, dirty, path, folder, hashes)


def _differs(
    repository: Repository, commit: str, path: str, folder: Path, contents: Mapping[str, bytes]
) -> bool:
    """Whether any file of the test is not what the commit has; other files play no part."""
    if not commit:
        return True
    try:
        entries = {entry.name: entry for entry in _entries(repository, commit, path)}
    except SourceError:  # the folder is in no commit yet
        return True
    return any(
        name not in entries
        or object_id(content, entries[name].id) != entries[name].id
        or (entries[name].mode == EXECUTABLE) != os.access(folder / name, os.X_OK)
        for name, content in contents.items()
    )


def _committed(url: str, ref: str, path: str, git_dir: Path) -> PinnedTest:
    repository, commit = _opened(url, ref, git_dir)
    inside = _inside(path, f"{repository.shown}@{ref}:{path}")
    folder = _exported(repository, commit, inside, git_dir)
    shown = f"{repository.shown}@{ref}:{(PurePosixPath(inside) / FILE_NAME).as_posix()}"
    definition = schema.load(folder, shown=shown)
    hashes = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in definition.files
    }
    return PinnedTest(definition, repository.shown, ref, commit, False, inside, folder, hashes)


def _opened(url: str, ref: str, git_dir: Path) -> tuple[Repository, str]:
    local = Path(url).expanduser()
    if local.exists():
        repository = Repository.local(local.resolve())
        return repository, repository.commit(ref)
    address = Address.of(url)
    if address is None or address.url.startswith("-"):
        raise SourceError(
            "there is no such repository",
            where=masked(url),
            hint="A test in a repository is written URL@REF:path, e.g. .@HEAD:hctests/ttree-read.",
        )
    return mirrored(address, ref, git_dir)


def _inside(path: str, where: str) -> str:
    pure = PurePosixPath(path or ".")
    if pure.is_absolute() or ".." in pure.parts or not path.isprintable():
        raise SourceError(
            "the path leaves the repository", where=where, hint="Give it from the repository's top."
        )
    return str(pure.parent if pure.name == FILE_NAME else pure)


def _exported(repository: Repository, commit: str, path: str, git_dir: Path) -> Path:
    """A read-only copy of a folder of a commit, made once and checked at each use."""
    entries = _entries(repository, commit, path)
    where = f"{repository.shown}@{commit[:12]}:{path}"
    if not any(entry.name == FILE_NAME for entry in entries):
        hint = repository.tests_near(commit, path)
        raise SourceError(f"that folder holds no {FILE_NAME}", where=where, hint=hint)
    size = sum(entry.size for entry in entries)
    if size > MAX_BYTES:
        raise SourceError(
            f"the test's folder holds {size / 1e6:.0f} MB; each job would carry it",
            where=where,
            hint=f"Keep it below {MAX_BYTES / 1e6:.0f} MB: data belong into a dataset.",
        )
    name = f"{commit}-{hashlib.sha256(path.encode()).hexdigest()[:12]}"
    home = git_dir / "tests" / name
    folder = home / (PurePosixPath(path).name or "test")
    with locked(home.with_suffix(".lock")):
        if not _intact(folder, entries):
            aside = Path(tempfile.mkdtemp(prefix=f".{name[:12]}-", dir=home.parent))
            try:
                _write(repository, entries, aside / folder.name, where)
                shutil.rmtree(home, ignore_errors=True)
                aside.chmod(0o755)
                aside.rename(home)
            except OSError as error:
                raise SourceError(
                    f"cannot be written to the cache ({error.strerror})", where=str(home)
                ) from error
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return folder


def _entries(repository: Repository, commit: str, path: str) -> tuple[Entry, ...]:
    """The files of a test's folder; a link to a file of a test beside it stands for that file."""
    entries = repository.files(commit, path)
    outer: dict[str, str] = {}
    for entry in entries:
        if entry.mode == LINK and path != ".":
            text = os.fsdecode(repository.content(entry))
            target = posixpath.normpath(posixpath.join(path, posixpath.dirname(entry.name), text))
            if not PurePosixPath(target).is_relative_to(path):
                outer[entry.name] = target
    if not outer:
        return entries
    beside = PurePosixPath(path).parent
    there = {str(beside / entry.name): entry for entry in repository.files(commit, str(beside))}

    def followed(entry: Entry) -> Entry:
        target = PurePosixPath(outer.get(entry.name, ""))
        found = there.get(str(target))
        if found is None or found.mode == LINK:
            return entry
        neighbour = beside / target.relative_to(beside).parts[0] / FILE_NAME
        return replace(found, name=entry.name) if str(neighbour) in there else entry

    return tuple(followed(entry) for entry in entries)


def _write(repository: Repository, entries: Sequence[Entry], folder: Path, where: str) -> None:
    folder.mkdir()
    links = [entry for entry in entries if entry.mode == LINK]
    for entry in entries:
        target = folder / entry.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.mode != LINK:
            target.write_bytes(repository.content(entry))
            target.chmod(0o555 if entry.mode == EXECUTABLE else 0o444)
    # Links come last, so that none of them is written through.
    for entry in links:
        (folder / entry.name).symlink_to(os.fsdecode(repository.content(entry)))
    for entry in links:
        if not Path(os.path.realpath(folder / entry.name)).is_relative_to(folder.resolve()):
            raise SourceError(
                f"the link {entry.name!r} leads out of the test's folder",
                where=where,
                hint="It may lead to a file of a test beside this one; else put a copy here.",
            )


def _intact(folder: Path, entries: Sequence[Entry]) -> bool:
    """Whether the copy holds exactly the commit's files."""
    there = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }
    return there == {entry.name for entry in entries} and all(
        _matches(folder / entry.name, entry) for entry in entries
    )


def _matches(path: Path, entry: Entry) -> bool:
    if path.is_symlink() or entry.mode == LINK:
        if not path.is_symlink() or entry.mode != LINK:
            return False
        return object_id(os.fsencode(path.readlink()), entry.id) == entry.id
    return object_id(path.read_bytes(), entry.id) == entry.id
