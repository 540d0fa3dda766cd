"""Tests from Git: resolution of ``URL@REF:path`` to a :class:`PinnedTest`.

A bare path is a working tree, a bare name a shipped test. On the axis ``commit``, one job compares
commits of the same test, each with its own payload.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from treehammer.collectors.http_requests import mask_credentials
from treehammer.config import Settings
from treehammer.errors import DefinitionError, NothingToDoError, SourceError, suggest_word
from treehammer.hctests.definition import definition_loader
from treehammer.hctests.definition.model import (
    COMMIT_AXIS,
    TEST_FILE_NAME,
    WORKING_TREE,
    Scalar,
    format_commit,
    identify_commit,
)
from treehammer.hctests.definition.test_identity import PinnedTest, compute_test_hash
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.hctests.git_repository import (
    EXECUTABLE_MODE,
    LINK_MODE,
    GitFile,
    Repository,
    RepositoryAddress,
    compute_object_id,
    hold_cache_lock,
    list_remote_refs,
    update_mirror,
)

SHIPPED_TESTS_FOLDER = Path(__file__).resolve().parent

#: Maximum bytes of a test's folder, which is sent with each job.
MAX_TEST_BYTES = 100_000_000

#: The last @ that is followed by a ref and a colon separates the repository from the rest.
_SPEC_PATTERN = re.compile(r"(?P<url>.+)@(?P<ref>[^@:]+):(?P<path>.*)", re.DOTALL)

#: Tables of test.toml whose replaced keys hold for every commit.
_OVERRIDDEN_TABLES = ("settings.", "environment.")


class EqualCommitsError(NothingToDoError):
    """Two compared commits hold the same test."""


#: Typed values by axis or key; see :func:`.definition_loader.load_definition`.
_TypedAxes = Mapping[str, Sequence[str]]
_NO_OVERRIDES: Mapping[str, Any] = MappingProxyType({})


def pin_test(
    spec: str,
    settings: Settings,
    axes: _TypedAxes = _NO_OVERRIDES,
    overrides: Mapping[str, str] = _NO_OVERRIDES,
) -> PinnedTest:
    """Fetch a test, pin its commit, hash its files.

    Args:
        spec: ``URL@REF:path`` (https, http, ssh, ``user@host:``, file, or the path of a local
            repository; any branch, tag, full or short commit), the path of a folder, or the name of
            a shipped test.
        settings: ``git_dir`` contains mirrors and the files of pinned tests.
        axes: axis -> values as typed (``-P``).
        overrides: key of [test] -> value as typed (``-S``).

    Raises:
        SourceError: the repository, ref or path is missing or cannot be fetched.
        DefinitionError: the test or an override has mistakes.
    """
    folder = _find_existing_folder(spec)
    if folder is None and spec in list_shipped_tests():
        folder = SHIPPED_TESTS_FOLDER / spec
    if folder:
        return _pin_working_tree(folder, axes, overrides)
    match = _SPEC_PATTERN.fullmatch(spec)
    if match:
        address = match["url"], match["ref"], match["path"]
        return _pin_commit(*address, settings.git_dir, axes, overrides)
    raise SourceError(
        "no folder or shipped test of this name",
        where=mask_credentials(spec),
        hint=(
            suggest_word(spec, list_shipped_tests())
            or f"Shipped: {', '.join(list_shipped_tests())}. "
        )
        + "Name a test in a repository as URL@REF:path.",
    )


def load_pinned_test(
    spec: str, axes: Mapping[str, tuple[str, ...]], overrides: Mapping[str, str], settings: Settings
) -> PinnedTest:
    """Pin a test (see :func:`pin_test`) and apply ``-P`` and ``-S``.

    Raises:
        SourceError: the test cannot be fetched.
        EqualCommitsError: two values of the axis ``commit`` hold the same test.
        DefinitionError: the test or an override has mistakes.
    """
    pinned = pin_test(spec, settings, axes, overrides)
    return pin_commits(pinned, spec, overrides, settings)


def pin_commits(
    pinned: PinnedTest, spec: str, overrides: Mapping[str, str], settings: Settings
) -> PinnedTest:
    """Pin a test at each value of its axis ``commit``, if it has this axis.

    Payload, files, libraries, settings, variables and own metrics are those of each commit; all else
    is that of ``pinned``. The values of the axis become those of :func:`.identify_commit`.

    Args:
        pinned: the test, whose definition states the shared part.
        spec: the specification by which it was pinned.
        overrides: key of [test] -> value as typed; those of settings and variables hold for all.
        settings: ``git_dir`` contains mirrors and the files of pinned tests.

    Raises:
        SourceError: a commit, or the test in it, does not exist.
        DefinitionError: the test has mistakes at a commit, lacks a file that is read, or changes a unit.
        EqualCommitsError: two values hold the same test.
    """
    texts = tuple(map(str, pinned.definition.axes.get(COMMIT_AXIS, ())))
    if not texts:
        return pinned
    values: dict[str, str] = {}
    commits: dict[str, PinnedTest] = {}
    tests: dict[str, str] = {}
    for text in texts:
        at_commit = _pin_value(pinned, spec, text, overrides, settings)
        test_hash = compute_test_hash(at_commit)
        if test_hash in tests:
            raise EqualCommitsError(
                f"{_describe_value(tests[test_hash])} and {_describe_value(text)} hold the same "
                "payload, files and settings",
                where=pinned.definition.test.name,
                hint="Choose commits that differ in this test.",
            )
        tests[test_hash] = text
        values[text] = identify_commit(at_commit.commit, at_commit.dirty, test_hash)
        commits[values[text]] = at_commit
    return replace(pinned, definition=_resolve_values(pinned.definition, values), commits=commits)


def _pin_value(
    pinned: PinnedTest, spec: str, text: str, overrides: Mapping[str, str], settings: Settings
) -> PinnedTest:
    """Pin the test at one value of the axis, with the definitions that all commits share."""
    where = f"{pinned.definition.test.name}: axis {COMMIT_AXIS}"
    if not pinned.commit:
        raise SourceError(
            "the test is not committed in a Git repository",
            where=where,
            hint="Commit it, or name it as URL@REF:path.",
        )
    if text == WORKING_TREE and pinned.ref:
        raise SourceError(
            f"a test named by its commit has no working tree ({WORKING_TREE!r})",
            where=where,
            hint="Name the test by its folder.",
        )
    shared = {key: value for key, value in overrides.items() if key.startswith(_OVERRIDDEN_TABLES)}
    if text == WORKING_TREE:
        at_commit = pin_test(str(pinned.folder), settings, {}, shared)
    else:
        at_commit = pin_at_commit(pinned, spec, text, settings, shared)
    merged = _merge_definitions(pinned.definition, at_commit.definition)
    for value in merged.axis_values("branches"):
        if value.startswith("@") and value[1:] not in merged.test.files:
            raise DefinitionError(
                f"there is no file {value[1:]!r}, which lists branches",
                where=f"{_describe_value(text)}: {pinned.path}",
                hint="Give branches that both commits have, -P branches=...",
            )
    for name, metric in merged.metrics.items():
        unit = pinned.definition.metrics.get(name, metric).unit
        if metric.unit != unit:
            raise DefinitionError(
                f"the metric {name} is in {metric.unit}, and in {unit} in the named test",
                where=f"{_describe_value(text)}: {pinned.path}",
                hint="Numbers of two units have no ratio: give the new one another name.",
            )
    return replace(at_commit, definition=merged)


def _merge_definitions(common: TestDefinition, at_commit: TestDefinition) -> TestDefinition:
    """Combine the definition shared by all commits with that of one commit."""
    keys = {key: getattr(at_commit.test, key) for key in ("payload", "files", "load", "imports")}
    tables = ("settings", "environment", "metrics", "build")
    replaced = {table: getattr(at_commit, table) for table in tables}
    return common.replace(test=common.test.replace(**keys), **replaced)


def _resolve_values(definition: TestDefinition, values: Mapping[str, str]) -> TestDefinition:
    def resolve(rule: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        text = str(rule.get(COMMIT_AXIS, ""))
        return {**rule, COMMIT_AXIS: values[text]} if text in values else rule

    return definition.replace(
        matrix=definition.matrix.replace_axis(COMMIT_AXIS, [*values.values()]),
        exclude=tuple(map(resolve, definition.exclude)),
        include=tuple(map(resolve, definition.include)),
    )


def _describe_value(text: str) -> str:
    return "the working tree" if text == WORKING_TREE else f"commit {format_commit(text)}"


def pin_at_commit(
    pinned: PinnedTest,
    spec: str,
    ref: str,
    settings: Settings,
    overrides: Mapping[str, str] = _NO_OVERRIDES,
) -> PinnedTest:
    """Pin a test at another commit of its repository.

    Args:
        pinned: the test.
        spec: the specification by which it was pinned, which may contain credentials.
        ref: branch, tag, full or short commit.
        settings, overrides: as for :func:`pin_test`.

    Raises:
        SourceError: the test is not in a repository, or the ref or its folder is missing.
        DefinitionError: the test has mistakes there.
    """
    match = _SPEC_PATTERN.fullmatch(spec) if not _find_existing_folder(spec) else None
    url = match["url"] if match else pinned.repository
    return _pin_commit(url, ref, pinned.path, settings.git_dir, {}, overrides)


def list_shipped_tests() -> tuple[str, ...]:
    """List the names of the tests that come with Treehammer."""
    return tuple(
        sorted(path.parent.name for path in SHIPPED_TESTS_FOLDER.glob(f"*/{TEST_FILE_NAME}"))
    )


def list_test_names(_settings: Settings) -> tuple[str, ...]:
    """List the names that the shell proposes for a test."""
    return list_shipped_tests()


def list_refs(url: str, settings: Settings) -> dict[str, str]:
    """List branches and tags of a repository, remote or local: full name -> commit.

    Raises:
        SourceError: there is no such repository, or it does not answer.
    """
    local = Path(url).expanduser()
    if local.exists():
        return Repository.open_local(local.resolve()).list_refs()
    return list_remote_refs(_parse_address(url), settings.git_dir)


def find_tests(where: str, settings: Settings) -> tuple[str, ...]:
    """List the specs of all tests in a folder, or in a repository given as ``URL@REF:[FOLDER]``.

    Raises:
        SourceError: the folder, repository or ref is missing or cannot be fetched.
    """
    existing_folder = _find_existing_folder(where)
    if existing_folder:
        tests = []
        for place, folders, names in os.walk(existing_folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            if TEST_FILE_NAME in names:
                tests.append(place)
        return tuple(tests)
    match = _SPEC_PATTERN.fullmatch(where)
    if not match:
        raise SourceError(
            "neither a folder nor URL@REF:",
            where=mask_credentials(where),
            hint="Example: .@HEAD:. To measure a file: treehammer read FILE.",
        )
    repository, commit = open_repository(match["url"], match["ref"], settings.git_dir)
    below = _check_inside_repository(match["path"], mask_credentials(where))
    stem = f"{match['url']}@{match['ref']}:"
    return tuple(
        stem + path
        for path in repository.list_tests(commit)
        if below == "." or PurePosixPath(path).is_relative_to(below)
    )


def _find_existing_folder(spec: str) -> Path | None:
    path = Path(spec).expanduser()
    try:
        if path.name == TEST_FILE_NAME and path.is_file():
            return path.resolve().parent
        return path.resolve() if path.is_dir() else None
    except OSError:  # not a path: too long, or with a NUL
        return None


def _pin_working_tree(folder: Path, axes: _TypedAxes, overrides: Mapping[str, str]) -> PinnedTest:
    """Pin the test in a folder in its present state."""
    definition = definition_loader.load_definition(folder, axes=axes, settings=overrides)
    contents = {name: (folder / name).read_bytes() for name in definition.test.files}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    try:
        repository = Repository.open_local(folder)
        outside = repository.ignores(folder / TEST_FILE_NAME)
    except SourceError:
        outside = True
    if outside:
        return PinnedTest(definition, str(folder), "", "", False, ".", folder, hashes)
    path = folder.relative_to(Path(repository.display_name).resolve()).as_posix()
    commit = repository.head_commit()
    dirty = _differs_from_commit(repository, commit, path, folder, contents)
    return PinnedTest(definition, repository.display_name, "", commit, dirty, path, folder, hashes)


def _differs_from_commit(
    repository: Repository, commit: str, path: str, folder: Path, contents: Mapping[str, bytes]
) -> bool:
    """Return whether any file of the test differs from the commit; other files are ignored."""
    if not commit:
        return True
    try:
        entries = {entry.name: entry for entry in _list_test_files(repository, commit, path)}
    except SourceError:  # the folder is not committed yet
        return True
    return any(
        name not in entries
        or compute_object_id(content, entries[name].id) != entries[name].id
        or (entries[name].mode == EXECUTABLE_MODE) != os.access(folder / name, os.X_OK)
        for name, content in contents.items()
    )


def _pin_commit(
    url: str,
    ref: str,
    path: str,
    git_dir: Path,
    axes: _TypedAxes,
    overrides: Mapping[str, str],
) -> PinnedTest:
    repository, commit = open_repository(url, ref, git_dir)
    inside = _check_inside_repository(path, f"{repository.display_name}@{ref}:{path}")
    folder = _export_folder(repository, commit, inside, git_dir)
    display_name = (
        f"{repository.display_name}@{ref}:{(PurePosixPath(inside) / TEST_FILE_NAME).as_posix()}"
    )
    definition = definition_loader.load_definition(
        folder, name=display_name, axes=axes, settings=overrides
    )
    hashes = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in definition.test.files
    }
    return PinnedTest(
        definition, repository.display_name, ref, commit, False, inside, folder, hashes
    )


def open_repository(url: str, ref: str, git_dir: Path) -> tuple[Repository, str]:
    """Open a repository, or update its mirror, and resolve a ref to its commit.

    Raises:
        SourceError: there is no such repository or ref.
        SourceUnreachableError: the remote does not answer.
    """
    local = Path(url).expanduser()
    if local.exists():
        repository = Repository.open_local(local.resolve())
        return repository, repository.resolve_commit(ref)
    return update_mirror(_parse_address(url), ref, git_dir)


def _parse_address(url: str) -> RepositoryAddress:
    address = RepositoryAddress.from_url(url)
    if address is None or address.url.startswith("-"):
        raise SourceError(
            "no such repository",
            where=mask_credentials(url),
            hint="Name a test in a repository as URL@REF:path, e.g. .@HEAD:hctests/ttree-read.",
        )
    return address


def _check_inside_repository(path: str, where: str) -> str:
    pure = PurePosixPath(path or ".")
    if pure.is_absolute() or ".." in pure.parts or not path.isprintable():
        raise SourceError(
            "the path leaves the repository", where=where, hint="Name it from the repository's top."
        )
    return str(pure.parent if pure.name == TEST_FILE_NAME else pure)


def _export_folder(repository: Repository, commit: str, path: str, git_dir: Path) -> Path:
    """Export a folder of a commit as a read-only copy, verified at each use."""
    entries = _list_test_files(repository, commit, path)
    where = f"{repository.display_name}@{commit[:12]}:{path}"
    if not any(entry.name == TEST_FILE_NAME for entry in entries):
        hint = repository.suggest_tests(commit, path)
        raise SourceError(f"that folder contains no {TEST_FILE_NAME}", where=where, hint=hint)
    size = sum(entry.size for entry in entries)
    if size > MAX_TEST_BYTES:
        raise SourceError(
            f"the test's folder contains {size / 1e6:.0f} MB, which are sent with each job",
            where=where,
            hint=f"Keep it below {MAX_TEST_BYTES / 1e6:.0f} MB: move data to a dataset.",
        )
    name = f"{commit}-{hashlib.sha256(path.encode()).hexdigest()[:12]}"
    home = git_dir / "tests" / name
    folder = home / (PurePosixPath(path).name or "test")
    with hold_cache_lock(home.with_suffix(".lock")):
        if not _is_intact(folder, entries):
            aside = Path(tempfile.mkdtemp(prefix=f".{name[:12]}-", dir=home.parent))
            try:
                _write_files(repository, entries, aside / folder.name, where)
                shutil.rmtree(home, ignore_errors=True)
                aside.chmod(0o755)
                aside.rename(home)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return folder


def _list_test_files(repository: Repository, commit: str, path: str) -> tuple[GitFile, ...]:
    """List the files of a test's folder; links to files of a test beside it are followed."""
    entries = repository.list_files(commit, path)
    targets = _find_outer_links(repository, entries, path)
    if not targets:
        return entries
    parent = PurePosixPath(path).parent
    files = {
        str(parent / entry.name): entry for entry in repository.list_files(commit, str(parent))
    }

    def follow(entry: GitFile) -> GitFile:
        target = PurePosixPath(targets.get(entry.name, ""))
        file = files.get(str(target))
        if file is None or file.mode == LINK_MODE:
            return entry
        neighbor = parent / target.relative_to(parent).parts[0] / TEST_FILE_NAME
        return replace(file, name=entry.name) if str(neighbor) in files else entry

    return tuple(follow(entry) for entry in entries)


def _find_outer_links(
    repository: Repository, entries: Sequence[GitFile], path: str
) -> dict[str, str]:
    """Find links out of a test's folder: name -> target in the repository."""
    if path == ".":
        return {}
    targets: dict[str, str] = {}
    for entry in entries:
        if entry.mode == LINK_MODE:
            text = os.fsdecode(repository.read_content(entry))
            target = posixpath.normpath(posixpath.join(path, posixpath.dirname(entry.name), text))
            if not PurePosixPath(target).is_relative_to(path):
                targets[entry.name] = target
    return targets


def _write_files(
    repository: Repository, entries: Sequence[GitFile], folder: Path, where: str
) -> None:
    folder.mkdir()
    links = [entry for entry in entries if entry.mode == LINK_MODE]
    for entry in entries:
        target = folder / entry.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.mode != LINK_MODE:
            target.write_bytes(repository.read_content(entry))
            target.chmod(0o555 if entry.mode == EXECUTABLE_MODE else 0o444)
    # Links come last, so that no file is written through one.
    for entry in links:
        (folder / entry.name).symlink_to(os.fsdecode(repository.read_content(entry)))
    for entry in links:
        if not Path(os.path.realpath(folder / entry.name)).is_relative_to(folder.resolve()):
            raise SourceError(
                f"the link {entry.name!r} leads out of the test's folder",
                where=where,
                hint="Link to a file of a test beside this one, or copy the file.",
            )


def _is_intact(folder: Path, entries: Sequence[GitFile]) -> bool:
    """Return whether the copy contains exactly the commit's files."""
    names = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }
    if names != {entry.name for entry in entries}:
        return False
    for entry in entries:
        path = folder / entry.name
        if path.is_symlink() != (entry.mode == LINK_MODE):
            return False
        content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        if compute_object_id(content, entry.id) != entry.id:
            return False
    return True
