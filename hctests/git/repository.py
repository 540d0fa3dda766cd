"""The one module that talks to Git: finds repositories, pins refs, reads trees and blobs.

Nothing is ever checked out: files are read from Git's objects, so that no filter, hook, attribute or
link of a foreign repository has a say.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Without this a machine that lacks Git could not even print the help of any verb.
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")

import git
from git.exc import GitCommandError, GitCommandNotFound, GitError

from treehammer.collectors.shared_files import hold_lock
from treehammer.errors import SourceError, SourceUnreachableError
from treehammer.hctests.git.repository_address import (
    RESPONSE_TIMEOUT_S,
    RepositoryAddress,
    mask_credentials,
)

#: Seconds until a download is given up.
FETCH_TIMEOUT_S = 1800

_FULL_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHORT_HASH = re.compile(r"[0-9a-f]{4,64}")
LINK_MODE, SUBMODULE_MODE, EXECUTABLE_MODE = "120000", "160000", "100755"


@dataclass(frozen=True)
class GitFile:
    """One file of a commit: ``name`` relative to the folder asked for, Git's mode and object id."""

    name: str
    mode: str
    id: str
    size: int


def compute_object_id(content: bytes, like: str) -> str:
    """Git's id of a blob, by the hash (SHA-1 or SHA-256) that the id ``like`` was made with."""
    algorithm = "sha1" if len(like) == 40 else "sha256"
    return hashlib.new(algorithm, b"blob %d\0" % len(content) + content).hexdigest()


class Repository:
    """A repository on this machine: someone's own, or our mirror of a remote one.

    Args:
        directory: the Git directory.
        shown: what messages and measurements call it; holds no credentials.
    """

    def __init__(self, directory: Path, shown: str) -> None:
        self.directory = directory
        self.shown = shown
        self._git = git.Git(str(directory))

    @classmethod
    def open_local(cls, path: Path) -> Repository:
        """The repository that a folder is, or lies in.

        Raises:
            SourceError: there is none.
        """
        try:
            with git.Repo(path, search_parent_directories=True) as repo:
                return cls(Path(repo.git_dir), str(repo.working_tree_dir or repo.git_dir))
        except (GitError, OSError) as error:
            raise SourceError(
                "is no Git repository",
                where=str(path),
                hint="A test in a repository is written URL@REF:path, one outside Git as its folder.",
            ) from error

    def resolve_commit(self, ref: str) -> str:
        """Full hash of the commit that a branch, tag, full or short hash means.

        Raises:
            SourceError: there is no such commit, or more than one.
        """
        try:
            return self._run_git("rev-parse", "--verify", f"{_is_valid_ref(ref)}^{{commit}}")
        except GitCommandError as error:
            if "ambiguous" in str(error.stderr):
                raise SourceError(
                    f"more than one commit starts with {ref!r}",
                    where=self.shown,
                    hint="Give more digits.",
                ) from error
            names = self._read_git("for-each-ref", "--format=%(refname)").splitlines()
            raise _unknown_ref_error(ref, names, self.shown) from error

    def head_commit(self) -> str:
        """Full hash of HEAD; '' where nothing was committed yet."""
        try:
            return self._run_git("rev-parse", "--verify", "HEAD^{commit}")
        except GitCommandError:
            return ""

    def list_files(self, commit: str, path: str) -> tuple[GitFile, ...]:
        """Every file below a folder of a commit.

        Raises:
            SourceError: there is no such folder, or it cannot be taken out of the repository.
        """
        where = f"{self.shown}@{commit[:12]}:{path}"
        self._require_folder(commit, path, where)
        listing = self._read_git(
            "ls-tree", "-r", "-z", "-l", "--full-tree", f"{commit}:{_find_repository_root(path)}"
        )
        entries = tuple(_parse_entry(line) for line in listing.split("\0") if line)
        for entry in entries:
            if entry.mode == SUBMODULE_MODE:
                raise SourceError(
                    f"holds a submodule ({entry.name}); its files are in another repository",
                    where=where,
                    hint="Put the files into the test's folder.",
                )
            parts = entry.name.split("/")
            if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
                raise SourceError(f"holds a file with the unsafe name {entry.name!r}", where=where)
        return entries

    def list_tests(self, commit: str) -> tuple[str, ...]:
        """The folders of a commit that hold a test.toml."""
        names = self._read_git("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
        found = (PurePosixPath(name) for name in names.split("\0"))
        return tuple(sorted(str(name.parent) for name in found if name.name == "test.toml"))

    def suggest_tests(self, commit: str, path: str) -> str:
        """A sentence that lists the tests of a commit, those with similar paths first."""
        tests = self.list_tests(commit)
        near = difflib.get_close_matches(path, tests, n=3)
        listed = [*near, *(test for test in tests if test not in near)]
        more = f" and {len(listed) - 10} more" if len(listed) > 10 else ""
        return f"Tests there: {', '.join(listed[:10])}{more}." if listed else "It holds no test."

    def read_content(self, entry: GitFile) -> bytes:
        """The content of a file; for a link, where it leads."""
        try:
            content: bytes = self._git.cat_file(
                "blob",
                entry.id,
                env=self._git_environment(),
                stdout_as_string=False,
                strip_newline_in_stdout=False,
            )
        except GitCommandError as error:
            raise self._damage_error(error) from error
        return content

    def ignores(self, path: Path) -> bool:
        """Whether the working tree's .gitignore names the path and no commit holds it."""
        try:
            self._run_git("check-ignore", "--quiet", str(path), GIT_WORK_TREE=self.shown)
        except GitCommandError:
            return False
        return True

    def _require_folder(self, commit: str, path: str, where: str) -> None:
        prefix = PurePosixPath()
        for part in PurePosixPath(_find_repository_root(path)).parts:
            prefix /= part
            line = self._read_git("ls-tree", "-z", "--full-tree", commit, "--", str(prefix))
            mode, kind = [*line.split(" ", 2), "", ""][:2]
            if kind == "tree":
                continue
            reason = {
                "": "there is no such folder in that commit",
                "commit": f"{prefix} is a submodule: name its own repository",
            }.get(kind, f"{prefix} is a file, not a folder")
            if mode == LINK_MODE:
                reason = f"{prefix} is a symbolic link: give the folder it leads to"
            raise SourceError(reason, where=where, hint=self.suggest_tests(commit, path))

    def _git_environment(self, **more: str) -> dict[str, str]:
        # Inside a Git hook GIT_DIR names another repository.
        return {"GIT_DIR": str(self.directory), **more}

    def _run_git(self, *arguments: str, timeout: float | None = None, **environment: str) -> str:
        """What Git prints; a GitCommandError where it fails is for the caller to explain."""
        try:
            printed = self._git.execute(
                ["git", *arguments],
                env=self._git_environment(**environment),
                kill_after_timeout=timeout,
            )
        except GitCommandNotFound as error:
            raise SourceError("the command 'git' is missing", hint="Install Git.") from error
        return str(printed)

    def _read_git(self, *arguments: str) -> str:
        """What Git prints where only a damaged repository makes it fail."""
        try:
            return self._run_git(*arguments)
        except GitCommandError as error:
            raise self._damage_error(error) from error

    def _damage_error(self, error: GitCommandError) -> SourceError:
        why = _extract_reason(error)
        return SourceError(
            f"Git cannot read the repository: {why}",
            where=self.shown,
            hint=f"'git fsck' in {self.directory} tells more.",
        )

    def _has_commit(self, commit: str) -> bool:
        try:
            self._run_git("cat-file", "-e", f"{commit}^{{commit}}")
        except GitCommandError:
            return False
        return True

    def _fetch(self, address: RepositoryAddress, *refspecs: str) -> None:
        command = ["fetch", "--quiet", "--no-tags", "--prune", "--no-write-fetch-head"]
        command += ["--no-auto-maintenance", "--no-recurse-submodules", address.url, *refspecs]
        self._run_git(*command, timeout=FETCH_TIMEOUT_S, **address.git_environment())


def update_mirror(address: RepositoryAddress, ref: str, git_dir: Path) -> tuple[Repository, str]:
    """Our mirror of a remote repository, brought up to date for ``ref``, and the commit it means.

    A full hash that the mirror already holds needs no connection; everything else asks the remote.
    A tag wins over a branch of the same name, as in Git; ``refs/heads/NAME`` means the branch.

    Raises:
        SourceUnreachable: the remote does not answer or does not let us in.
        SourceError: it has no such ref.
    """
    _is_valid_ref(ref)
    name = hashlib.sha256(address.url.encode()).hexdigest()[:24]
    directory = git_dir / "mirrors" / name
    with hold_lock(directory.with_suffix(".lock")):
        directory.mkdir(parents=True, exist_ok=True)
        repository = Repository(directory, address.url)
        # Naming a work tree, of which nothing is made, overrules one that a Git hook names.
        repository._run_git("init", "--quiet", GIT_WORK_TREE=str(directory))
        if _FULL_HASH.fullmatch(ref) and repository._has_commit(ref):
            return repository, ref
        try:
            return repository, _fetch_ref(repository, address, ref)
        except GitCommandError as error:
            raise _unreachable_error(error, address, directory) from error


def _fetch_ref(repository: Repository, address: RepositoryAddress, ref: str) -> str:
    names = _list_remote_refs(repository, address, ref)
    for full in (ref, f"refs/tags/{ref}", f"refs/heads/{ref}"):
        commit = names.get(full + "^{}", names.get(full, ""))
        if commit:
            if not repository._has_commit(commit):
                repository._fetch(address, f"+{full}:refs/pinned/{commit}")
            return repository.resolve_commit(commit)
    if _FULL_HASH.fullmatch(ref):
        # Reachable from no branch, perhaps, but most servers hand out any commit by its full hash.
        try:
            repository._fetch(address, f"+{ref}:refs/pinned/{ref}")
        except GitCommandError:
            pass
    if _SHORT_HASH.fullmatch(ref):
        if not (_FULL_HASH.fullmatch(ref) and repository._has_commit(ref)):
            repository._fetch(
                address, "+refs/heads/*:refs/mirror/heads/*", "+refs/tags/*:refs/mirror/tags/*"
            )
        if not _FULL_HASH.fullmatch(ref) or repository._has_commit(ref):
            return repository.resolve_commit(ref)
    raise _unknown_ref_error(ref, names, repository.shown)


def _list_remote_refs(
    repository: Repository, address: RepositoryAddress, ref: str
) -> Mapping[str, str]:
    """What the remote says: full name -> object id; ``NAME^{}`` is the commit of a tag."""
    patterns = ["HEAD", "refs/heads/*", "refs/tags/*"]
    patterns += [ref] if ref.startswith("refs/") else []
    text = repository._run_git(
        "ls-remote",
        address.url,
        *patterns,
        timeout=RESPONSE_TIMEOUT_S,
        **address.git_environment(),
    )
    pairs = (line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    return {name: id_ for id_, name in pairs}


def _is_valid_ref(ref: str) -> str:
    if not ref or ref.startswith("-") or not ref.isprintable() or " " in ref:
        raise SourceError(f"{ref!r} is no ref", hint="Give a branch, a tag or a commit.")
    return ref


def _find_repository_root(path: str) -> str:
    return "" if path == "." else path


def _parse_entry(line: str) -> GitFile:
    facts, _, name = line.partition("\t")
    mode, _, id_, size = facts.split()
    # A submodule has no size, nor has an object that is missing: reading that one tells.
    return GitFile(name, mode, id_, int(size) if size.isdigit() else 0)


def _unknown_ref_error(ref: str, names: Iterable[str], shown: str) -> SourceError:
    short = (re.sub(r"^refs/(mirror/)?(heads|tags|remotes)/", "", name) for name in names)
    known = sorted({name for name in short if not name.startswith("refs/") and "^{}" not in name})
    near = difflib.get_close_matches(ref, known, n=3) or known[:10]
    listed = f"Near names: {', '.join(near)}." if near else "It has no branches or tags."
    return SourceError(f"there is no branch, tag or commit {ref!r}", where=shown, hint=listed)


def _extract_reason(error: GitCommandError) -> str:
    """The line of what Git said that tells the reason."""
    said = mask_credentials(str(error.stderr)).strip().removeprefix("stderr:").strip(" '\n")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next(
        (line for line in lines if re.match(r"(fatal|error|ssh):", line)), "".join(lines[-1:])
    )


def _unreachable_error(
    error: GitCommandError, address: RepositoryAddress, directory: Path
) -> SourceError:
    said, why = str(error.stderr), _extract_reason(error)
    hint = "Check the address and the network; a commit fetched before works by its full hash."
    if "Timeout:" in said:
        why = "no answer in time"
    elif re.search(r"uthenticat|ermission denied|could not read (User|Pass)|40[13]", said):
        hint = "Nobody is asked for a password: give access by an SSH key or a credential helper."
    elif ".lock" in said:
        hint = f"If no other Git runs there, remove {directory} and try again."
    return SourceUnreachableError(f"cannot be fetched: {why}", where=address.url, hint=hint)
