"""Cached environments of released programs from PyPI; a damaged environment is never used."""

from __future__ import annotations

import csv
import glob
import json
import os
import re
from typing import Dict, Mapping, Tuple

from ..job_spec import SoftwareRequest
from ..shared_files import write_atomically
from .provider_tools import drop_foreign_root, raise_setup_error, run_tool
from .wheel_releases import Release, find_release

MARKER_NAME = ".treehammer.json"

#: Compiled code and the interpreter's dictionaries: some 220 of a wheel's 4700 files, checked in a
#: few milliseconds.  (Byte code is regenerated at installation and never matches.)
_CHECKED_SUFFIXES = (".so", ".pcm", ".pch", ".rootmap")


def environment_folder(release: Release, software_dir: str) -> str:
    """Return the folder of a release's environment, installed or not."""
    return os.path.abspath(os.path.join(software_dir, release.folder_name))


def environment_python(folder: str) -> str:
    """Return the path of an environment's interpreter."""
    return os.path.join(folder, "bin", "python")


def write_marker(folder: str, release: Release) -> None:
    """Mark an environment as complete, the last step of its installation."""
    write_atomically(os.path.join(folder, MARKER_NAME), json.dumps(release.marker))


def is_installed(folder: str, release: Release) -> bool:
    """Return whether the environment was completed and its interpreter still exists."""
    try:
        with open(os.path.join(folder, MARKER_NAME), encoding="utf-8") as stream:
            document = json.load(stream)
    except (OSError, ValueError):
        return False
    # The interpreter is a link to the Python that created the environment, which can disappear.
    return document == release.marker and os.access(environment_python(folder), os.X_OK)


def find_denied_python(folder: str) -> str:
    """Return the target of an environment's interpreter that this user may not run; '' otherwise."""
    python = environment_python(folder)
    try:
        os.stat(python)
    except PermissionError:
        return os.path.realpath(python)
    except OSError:  # it is gone
        return ""
    return "" if os.access(python, os.X_OK) else os.path.realpath(python)


def find_damage(folder: str, release: Release) -> str:
    """Describe the first installed file that is missing or changed; '' for none.

    Compares sizes with the wheel's own list of files: hashing 670 MB before each job would take
    longer than many jobs.
    """
    record = _find_record_file(folder, release)
    if not record:
        return "the list of installed files is missing"
    try:
        with open(record, encoding="utf-8", newline="") as stream:
            lines = [line for line in stream if any(part in line for part in _CHECKED_SUFFIXES)]
    except (OSError, ValueError) as error:
        return f"the list of installed files cannot be read: {error}"
    packages = os.path.dirname(os.path.dirname(record))
    for path, _, size in csv.reader(lines):
        try:
            installed = os.stat(os.path.join(packages, path)).st_size
        except OSError as error:
            return f"{path}: {error.strerror}"
        if size and installed != int(size):
            return f"{path} has {installed} bytes instead of {size}"
    return ""


def _find_record_file(folder: str, release: Release) -> str:
    """Find the wheel's list of installed files; '' when missing."""
    pattern = os.path.join(folder, "lib", "python3*", "site-packages", "*.dist-info", "RECORD")
    # Folders of wheels are named with underscores.
    package = re.sub(r"[-_.]+", "_", release.package.lower())
    name = f"{package}-{release.wheel}.dist-info"
    for record in glob.glob(pattern):
        if os.path.basename(os.path.dirname(record)).lower() == name:
            return record
    return ""


def is_usable(folder: str, release: Release) -> bool:
    """Return whether a job can use the environment."""
    return is_installed(folder, release) and not find_damage(folder, release)


def setup_wheel(request: SoftwareRequest, base: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    """Set up an installed release; return interpreter and environment."""
    folder, release = request.location, find_release(request)
    if not is_installed(folder, release):
        raise_setup_error(
            "missing",
            f"{release.title} is not installed in {folder or 'any folder'}; "
            "planning installs it, a job never does",
        )
    damage = find_damage(folder, release)
    if damage:
        raise_setup_error(
            "broken",
            f"{release.title} in {folder} is damaged ({damage}); submit again: planning "
            "reinstalls it, a job never does",
        )
    env = drop_foreign_root(base)
    python = environment_python(folder)
    query = "import sysconfig; print(sysconfig.get_path('platlib'))"
    packages = run_tool([python, "-c", query], env, f"the Python of {folder}").strip()
    folders = [os.path.dirname(python), os.path.join(packages, "ROOT", "bin"), env.get("PATH", "")]
    env["PATH"] = os.pathsep.join(folder for folder in folders if folder)
    env["VIRTUAL_ENV"] = folder
    return python, env
