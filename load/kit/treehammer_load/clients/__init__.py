"""Clients of storage: XRootD, HTTP, S3 and mounted paths."""

from __future__ import annotations

from importlib import import_module
from typing import Callable

from .....collectors.kit.treehammer_kit.payload_task import PayloadError
from .....collectors.storage_access import FILE_CLIENT, find_scheme
from ..operation import StorageClient

_MakeClient = Callable[[int, float, str], StorageClient]


def make_client(url: str, clients: int, timeout_s: float, *, direct: bool = False) -> StorageClient:
    """Make the client of the protocol of a URL or path.

    Args:
        url: a file or folder that the load uses.
        clients: number of clients.
        timeout_s: an operation that takes longer fails.
        direct: bypass the page cache of mounted paths.

    Raises:
        PayloadError: an unknown protocol, or its software is missing.
    """
    scheme = find_scheme(url)
    if scheme is None:
        name = url.partition("://")[0]
        raise PayloadError("open", "not-supported", "setup", f"no client for {name}:// ({url})")
    if scheme.client == FILE_CLIENT:
        from .file_client import FileClient

        return FileClient(clients, timeout_s, direct=direct)
    try:
        # One module is imported, as they need different software.
        module = import_module(f".{scheme.client}_client", __name__)
        make: _MakeClient = getattr(module, f"{scheme.client.title()}Client")
        return make(clients, timeout_s, url)
    except ImportError as error:
        message = f"{scheme.name}:// needs software that is missing here ({error}): set root = 'xrootd:VERSION'"
        raise PayloadError("software-setup", "missing", "setup", message) from error
