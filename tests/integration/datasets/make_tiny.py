"""Generation of a dataset in a separate process: ``make_tiny.py FOLDER SPEC``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treehammer import config
from treehammer.datasets import root_process
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.specs import dataset_specs
from treehammer.errors import TreehammerError
from treehammer.text_formatting import ProgressCallback, no_progress


@contextmanager
def print_start(title: str, total: int) -> Iterator[ProgressCallback]:
    """Print the start of a step at once; real progress bars omit short steps."""
    print(title, file=sys.stderr, flush=True)
    with no_progress(title, total) as step:
        yield step


folder, spec_file = map(Path, sys.argv[1:])
software = root_process.prepare_dataset_root(
    "6.40.00", config.load_settings().software_dir, no_progress
)
plan = dataset_specs.load_spec(spec_file)
assert isinstance(plan, dataset_specs.GeneratedSpec)
try:
    print(FolderCatalogue(folder).make(plan, software, bars=print_start).hash)
except TreehammerError as error:
    sys.exit(f"refused: {error}")
