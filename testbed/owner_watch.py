"""Watch of the process that owns a testbed, by its pidfd: however it ends, the testbed ends.

The watch is a process of the testbed itself: whatever removes the testbed ends it, too.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path


def main() -> None:
    """Wait for the owner's end, then remove the testbed."""
    folder, owner_fd = Path(sys.argv[1]), int(sys.argv[2])
    select.select([owner_fd], [], [])
    # Imported now: a watch waits for hours and should take little memory.
    from treehammer.testbed import lifecycle
    from treehammer.testbed.workspace import Workspace

    box = Workspace(name=folder.name, folder=folder, cache=Path(), sites=())
    lifecycle.take_down(box, lambda _text: None)


if __name__ == "__main__":
    main()
