"""Mount namespaces that hide folders from daemons and jobs.

An empty tmpfs is mounted over a folder, and visible folders are bound back. util-linux alone does
it, without an intermediate process: the program finally runs under the pid that started the script.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from treehammer.errors import TestbedError
from treehammer.testbed.component import VisibleFolder
from treehammer.testbed.workspace import Workspace, run_program

#: Candidates for the mount point of the original tree; the first unused one is taken.
_STAGING_FOLDERS = ("/mnt", "/media", "/srv", "/opt", "/home")
_REQUIRED_TOOLS = ("unshare", "setpriv", "mount", "umount")

_PURPOSE = "Your files cannot be hidden from jobs."
_ROOT_HINT = (
    "Root needs CAP_SYS_ADMIN here, as in a container started with --privileged; "
    "or run Treehammer as an ordinary user."
)
_USER_HINT = (
    "Allow user namespaces: sysctl user.max_user_namespaces above 0, and "
    "kernel.apparmor_restrict_unprivileged_userns, if it exists, 0."
)

#: Last line of a script: it becomes the given command.
SHELL_ARGUMENTS = '"$@"'


def check_mount_namespaces(box: Workspace) -> None:
    """Check that this machine can hide folders.

    Raises:
        TestbedError: it cannot.
    """
    lacking = [tool for tool in _REQUIRED_TOOLS if shutil.which(tool) is None]
    if lacking:
        hint = f"{_PURPOSE} Install util-linux 2.38 or later."
        raise TestbedError(f"missing: {', '.join(lacking)}", hint=hint)
    user_namespace = [*switch_user_command(box), "unshare", "--user", "--map-root-user", "--mount"]
    checks = [(user_namespace, _USER_HINT)]
    if box.user is not None:
        checks.insert(0, (["unshare", "--mount"], _ROOT_HINT))
    for command, hint in checks:
        mount = [*command, "mount", "-t", "tmpfs", "none", "/tmp"]  # noqa: S108 - any folder does
        run_program(mount, where=shlex.join(command), hint=f"{_PURPOSE} {hint}")


def switch_user_command(box: Workspace) -> list[str]:
    """Return the prefix that changes to the testbed's user; empty for the current user."""
    if box.user is None:
        return []
    uid, gid = map(str, box.user)
    return ["setpriv", "--reuid", uid, "--regid", gid, "--clear-groups", "--"]


def topmost_inaccessible_parent(path: Path) -> Path | None:
    """Return the topmost parent folder that not everybody can enter; None if all can."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def _is_inside(path: Path, folders: Iterable[Path]) -> bool:
    return any(path == folder or folder in path.parents for folder in folders)


def _choose_staging_folder(paths: Sequence[Path]) -> Path:
    for text in _STAGING_FOLDERS:
        stage = Path(text)
        related = any(_is_inside(path, [stage]) or _is_inside(stage, [path]) for path in paths)
        if stage.is_dir() and not related:
            return stage
    raise TestbedError(
        "no folder is available as a mount point while others are hidden",
        hint=f"Make one of {', '.join(_STAGING_FOLDERS)}; it stays empty.",
    )


def render_mount_script(
    hidden: Sequence[Path], visible: Sequence[VisibleFolder], command: Sequence[str]
) -> str:
    """Render a shell script that hides folders, shows some, and becomes a command.

    It runs in a new mount namespace with the right to mount. ``command`` is shell text, quoted by
    the caller.

    Raises:
        TestbedError: no folder is available as a mount point.
    """
    views = sorted(visible, key=lambda view: len(view.target.parts))
    stage = _choose_staging_folder(
        [*hidden, *(p for view in views for p in (view.source, view.target))]
    )
    lines = ["#!/bin/sh", "set -eu", f"mount --rbind / {stage}"]
    tops = [path for path in hidden if not _is_inside(path, (o for o in hidden if o != path))]
    lines += [
        f"mount -t tmpfs -o mode=755 none {_quote_path(path)}" for path in dict.fromkeys(tops)
    ]
    for view in views:
        target = _quote_path(view.target)
        lines += [f"mkdir -p {target}", f"mount --rbind {_quote_path(view.source, stage)} {target}"]
        if not view.writable:
            lines.append(f"mount -o remount,bind,ro {target}")
    lines += [f"umount -l {stage}", " ".join(["exec", *command]), ""]
    return "\n".join(lines)


def _quote_path(path: Path, below: Path | None = None) -> Path | str:
    return shlex.quote(f"{below or ''}{path}")


def write_daemon_wrapper(box: Workspace, job_views: Sequence[VisibleFolder]) -> None:
    """Write the wrapper of daemons that change from root to the testbed's user.

    It makes the package cache, the testbed's folder and the folders that jobs see visible even below
    private folders.
    """
    sources = [view.source for view in job_views if not _is_inside(view.source, [box.folder])]
    views = [
        *(VisibleFolder(folder, folder) for folder in (box.cache, *sources)),
        VisibleFolder(box.folder, box.folder, writable=True),
    ]
    barriers = [parent for view in views if (parent := topmost_inaccessible_parent(view.target))]
    text = render_mount_script(
        [*box.hidden_folders, *barriers],
        views,
        [*map(shlex.quote, switch_user_command(box)), SHELL_ARGUMENTS],
    )
    _daemon_wrapper_path(box).write_text(text, encoding="utf-8")
    _daemon_wrapper_path(box).chmod(0o755)


def _daemon_wrapper_path(box: Workspace) -> Path:
    return box.folder / "curtain.sh"


def daemon_wrapper_command(box: Workspace) -> list[str]:
    """Return the prefix that starts a command as the testbed's user; empty if none is needed."""
    return [] if box.user is None else ["unshare", "--mount", "sh", str(_daemon_wrapper_path(box))]


def write_job_wrapper(
    box: Workspace, path: Path, visible: Sequence[VisibleFolder], command: Sequence[str]
) -> None:
    """Write a program that becomes ``command`` and sees only the folders ``visible`` of the testbed.

    Its arguments are added to the command.
    """
    uid, gid = box.user or (os.getuid(), os.getgid())
    user_command = ["unshare", "--user", f"--map-user={uid}", f"--map-group={gid}", "--", *command]
    text = render_mount_script(
        [*box.hidden_folders, box.folder],
        visible,
        [*map(shlex.quote, user_command), SHELL_ARGUMENTS],
    )
    script = path.with_suffix(".sh")
    box.write_file(script, text, mode=0o755)
    start = ["unshare", "--user", "--map-root-user", "--mount", "sh", str(script)]
    box.write_file(path, f"#!/bin/sh\nexec {shlex.join(start)} {SHELL_ARGUMENTS}\n", mode=0o755)
