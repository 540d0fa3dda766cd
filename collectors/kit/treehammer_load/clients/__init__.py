"""Clients of storage: XRootD, HTTP and mounted paths."""

from __future__ import annotations

from ....shared_files import local_path
from ...treehammer_kit.payload_task import PayloadError
from ..operation import StorageClient


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
    if local_path(url) is not None:
        from .file_client import FileClient

        return FileClient(clients, timeout_s, direct=direct)
    scheme = url.partition("://")[0]
    try:
        if scheme in ("root", "roots", "xroot", "xroots"):
            from .xrootd_client import XrootdClient

            return XrootdClient(clients, timeout_s, url)
        if scheme in ("http", "https"):
            from .http_client import HttpClient

            return HttpClient(clients, timeout_s, url)
    except ImportError as error:
        message = f"{scheme}:// needs software that is missing here ({error}): set root = 'xrootd:VERSION'"
        raise PayloadError("software-setup", "missing", "setup", message) from error
    raise PayloadError("open", "not-supported", "setup", f"no client for {scheme}:// ({url})")
