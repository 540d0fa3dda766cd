"""``treehammer datasets make``: shipped datasets, and the same content in files of another layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import click

from treehammer.config import Settings
from treehammer.datasets.catalogues import dataset_rewriting, dataset_verification
from treehammer.datasets.catalogues import folder_catalogue as catalogues
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.cli.dataset_names import complete_datasets
from treehammer.datasets.cli.dataset_output import print_dataset
from treehammer.datasets.model.manifest import Manifest
from treehammer.datasets.production import layout_measurement, root_process
from treehammer.datasets.specs import generated_spec
from treehammer.datasets.specs.raw_spec import RawSpec
from treehammer.datasets.specs.rewrite_options import FORMATS, ORDERS, RewriteOptions
from treehammer.errors import DatasetError
from treehammer.terminal import on_interrupt, progress_bar

#: Suffix of a user's spec.
SPEC_SUFFIX = ".toml"

#: Options of :class:`RewriteOptions`.
REWRITE_OPTIONS = (
    click.option(
        "--root",
        default="",
        metavar="RELEASE",
        help="ROOT to write with, as on the root axis [default: the one that wrote the source].",
    ),
    click.option(
        "--compression",
        default="",
        metavar="NAME[:LEVEL]",
        help="zlib, lzma, lz4 or zstd with a level from 1 to 9, or none.",
    ),
    click.option(
        "--autoflush",
        default="",
        metavar="EVENTS|SIZE",
        help="Events of a cluster, or its compressed size (30MB).",
    ),
    click.option(
        "--basket-size", default="", metavar="SIZE", help="Size of every branch's baskets (32kB)."
    ),
    click.option(
        "--basket-memory",
        default="",
        metavar="SIZE",
        help="Size of all baskets together, which ROOT divides among the branches (10MB).",
    ),
    click.option(
        "--order",
        default="",
        type=click.Choice(["", *ORDERS]),
        metavar="|".join(ORDERS),
        help="How the baskets are sorted in the file.",
    ),
    click.option(
        "--format",
        default="",
        type=click.Choice(["", *FORMATS]),
        metavar="|".join(FORMATS),
        help="rntuple writes an RNTuple twin.",
    ),
    click.option(
        "--skip-unwritable",
        is_flag=True,
        help="Leave out branches that cannot be written, instead of failing.",
    ),
)


def rewrite_option_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of :class:`treehammer.datasets.specs.rewrite_options.RewriteOptions`."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(REWRITE_OPTIONS), function)


@click.command("make")
@click.argument("name", shell_complete=complete_datasets)
@rewrite_option_flags
@click.option("--as", "new", default="", metavar="NEW", help="Name of the rewritten dataset.")
@click.option(
    "--source",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The file that a merged dataset is made from, or its folder [default: sources_dir].",
)
@click.option(
    "--replace",
    "replace_existing",
    is_flag=True,
    help="Replace an existing dataset of this name.",
)
@click.pass_obj
@on_interrupt("nothing half-made was kept")
def make(
    settings: Settings,
    /,
    name: str,
    new: str,
    source: Path | None,
    replace_existing: bool,
    **options: Any,
) -> None:
    """Make a shipped dataset; one that is there already is verified.

    NAME may also be a file NAME.toml with a table [raw], which describes files of seeded bytes.

    Options for another layout, or --as, rewrite the content of any dataset as a new one: a shipped,
    an added or a rewritten dataset. --root alone makes a shipped dataset with that release.

    \b
    Example: treehammer datasets make nanoaod-merged --source ~/Downloads
             treehammer datasets make reference-small --compression zstd:5 --order branch
    """
    requested = RewriteOptions(**options)
    settings_with_source = replace(settings, sources_dir=source or settings.sources_dir)
    catalogue = FolderCatalogue(settings.datasets_dir)
    plan = generated_spec.load_shipped_spec(name)
    if name.endswith(SPEC_SUFFIX):
        manifest = _make_own(catalogue, Path(name), requested, new, replace_existing)
    elif requested.changes_layout or new or (requested.root and not plan):
        manifest = _rewrite_dataset(settings_with_source, name, requested, new, replace_existing)
    elif plan:
        manifest = _make_shipped(settings_with_source, plan, requested.root, replace_existing)
    else:
        hint = f"Shipped: {', '.join(generated_spec.list_shipped_specs())}."
        if catalogue.has(name):
            hint += " To rewrite it, give options such as --compression, --order or --format."
        raise DatasetError("is not a shipped dataset", where=name, hint=hint)
    print_dataset(catalogue, manifest)


def _make_shipped(
    settings: Settings, plan: generated_spec.AnySpec, root: str, replace_existing: bool
) -> Manifest:
    """Make a shipped dataset with a ROOT release; '' for that of its specification."""
    catalogue = FolderCatalogue(settings.datasets_dir)
    if isinstance(plan, RawSpec):
        return catalogue.make_raw(plan, bars=progress_bar, replace_existing=replace_existing)
    software = root_process.prepare_dataset_root(
        root or plan.root, settings.software_dir, progress_bar
    )
    return catalogue.make(
        plan,
        software,
        source=settings.sources_dir,
        bars=progress_bar,
        replace_existing=replace_existing,
    )


def _make_own(
    catalogue: FolderCatalogue,
    path: Path,
    requested: RewriteOptions,
    new: str,
    replace_existing: bool,
) -> Manifest:
    """Make a dataset from a user's spec.

    Raises:
        DatasetError: it is not a spec of raw files, or has a name or options that it cannot have.
    """
    spec = generated_spec.load_spec(path)
    if not isinstance(spec, RawSpec):
        raise DatasetError(
            "is not a spec of raw files", where=str(path), hint="It needs a table [raw]."
        )
    if requested != RewriteOptions() or new:
        raise DatasetError(
            "raw files have no layout",
            where=str(path),
            hint="Options other than --replace do not apply.",
        )
    dataset_verification.check_new_name(spec.name)
    return catalogue.make_raw(spec, bars=progress_bar, replace_existing=replace_existing)


def _rewrite_dataset(
    settings: Settings, name: str, requested: RewriteOptions, new: str, replace_existing: bool
) -> Manifest:
    new_name = new or requested.suggest_name(name)
    source = catalogues.ensure_dataset(name, settings, progress_bar)
    release = requested.root or source.origin.get("root_requested", layout_measurement.DEFAULT_ROOT)
    software = root_process.prepare_dataset_root(release, settings.software_dir, progress_bar)
    catalogue = FolderCatalogue(settings.datasets_dir)
    return dataset_rewriting.rewrite_dataset(
        catalogue,
        source,
        requested,
        new_name,
        software,
        bars=progress_bar,
        replace_existing=replace_existing,
    )
