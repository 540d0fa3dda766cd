"""Log of a payload's XRootD client, which alone knows that reads were tried again."""

from __future__ import annotations

import os
import re
from typing import Dict, Mapping, Optional, Sequence

from ...shared_files import read_file_end
from ...storage_schemes import XROOTD_CLIENT, find_scheme

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
