"""Folder of a user's lock files on a node, shared by all jobs there."""

from __future__ import annotations

import os
import stat
import tempfile
from typing import Optional


def make_lock_folder(name: str, base: str = "") -> Optional[str]:
    """Make a folder below one of the user's in /tmp; None where it cannot be made or trusted.

    TMPDIR may be private to a job, so /tmp comes first.
    """
    base = base or ("/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir())
    private = os.path.join(base, f"treehammer-{os.geteuid()}")
    folder = os.path.join(private, name)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.lstat(private)
    except OSError:
        return None
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return folder if is_own else None
