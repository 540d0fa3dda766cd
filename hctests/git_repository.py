"""Access to Git, the only module that runs it: addresses, repositories, refs, trees and blobs.

Nothing is checked out: files are read from Git's objects, so that filters, hooks, attributes and
links of a foreign repository have no effect. Addresses keep credentials separate from the parts that
may be shown.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit, urlunsplit

# Otherwise importing git fails without the command, which would break even --help.
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")

import git
from git.exc import GitCommandError, GitCommandNotFound, GitError

from treehammer.collectors.http_requests import mask_credentials
from treehammer.collectors.shared_files import hold_lock
from treehammer.errors import SourceError, SourceUnreachableError, make_cache_error

#: Seconds after which an unresponsive remote or a stalled transfer fails.
RESPONSE_TIMEOUT_S = 60

_KNOWN_SCHEMES = ("https", "http", "ssh", "file")
_SCP_ADDRESS = re.compile(r"(?:[\w.-]+@)?[\w.-]+:(?!:|//)\S+")


@dataclass(frozen=True)
class RepositoryAddress:
    """Address of a remote repository.

    Attributes:
        url: URL without credentials, the only form shown, stored or used on a command line.
        authorization: HTTP Authorization header, passed to Git in its environment.
    """

    url: str
    authorization: str = field(default="", repr=False)

    @classmethod
    def from_url(cls, url: str) -> RepositoryAddress | None:
        """Parse a URL or ``user@host:path``; None for anything else.

        Raises:
            SourceError: an invalid URL, or one with an unsupported scheme.
        """
        if "://" not in url:
            return cls(url) if _SCP_ADDRESS.fullmatch(url) else None
        try:
            parts = urlsplit(url)
            parts.port  # noqa: B018  (detects a password that was parsed as a port)
        except ValueError:
            # Show nothing after the scheme, since any part may be the password.
            raise SourceError(
                "not a valid URL",
                where=url.partition("://")[0] + "://…",
                hint="Write characters such as / and @ in a password as %2F and %40.",
            ) from None
        if parts.scheme not in _KNOWN_SCHEMES:
            raise SourceError(
                f"unsupported scheme {parts.scheme!r}",
                where=mask_credentials(url),
                hint=f"Supported: {', '.join(_KNOWN_SCHEMES)}, user@host:path and local paths.",
            )
        user_info, _, host = parts.netloc.rpartition("@")
        user, _, password = user_info.partition(":")
        if parts.scheme == "ssh" and user:
            host = f"{user}@{host}"
        clean = urlunsplit((parts.scheme, host, parts.path, "", ""))
        if not user_info or parts.scheme not in ("http", "https"):
            return cls(clean)
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        return cls(clean, f"Authorization: Basic {base64.b64encode(pair).decode()}")

    def git_environment(self) -> dict[str, str]:
        """Build variables for Git: no prompts, a limit for stalled transfers, the credentials."""
        options = {
            "http.lowSpeedLimit": "100",
            "http.lowSpeedTime": str(RESPONSE_TIMEOUT_S),
            "gc.auto": "0",
            "maintenance.auto": "false",
        }
        if self.authorization:
            options[f"http.{self.url}.extraHeader"] = self.authorization
        first = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
        variables = {
            "GIT_CONFIG_COUNT": str(first + len(options)),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": ":".join(_KNOWN_SCHEMES),
        }
        for number, (key, value) in enumerate(options.items(), first):
            variables[f"GIT_CONFIG_KEY_{number}"] = key
            variables[f"GIT_CONFIG_VALUE_{number}"] = value
        # Keep a configured GIT_ASKPASS program, but prevent Git's default dialogs.
        variables["GIT_ASKPASS"] = os.environ.get("GIT_ASKPASS", "")
        default_ssh = f"ssh -o BatchMode=yes -o ConnectTimeout={RESPONSE_TIMEOUT_S}"
        variables["GIT_SSH_COMMAND"] = os.environ.get("GIT_SSH_COMMAND", default_ssh)
        return variables


#: Seconds after which a download fails.
FETCH_TIMEOUT_S = 1800
#: First Git that reads GIT_CONFIG_COUNT; an earlier one would connect without the credentials.
FIRST_REMOTE_GIT = (2, 31)

_FULL_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHORT_HASH = re.compile(r"[0-9a-f]{4,64}")
_ALL_REFS = ("+refs/heads/*:refs/mirror/heads/*", "+refs/tags/*:refs/mirror/tags/*")
#: Monitors and hooks that the configuration of a checkout names are not started.
_NO_PROGRAMS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
LINK_MODE, SUBMODULE_MODE, EXECUTABLE_MODE = "120000", "160000", "100755"


@dataclass(frozen=True)
class GitFile:
    """One file of a commit: name relative to the listed folder, Git's mode, object id and size."""

    name: str
    mode: str
    id: str
    size: int


def compute_object_id(content: bytes, like: str) -> str:
    """Compute Git's id of a blob with the hash algorithm (SHA-1 or SHA-256) of the id ``like``."""
    algorithm = "sha1" if len(like) == 40 else "sha256"
    return hashlib.new(algorithm, b"blob %d\0" % len(content) + content).hexdigest()


class Repository:
    """A repository on this machine: a user's own, or the mirror of a remote one.

    Args:
        directory: the Git directory.
        display_name: name in messages and measurements, without credentials.
    """

    def __init__(self, directory: Path, display_name: str) -> None:
        self.directory = directory
        self.display_name = display_name
        self._git = git.Git(str(directory))

    @classmethod
    def open_local(cls, path: Path) -> Repository:
        """Open the repository that contains a folder.

        Raises:
            SourceError: the folder is in no repository.
        """
        try:
            with git.Repo(path, search_parent_directories=True) as repo:
                return cls(Path(repo.git_dir), str(repo.working_tree_dir or repo.git_dir))
        except (GitError, OSError) as error:
            raise SourceError(
                "not a Git repository",
                where=str(path),
                hint="Name a test in a repository as URL@REF:path, one outside Git as its folder.",
            ) from error

    def resolve_commit(self, ref: str) -> str:
        """Resolve a branch, tag, full or short hash to the full hash of its commit.

        Raises:
            SourceError: no such commit, or an ambiguous short hash.
        """
        try:
            _check_ref(ref)
            return self._run_git("rev-parse", "--verify", f"{ref}^{{commit}}")
        except GitCommandError as error:
            if "ambiguous" in str(error.stderr):
                raise SourceError(
                    f"more than one commit starts with {ref!r}",
                    where=self.display_name,
                    hint="Give more digits.",
                ) from error
            if self._read_git("rev-parse", "--is-shallow-repository") == "true":
                commits = self._read_git("rev-list", "--count", "HEAD")
                raise SourceError(
                    f"this clone is shallow and does not have {ref!r}: it ends after {commits} of its commits",
                    where=self.display_name,
                    hint="Fetch more with 'git fetch --deepen=50', or all with 'git fetch --unshallow'. CI "
                    "clones all with fetch-depth: 0 (GitHub) or GIT_DEPTH: 0 (GitLab).",
                ) from error
            names = self._read_git("for-each-ref", "--format=%(refname)").splitlines()
            raise _unknown_ref_error(ref, names, self.display_name) from error

    def head_commit(self) -> str:
        """Return the full hash of HEAD; '' without any commit."""
        try:
            return self._run_git("rev-parse", "--verify", "HEAD^{commit}")
        except GitCommandError:
            return ""

    def list_commits(self, first: str, last: str) -> list[tuple[str, str]]:
        """List the commits after ``first`` up to ``last``, oldest first: hash and subject.

        Of a merge only the branch that it was merged into is followed.

        Raises:
            SourceError: ``last`` does not descend from ``first`` on that way.
        """
        text = self._read_git("log", "--first-parent", "--reverse", "--format=%H%x09%s", last)
        commits = [(line[: len(last)], line[len(last) + 1 :]) for line in text.splitlines()]
        indices = [index for index, (commit, _) in enumerate(commits) if commit == first]
        if not indices:
            raise SourceError(
                f"{last[:12]} does not descend from {first[:12]} by first parents",
                where=self.display_name,
                hint="Name two commits of one branch, the older one first.",
            )
        return commits[indices[0] + 1 :]

    def write_tree(self, commit: str, folder: Path) -> None:
        """Write all files of a commit into an existing folder; no hook runs."""
        index = f"{folder}.index"
        try:
            self._run_git("read-tree", commit, GIT_INDEX_FILE=index)
            self._run_git(
                "checkout-index",
                "--all",
                "--force",
                GIT_INDEX_FILE=index,
                GIT_WORK_TREE=str(folder),
            )
        except GitCommandError as error:
            raise self._damage_error(error) from error
        finally:
            Path(index).unlink(missing_ok=True)

    def list_files(self, commit: str, path: str) -> tuple[GitFile, ...]:
        """List every file below a folder of a commit.

        Raises:
            SourceError: the folder is missing, or contains a submodule or an unsafe name.
        """
        where = f"{self.display_name}@{commit[:12]}:{path}"
        self._require_folder(commit, path, where)
        listing = self._read_git(
            "ls-tree", "-r", "-z", "-l", "--full-tree", f"{commit}:{'' if path == '.' else path}"
        )
        entries = []
        for line in filter(None, listing.split("\0")):
            facts, _, name = line.partition("\t")
            mode, _, id_, size = facts.split()
            # Submodules and missing objects have no size; reading the latter fails later.
            entries.append(GitFile(name, mode, id_, int(size) if size.isdigit() else 0))
        for entry in entries:
            if entry.mode == SUBMODULE_MODE:
                raise SourceError(
                    f"contains a submodule ({entry.name}); its files are in another repository",
                    where=where,
                    hint="Put the files into the test's folder.",
                )
            parts = entry.name.split("/")
            if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
                raise SourceError(
                    f"contains a file with the unsafe name {entry.name!r}", where=where
                )
        return tuple(entries)

    def list_refs(self) -> dict[str, str]:
        """List branches and tags: full name -> full hash of the commit."""
        form = "--format=%(refname) %(objectname) %(*objectname)"
        lines = self._read_git("for-each-ref", form, "refs/heads", "refs/tags").splitlines()
        # An annotated tag has a commit beside its own object.
        return {name: ids[-1] for name, *ids in map(str.split, lines)}

    def list_tests(self, commit: str) -> tuple[str, ...]:
        """List the folders of a commit that contain a test.toml."""
        names = self._read_git("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
        paths = (PurePosixPath(name) for name in names.split("\0"))
        return tuple(sorted(str(path.parent) for path in paths if path.name == "test.toml"))

    def suggest_tests(self, commit: str, path: str) -> str:
        """Write a sentence that lists the tests of a commit, similar paths first."""
        tests = self.list_tests(commit)
        similar = difflib.get_close_matches(path, tests, n=3)
        names = [*similar, *(test for test in tests if test not in similar)]
        remainder = f" and {len(names) - 10} more" if len(names) > 10 else ""
        return (
            f"Tests there: {', '.join(names[:10])}{remainder}." if names else "It contains no test."
        )

    def read_content(self, entry: GitFile) -> bytes:
        """Read the content of a file; for a link, its target."""
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
        """Return whether the working tree ignores the path, by .gitignore and not committed."""
        try:
            self._run_git("check-ignore", "--quiet", str(path), GIT_WORK_TREE=self.display_name)
        except GitCommandError:
            return False
        return True

    def _require_folder(self, commit: str, path: str, where: str) -> None:
        prefix = PurePosixPath()
        for part in PurePosixPath(path).parts:
            prefix /= part
            line = self._read_git("ls-tree", "-z", "--full-tree", commit, "--", str(prefix))
            mode, kind = [*line.split(" ", 2), "", ""][:2]
            if kind == "tree":
                continue
            reason = {
                "": "no such folder in that commit",
                "commit": f"{prefix} is a submodule: name its own repository",
            }.get(kind, f"{prefix} is a file, not a folder")
            if mode == LINK_MODE:
                reason = f"{prefix} is a symbolic link: name its target instead"
            raise SourceError(reason, where=where, hint=self.suggest_tests(commit, path))

    def _git_environment(self, **variables: str) -> dict[str, str]:
        # In a Git hook GIT_DIR names another repository.
        return {"GIT_DIR": str(self.directory), **variables}

    def _run_git(self, *arguments: str, timeout: float | None = None, **environment: str) -> str:
        """Run Git and return its output; callers handle GitCommandError."""
        try:
            printed = self._git.execute(
                ["git", *_NO_PROGRAMS, *arguments],
                env=self._git_environment(**environment),
                kill_after_timeout=timeout,
            )
        except GitCommandNotFound as error:
            raise SourceError("the command 'git' is missing", hint="Install Git.") from error
        return str(printed)

    def _read_git(self, *arguments: str) -> str:
        """Run a Git command that fails only in a damaged repository, and return its output."""
        try:
            return self._run_git(*arguments)
        except GitCommandError as error:
            raise self._damage_error(error) from error

    def _damage_error(self, error: GitCommandError) -> SourceError:
        return SourceError(
            f"Git cannot read the repository: {_extract_reason(error)}",
            where=self.display_name,
            hint=f"Run 'git fsck' in {self.directory} for details.",
        )

    def _has_commit(self, commit: str) -> bool:
        try:
            self._run_git("cat-file", "-e", f"{commit}^{{commit}}")
        except GitCommandError:
            return False
        return True

    def _fetch(self, address: RepositoryAddress, *refspecs: str) -> None:
        command = ["fetch", "--quiet", "--no-tags", "--prune", "--no-write-fetch-head"]
        command += ["--no-recurse-submodules", address.url, *refspecs]
        self._run_remote(address, FETCH_TIMEOUT_S, *command)

    def _run_remote(self, address: RepositoryAddress, timeout: float, *arguments: str) -> str:
        """Run a Git command that connects to the remote repository."""
        version = self._run_git("version")
        if tuple(map(int, re.findall(r"\d+", version)))[:2] < FIRST_REMOTE_GIT:
            message = f"{version} is too old for remote repositories"
            hint = "Install Git 2.31 or later, or name the test in a clone: FOLDER@REF:path"
            raise SourceError(message, where=address.url, hint=hint)
        return self._run_git(*arguments, timeout=timeout, **address.git_environment())


def update_mirror(address: RepositoryAddress, ref: str, git_dir: Path) -> tuple[Repository, str]:
    """Update the mirror of a remote repository for ``ref``; return it and the commit.

    A full hash that the mirror already contains needs no connection; anything else is looked up at
    the remote.  As in Git, a tag takes precedence over a branch of the same name;
    ``refs/heads/NAME`` selects the branch.

    Raises:
        SourceUnreachableError: the remote does not answer or denies access.
        SourceError: the remote has no such ref.
    """
    _check_ref(ref)
    name = hashlib.sha256(address.url.encode()).hexdigest()[:24]
    directory = git_dir / "mirrors" / name
    with hold_cache_lock(directory.with_suffix(".lock")):
        directory.mkdir(parents=True, exist_ok=True)
        repository = Repository(directory, address.url)
        try:
            # An explicit work tree, which is never filled, overrides the one set by a Git hook.
            repository._run_git("init", "--quiet", GIT_WORK_TREE=str(directory))
            if _FULL_HASH.fullmatch(ref) and repository._has_commit(ref):
                return repository, ref
            return repository, _fetch_ref(repository, address, ref)
        except GitCommandError as error:
            raise _unreachable_error(error, address, directory) from error


def list_remote_refs(address: RepositoryAddress, git_dir: Path) -> dict[str, str]:
    """List branches and tags of a remote repository: full name -> full hash of the commit.

    Nothing is fetched.

    Raises:
        SourceUnreachableError: the remote does not answer or denies access.
    """
    directory = git_dir / "mirrors"
    directory.mkdir(parents=True, exist_ok=True)
    try:
        names = _list_remote_refs(Repository(directory, address.url), address, "")
    except GitCommandError as error:
        raise _unreachable_error(error, address, directory) from error
    return {
        name: names.get(f"{name}^{{}}", commit)
        for name, commit in names.items()
        if name.startswith(("refs/heads/", "refs/tags/")) and not name.endswith("^{}")
    }


@contextmanager
def hold_cache_lock(path: Path) -> Iterator[None]:
    """Hold a lock in the cache of repositories.

    Raises:
        SourceError: the cache cannot be written.
    """
    try:
        with hold_lock(path):
            yield
    except OSError as error:
        raise make_cache_error(SourceError, error, path) from error


def _fetch_ref(repository: Repository, address: RepositoryAddress, ref: str) -> str:
    """Fetch the commit of a ref, unless the repository already contains it; return the commit."""
    names = _list_remote_refs(repository, address, ref)
    full = next((n for n in (ref, f"refs/tags/{ref}", f"refs/heads/{ref}") if n in names), "")
    if full:
        commit = names.get(full + "^{}", names[full])
        if not repository._has_commit(commit):
            repository._fetch(address, f"+{full}:refs/pinned/{commit}")
        return repository.resolve_commit(commit)
    if _FULL_HASH.fullmatch(ref):
        # Most servers provide any commit by its full hash, even one that no branch contains.
        with suppress(GitCommandError):
            repository._fetch(address, f"+{ref}:refs/pinned/{ref}")
        if not repository._has_commit(ref):
            repository._fetch(address, *_ALL_REFS)
        if repository._has_commit(ref):
            return repository.resolve_commit(ref)
    elif _SHORT_HASH.fullmatch(ref):
        repository._fetch(address, *_ALL_REFS)
        return repository.resolve_commit(ref)
    raise _unknown_ref_error(ref, names, repository.display_name)


def _list_remote_refs(
    repository: Repository, address: RepositoryAddress, ref: str
) -> Mapping[str, str]:
    """List the remote's refs: full name -> object id; ``NAME^{}`` is the commit of a tag."""
    patterns = ["HEAD", "refs/heads/*", "refs/tags/*"]
    patterns += [ref] if ref.startswith("refs/") else []
    text = repository._run_remote(address, RESPONSE_TIMEOUT_S, "ls-remote", address.url, *patterns)
    pairs = (line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    return {name: id_ for id_, name in pairs}


def _check_ref(ref: str) -> None:
    if not ref or ref.startswith("-") or not ref.isprintable() or " " in ref:
        raise SourceError(f"{ref!r} is not a ref", hint="Name a branch, a tag or a commit.")


def _unknown_ref_error(ref: str, names: Iterable[str], display_name: str) -> SourceError:
    short = (re.sub(r"^refs/(mirror/)?(heads|tags|remotes)/", "", name) for name in names)
    short_names = sorted(
        {name for name in short if not name.startswith("refs/") and "^{}" not in name}
    )
    similar = difflib.get_close_matches(ref, short_names, n=3) or short_names[:10]
    hint = f"Similar names: {', '.join(similar)}." if similar else "It has no branches or tags."
    return SourceError(f"no branch, tag or commit {ref!r}", where=display_name, hint=hint)


def _extract_reason(error: GitCommandError) -> str:
    """Extract the line with the reason from Git's error output."""
    output = mask_credentials(str(error.stderr)).strip().removeprefix("stderr:").strip(" '\n")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next(
        (line for line in lines if re.match(r"(fatal|error|ssh):", line)), "".join(lines[-1:])
    )


def _unreachable_error(
    error: GitCommandError, address: RepositoryAddress, directory: Path
) -> SourceError:
    output, reason = str(error.stderr), _extract_reason(error)
    hint = "Check the address and the network; a commit fetched before works by its full hash."
    if "Timeout:" in output:
        reason = "no answer in time"
    elif re.search(
        r"uthenticat|ermission denied|could not read (User|Pass)|\b40[13]\b",
        re.sub(r"\S*/\S*", "", output),  # addresses state nothing
    ):
        hint = "Passwords are never asked for: configure an SSH key or a credential helper."
    elif "No space left" in output:
        hint = "Make room there, or choose another place with --cache-dir."
    elif ".lock" in output:
        hint = f"If no other Git runs there, remove {directory} and try again."
    return SourceUnreachableError(f"cannot be fetched: {reason}", where=address.url, hint=hint)
