"""Libraries with dictionaries and Python modules that a test loads before it opens a file."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from typing import Any, Sequence

from .payload_task import PayloadError


def load_extensions(
    root: Any, libraries: Sequence[str], imports: Sequence[str], folder: str
) -> None:
    """Load libraries, then import modules, in the order of test.toml.

    Args:
        root: the module ROOT.
        libraries: paths of shared libraries, absolute or relative to ``folder``.
        imports: names of Python modules, in ``folder`` or in the Python of ROOT.
        folder: the payload's folder.

    Raises:
        PayloadError: one is missing or cannot be loaded.
    """
    for name in libraries:
        if problem := load_library(root, os.path.join(folder, name)):
            message = f"load = [{name!r}] of test.toml: {problem}"
            raise PayloadError("software-setup", "library", "import", message)
    if imports and folder not in sys.path:
        sys.path.insert(1, folder)
    for name in imports:
        _import_module(name)


def load_library(root: Any, path: str) -> str:
    """Load a shared library with ROOT; return the problem, '' for success."""
    if not os.path.isfile(path):
        return f"there is no file {path} on this node. Put the library into the test's folder, or name a path that all nodes have."
    if root.gSystem.Load(path) >= 0:
        return ""
    try:
        ctypes.CDLL(path)
        reason = "ROOT refuses it (see log)"
    except OSError as error:
        reason = str(error)
    version = root.gROOT.GetVersion()
    return f"{reason}. Build the library with ROOT {version}, and name the libraries that it needs before it."


def _import_module(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:
        message = (
            f"imports = [{name!r}] of test.toml: {type(error).__name__}: {error}. Name the module in "
            f"[test] files, or install it for {sys.executable}."
        )
        raise PayloadError("software-setup", "library", "import", message) from error
