"""Completion of datasets in the shell."""

from __future__ import annotations

from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.specs import generated_spec
from treehammer.terminal import complete_names


def _list_datasets(settings: Settings) -> list[str]:
    """List the datasets on this machine, and shipped ones that can be made."""
    present = FolderCatalogue(settings.datasets_dir).names()
    return sorted({*present, *generated_spec.list_shipped_specs()})


complete_datasets = complete_names(_list_datasets)
