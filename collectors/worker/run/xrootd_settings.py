"""Settings of a payload's XRootD client: handlers of ``roots://``, a log of lost reads, a recorder."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence

from ...shared_files import open_regular_file, read_file_end, write_atomically
from ...storage_access import XROOTD_CLIENT, find_scheme

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


#: Variables of the client; a payload or node that sets one has its own log.
_FILE_VARIABLE, _LEVEL_VARIABLE = "XRD_LOGFILE", "XRD_LOGLEVEL"
#: Written at level Error, by clients of XRootD 5 and 6.
_LOST_READ = re.compile(r"Unable to get the response to request kXR_(?:pg)?readv? ")
#: Bytes of the log that are read.
_MAX_BYTES = 64_000_000


class ClientLog:
    """The client's errors in a file of the payload's folder."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "xrootd-client.log")

    @classmethod
    def create(
        cls, folder: str, urls: Sequence[str], environment: Mapping[str, str]
    ) -> Optional[ClientLog]:
        """Create the log of a payload; None if it uses no such client, or has a log of its own."""
        schemes = map(find_scheme, urls)
        uses_client = any(scheme and scheme.client == XROOTD_CLIENT for scheme in schemes)
        has_log = _FILE_VARIABLE in environment or _LEVEL_VARIABLE in environment
        return cls(folder) if uses_client and not has_log else None

    @property
    def environment(self) -> Dict[str, str]:
        """Variables of the payload."""
        return {_FILE_VARIABLE: self._path, _LEVEL_VARIABLE: "Error"}

    def count_lost_reads(self) -> int:
        """Count the reads whose answer was lost; the client sends them again."""
        try:
            lines = read_file_end(self._path, _MAX_BYTES).splitlines()
            return sum(bool(_LOST_READ.search(line)) for line in lines)
        except OSError:  # nothing was written, or the payload has put something else there
            return 0


#: Folder of recordings below the job's output.
RECORDINGS = "recordings"
#: The client finds the plug-in beside its own libraries, and adds its version to the name.
_PLUGIN = "libXrdClRecorder.so"


class RecorderPlugin:
    """Lets a payload record its XRootD client, and keeps the recording.

    Args:
        folder: the payload's work folder.
        output: folder of the job's output.
        name: name of the execution.
    """

    def __init__(self, folder: str, output: str, name: str) -> None:
        self._written = os.path.join(folder, "recording.csv")
        self._stored = os.path.join(output, RECORDINGS, name)

    @property
    def environment(self) -> Dict[str, str]:
        """Variables of the payload."""
        return {"XRD_PLUGIN": _PLUGIN, "XRD_RECORDERPATH": self._written}

    def keep_recording(self, **process: Any) -> bool:
        """Move the recording to the job's output, with facts on the process; False without any.

        Raises:
            OSError: the output cannot be written.
        """
        try:
            open_regular_file(self._written).close()
        except OSError:  # nothing was written, or the payload has put something else there
            return False
        os.makedirs(os.path.dirname(self._stored), exist_ok=True)
        shutil.move(self._written, f"{self._stored}.csv")
        write_atomically(
            f"{self._stored}.json", json.dumps(process, indent=1, sort_keys=True) + "\n"
        )
        return True
