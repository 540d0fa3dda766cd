"""Run by an ordinary user: a testbed with storage and a database is brought up, tried, used by a campaign, taken down.

``python ordinary_testbed.py NAME TEST`` prints what happened as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from treehammer import config
from treehammer.testbed import assembly, lifecycle, places, processes


def typed(sites_file: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a shell prints."""
    command = [sys.executable, "-m", "treehammer", "--sites-file", sites_file, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> None:
    """Do all of it."""
    name, test = sys.argv[1:]
    box = places.make_box(name, 2, config.load(), releases=(), database=True)
    parts = assembly.assemble(box)
    lifecycle.up(box, parts, lambda text: print(text, file=sys.stderr))
    try:
        sites_file = str(assembly.sites_file(box))
        os.environ["TREEHAMMER_DATABASE"] = assembly.database_url(box)
        checked = typed(sites_file, "sites", "check", "--json")
        options = ("--sites", "all", "-S", "repeats=1", "--wait")
        submitted = typed(sites_file, "submit", test, *options)
        stored = typed(sites_file, "db", "check", "--json")
    finally:
        lifecycle.down(box, parts, lambda text: print(text, file=sys.stderr))
    print(
        json.dumps(
            {
                "uid": os.getuid(),
                "folder": str(box.folder),
                "left": box.folder.exists() or bool(processes.own(box.folder)),
                "checks": json.loads(checked.stdout),
                "submitted": submitted.stdout + submitted.stderr,
                "stored": json.loads(stored.stdout),
            }
        )
    )


if __name__ == "__main__":
    main()
