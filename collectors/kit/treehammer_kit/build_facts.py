"""Facts about this build of ROOT and its environment, to explain differences between runs."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
from importlib import metadata
from typing import Any, Dict, List, Optional, Tuple

_RECORDED_VARIABLES = re.compile(r"^(ROOT|XRD|Xrd|LD_|CLING|X509|MALLOC_|OMP_)")
_SECRET_VARIABLES = re.compile(r"TOKEN|PASS|SECRET|KEY", re.IGNORECASE)
_SHARED_LIBRARY = re.compile(r"\.so(\.|$)")

#: Functions that return the versions of the compression libraries.
_COMPRESSION = {
    "zlib_version": "zlibVersion",
    "lzma_version": "lzma_version_string",
    "lz4_version": "LZ4_versionString",
    "zstd_version": "ZSTD_versionString",
}


def collect_build_facts(root: Any) -> Dict[str, Any]:
    """Collect the catalogue values of the build, as ROOT reports them."""
    system = root.gSystem
    features = str(root.gROOT.GetConfigFeatures()).split()
    standards = [item[3:] for item in features if re.fullmatch(r"cxx\d\w", item)]
    facts = {
        "root_version": root.gROOT.GetVersion(),
        "root_commit": root.gROOT.GetGitCommit(),
        "root_platform": system.GetBuildArch(),
        "root_compiler": system.GetBuildCompilerVersionStr(),
        "root_flags": system.GetFlagsOpt(),
        "root_cxx_standard": standards[0] if standards else "",
        "root_features": " ".join(features),
    }
    return {name: str(value) for name, value in facts.items() if str(value)}


def collect_library_facts() -> Dict[str, Any]:
    """Collect the hash of libCore and the versions of its compression libraries.

    A version whose function is not exported stays unknown.
    """
    core = next((path for path, _ in list_loaded_libraries() if "/libCore." in path), None)
    if core is None:
        return {}
    facts: Dict[str, Any] = {"libcore_sha256": _hash_file(core)}
    handle = ctypes.CDLL(core)  # already loaded; with the symbols of its dependencies
    for name, function in _COMPRESSION.items():
        version = _call_version_function(handle, function)
        if version is not None:
            facts[name] = version
    return facts


def _call_version_function(library: ctypes.CDLL, function: str) -> Optional[str]:
    try:
        call = getattr(library, function)
    except AttributeError:
        return None
    call.restype = ctypes.c_char_p
    text = call()
    return text.decode("ascii", "replace") if text else None


def _hash_file(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def list_loaded_libraries() -> List[Tuple[str, int]]:
    """List path and size in bytes of every shared library mapped into this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as stream:
        fields = [line.rstrip("\n").split(None, 5) for line in stream]
    paths = sorted({field[5] for field in fields if len(field) == 6})
    return [
        (path, os.stat(path).st_size)
        for path in paths
        if path.startswith("/") and _SHARED_LIBRARY.search(path) and os.path.exists(path)
    ]


def collect_inventory() -> str:
    """Return JSON: loaded libraries, relevant environment (secrets masked), Python and NumPy."""
    environment = {
        name: "***" if _SECRET_VARIABLES.search(name) else value
        for name, value in sorted(os.environ.items())
        if _RECORDED_VARIABLES.match(name)
    }
    try:
        numpy: Optional[str] = metadata.version("numpy")
    except metadata.PackageNotFoundError:
        numpy = None
    document = {
        "libraries": list_loaded_libraries(),
        "environment": environment,
        "python": platform.python_version(),
        "numpy": numpy,
    }
    return json.dumps(document, sort_keys=True)
