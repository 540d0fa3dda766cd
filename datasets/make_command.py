"""``treehammer datasets make``: shipped datasets, and the same content in files of another layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import click

from treehammer.config import Settings
from treehammer.datasets import catalogue as catalogues
from treehammer.datasets import inspect, rewritten, rootenv, spec
from treehammer.datasets.catalogue import FolderCatalogue
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.shown import tell
from treehammer.datasets.wish import FORMATS, ORDERS, Wish
from treehammer.errors import DatasetError
from treehammer.terminal import leaving, progress_bar

#: What the result is to differ in, as Wish takes it.
WISHES = (
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
        "--leave-out",
        is_flag=True,
        help="Leave branches out that cannot be written, instead of refusing.",
    ),
)


def wish_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of :class:`treehammer.datasets.wish.Wish`."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(WISHES), function)


@click.command("make")
@click.argument("name")
@wish_options
@click.option("--as", "new", default="", metavar="NEW", help="Name of a dataset that is made anew.")
@click.option(
    "--from",
    "source",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The file that a merged dataset is made from, or its folder [default: sources_dir].",
)
@click.option("--again", is_flag=True, help="Replace the dataset that is there.")
@click.pass_obj
@leaving("nothing half-made was kept")
def make(
    settings: Settings,
    /,
    name: str,
    new: str,
    source: Path | None,
    again: bool,
    **options: Any,
) -> None:
    """Make a shipped dataset; one that is there already is verified.

    With options that ask for another layout, or with --as, any dataset's content is written anew
    as a dataset of its own: a shipped one's, one that was added, or another that was made so.
    --root alone makes a shipped dataset with that release.

    \b
    Example: treehammer datasets make nanoaod-merged --from ~/Downloads
             treehammer datasets make reference-small --compression zstd:5 --order branch
    """
    asked = Wish(**options)
    given = replace(settings, sources_dir=source or settings.sources_dir)
    catalogue = FolderCatalogue(settings.datasets_dir)
    plan = spec.shipped_spec(name)
    if asked.layout or new or (asked.root and not plan):
        tell(catalogue, _made_anew(given, name, asked, new, again))
        return
    if plan is None:
        hint = f"Shipped: {', '.join(spec.shipped())}."
        if catalogue.has(name):
            hint += " To write it anew, say what is to differ: --compression, --order, --format …"
        raise DatasetError("is not a shipped dataset", where=name, hint=hint)
    software = rootenv.prepare(asked.root or plan.root, settings.software_dir, progress_bar)
    manifest = catalogue.make(
        plan, software, source=given.sources_dir, bars=progress_bar, again=again
    )
    tell(catalogue, manifest)


def _made_anew(settings: Settings, name: str, asked: Wish, new: str, again: bool) -> Manifest:
    wanted = new or asked.name_for(name)
    source = catalogues.ensure(name, settings, progress_bar)
    release = asked.root or source.origin.get("root_requested", inspect.MEASURING_ROOT)
    software = rootenv.prepare(release, settings.software_dir, progress_bar)
    catalogue = FolderCatalogue(settings.datasets_dir)
    return rewritten.make(
        catalogue, source, asked, wanted, software, bars=progress_bar, again=again
    )
