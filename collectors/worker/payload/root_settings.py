"""Settings of ROOT for one process: a ``.rootrc`` in its working folder."""

from __future__ import annotations

import os
from typing import Iterable

from ...storage_schemes import XROOTD_CLIENT, find_scheme

#: ROOT's own handlers pass only ``root://`` to XRootD's client, and ``roots://`` to the classes of a
#: discontinued server.  Handlers of a ``.rootrc`` precede them.
_ROOTS_HANDLERS = """\
+Plugin.TFile: ^[x]?roots: TNetXNGFile NetxNG \
"TNetXNGFile(const char*,Option_t*,const char*,Int_t,Int_t,Bool_t)"
+Plugin.TSystem: ^[x]?roots: TNetXNGSystem NetxNG \
"::ROOT_Plugin_TNetXNGSystem(const char *,Bool_t)"
"""


def write_root_settings(folder: str, urls: Iterable[str]) -> None:
    """Let ROOT open ``roots://`` with XRootD's client in a process that starts in ``folder``."""
    schemes = [find_scheme(url) for url in urls]
    if any(scheme and scheme.client == XROOTD_CLIENT and scheme.tls for scheme in schemes):
        with open(os.path.join(folder, ".rootrc"), "w", encoding="ascii") as stream:
            stream.write(_ROOTS_HANDLERS)
