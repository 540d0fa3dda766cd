"""Recording of a payload's XRootD client by the client's own recorder plug-in."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any, Dict

from ...shared_files import open_regular_file, write_atomically

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
