"""Life cycle of a testbed of an ordinary user: start, probes, a campaign, removal.

``python unprivileged_testbed.py NAME TEST`` prints the results as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from treehammer import config
from treehammer.testbed import lifecycle, process_search, workspace
from treehammer.testbed.components import site_list
from treehammer.testbed.components.site_list import sites_file_path


def run_in_shell(sites_file: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the sites file in a shell; return the completed process."""
    command = [sys.executable, "-m", "treehammer", "--sites-file", sites_file, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> None:
    """Run the life cycle and print the results."""
    name, test = sys.argv[1:]
    box = workspace.define_workspace(name, 2, config.load_settings(), releases=(), database=True)
    parts = site_list.build_components(box)
    lifecycle.bring_up(box, parts, lambda text: print(text, file=sys.stderr))
    try:
        sites_file = str(sites_file_path(box))
        os.environ["TREEHAMMER_DATABASE"] = site_list.read_database_url(box)
        checked = run_in_shell(sites_file, "sites", "check", "--json")
        options = ("--sites", "all", "-S", "repeats=1", "--wait")
        submitted = run_in_shell(sites_file, "submit", test, *options)
        stored = run_in_shell(sites_file, "db", "check", "--json")
    finally:
        lifecycle.take_down(box, lambda text: print(text, file=sys.stderr))
    print(
        json.dumps(
            {
                "uid": os.getuid(),
                "folder": str(box.folder),
                "left": box.folder.exists() or bool(process_search.find_processes(box.folder)),
                "checks": json.loads(checked.stdout),
                "submitted": submitted.stdout + submitted.stderr,
                "stored": json.loads(stored.stdout),
            }
        )
    )


if __name__ == "__main__":
    main()
