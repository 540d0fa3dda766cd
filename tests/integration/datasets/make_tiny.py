"""Makes a dataset in a process of its own: ``make_tiny.py FOLDER SPEC``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treehammer import config
from treehammer.datasets import rootenv, spec
from treehammer.datasets.catalogue import FolderCatalogue
from treehammer.errors import TreehammerError
from treehammer.terminal import Step, silent


@contextmanager
def told(what: str, total: int) -> Iterator[Step]:
    """Say at once what is begun: a real bar is silent about what is soon done."""
    print(what, file=sys.stderr, flush=True)
    with silent(what, total) as step:
        yield step


folder, spec_file = map(Path, sys.argv[1:])
software = rootenv.prepare("6.40.00", config.load().software_dir, silent)
try:
    print(FolderCatalogue(folder).make(spec.load(spec_file), software, bars=told).hash)
except TreehammerError as error:
    sys.exit(f"refused: {error}")
