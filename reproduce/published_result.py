"""Published results: ``result.toml`` states what was measured, the ratio in print, and how to measure it.

A result is a folder with that file; a person adds one without code. Several quantities are ratios:

``effect``
    time of B divided by that of A, which read by turns;
``count``
    an exact counter of B divided by that of A;
``quotient``
    one counter divided by another one of the same measurements;
``slope``
    growth of a metric with a numeric axis, or with another metric, divided by a third one: seconds of
    latency by calls;
``same``
    1 if a text, such as the checksum of all values, is the same for all values of an axis; otherwise 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.datasets.specs.rewrite_options import RewriteOptions
from treehammer.errors import ConfigError, DatasetError, InvalidDocumentError, suggest_nearest
from treehammer.hctests.definition.document_problems import (
    DocumentProblem,
    Items,
    StrictModel,
    load_document,
)
from treehammer.program_output import read_document_text
from treehammer.sql.core.measurement_columns import EXTRA_PREFIX

#: Name of the file in the folder of a result.
RESULT_FILE = "result.toml"
SHIPPED_FOLDER = Path(__file__).with_name("results")
#: Start of the names of campaigns that measure a result.
CAMPAIGN_PREFIX = "in-print-"

Text = Annotated[str, Field(min_length=1)]
Ratio = Annotated[float, Field(gt=0, strict=False)]


class ResultFileError(InvalidDocumentError):
    """A ``result.toml`` is wrong."""


class PublishedTable(StrictModel):
    """The table ``[published]``: what was measured, by whom, and which ratio.

    Attributes:
        ratio: smallest and largest published ratio.
        tolerance: share by which other machines, files and versions may differ from them.
        is_exact: whether the ratio counts something and repeats exactly; otherwise it times.
    """

    title: Text
    source: Text
    ratio: Annotated[Items[Ratio], Field(min_length=2, max_length=2)]
    tolerance: Annotated[float, Field(ge=0, lt=1, strict=False)] = 0.0
    is_exact: Annotated[bool, Field(alias="exact")]
    note: str = ""


class DatasetTable(StrictModel):
    """A table ``[[dataset]]``: a dataset to make, to write with another layout, or to add.

    Attributes:
        source: dataset to write with another layout; a spec beside ``result.toml``, by its suffix; or
            a ROOT file of another writer, which is looked for in ``sources_dir``.
        name: of the dataset; that of a spec is in it.
    """

    source: Annotated[Text, Field(alias="from")]
    name: str = ""
    root: str = ""
    compression: str = ""
    autoflush: str = ""
    basket_size: str = ""
    basket_memory: str = ""
    across_clusters: bool = False
    order: str = ""
    format: str = ""

    @property
    def is_spec(self) -> bool:
        """Whether it is made from a spec beside ``result.toml``."""
        return self.source.endswith(".toml")

    @property
    def is_file(self) -> bool:
        """Whether it is a file of another writer."""
        return self.source.endswith(".root")

    @cached_property
    def options(self) -> RewriteOptions:
        """The layout.

        Raises:
            DatasetError: an option is invalid.
        """
        fields = self.model_dump(exclude={"source", "name"})
        return RewriteOptions(
            **{name: fields[name] for name in asdict(RewriteOptions()) & fields.keys()}
        )


class CampaignTable(StrictModel):
    """The table ``[campaign]``: a test, values of its axes, and keys of its ``[test]``.

    Attributes:
        needs: what this machine alone does not have, as a sentence; '' for nothing.
        is_quick: whether it takes less than two minutes.
    """

    test: Text
    axes: dict[str, Items[str]] = {}
    settings: Annotated[dict[str, str], Field(alias="set")] = {}
    needs: str = ""
    is_quick: Annotated[bool, Field(alias="quick")] = False


class QuantityTable(StrictModel):
    """The table ``[quantity]``: the ratio to compute from the campaign.

    Attributes:
        scale: seconds in a unit of the axis of a slope.
        where: values of axes that select measurements of a quotient or slope.
    """

    kind: Literal["effect", "count", "quotient", "slope", "same"]
    metric: Text
    axis: str = ""
    a: str = ""
    b: str = ""
    divisor: str = ""
    scale: Annotated[float, Field(gt=0, strict=False)] = 1.0
    where: dict[str, str] = {}


class PublishedResult(StrictModel):
    """A published result, and how it is measured again."""

    published: PublishedTable
    dataset: Items[DatasetTable] = ()
    campaign: CampaignTable
    quantity: QuantityTable
    folder: Annotated[Path, Field(exclude=True)] = Path()

    @property
    def name(self) -> str:
        """Name of the result: that of its folder."""
        return self.folder.name

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest ratio that agrees, with the tolerance."""
        low, high = self.published.ratio
        tolerance = self.published.tolerance
        return low * (1 - tolerance), high * (1 + tolerance)

    @property
    def campaign_name(self) -> str:
        """Name of the campaigns that measure it."""
        return CAMPAIGN_PREFIX + self.name


#: Kind of quantity -> keys that it needs, and those that it may have.
_KEYS = {
    "effect": ({"axis", "a", "b"}, set()),
    "count": ({"axis", "a", "b"}, {"where"}),
    "same": ({"axis"}, {"where"}),
    "quotient": ({"divisor"}, {"where"}),
    "slope": ({"axis", "divisor"}, {"where", "scale"}),
}


def _find_problems(result: PublishedResult) -> Iterator[DocumentProblem]:
    """Find what no single key shows: metrics, keys of the kind, an order of bounds, layouts."""
    yield from _find_quantity_problems(result.quantity)
    if result.published.ratio and result.published.ratio[0] > result.published.ratio[-1]:
        yield DocumentProblem(("published", "ratio"), "the smallest ratio comes first")
    for number, dataset in enumerate(result.dataset):
        if not (dataset.name or dataset.is_spec):
            yield DocumentProblem(("dataset", number), "'name' is missing")
        try:
            _ = dataset.options
        except DatasetError as error:
            yield DocumentProblem(("dataset", number), str(error))


def _find_quantity_problems(quantity: QuantityTable) -> Iterator[DocumentProblem]:
    for key in ("metric", "divisor"):
        name = getattr(quantity, key)
        is_catalogued = name in METRICS_BY_NAME or name.startswith(EXTRA_PREFIX)
        if name and not is_catalogued:
            near = suggest_nearest(name, METRICS_BY_NAME)
            yield DocumentProblem(("quantity", key), f"no metric {name!r}{near}")
    needed, possible = _KEYS[quantity.kind]
    present = {key for key in quantity.model_fields_set if key not in ("kind", "metric")}
    for key in sorted(needed - present):
        yield DocumentProblem(
            ("quantity",), f"{key!r} is missing, which kind {quantity.kind!r} needs"
        )
    for key in sorted(present - needed - possible):
        yield DocumentProblem(("quantity", key), f"has no meaning for kind {quantity.kind!r}")


def _fill_missing_keys(document: dict[str, Any]) -> None:
    """Supply required tables and keys, so that the others are still checked."""
    samples: dict[str, dict[str, Any]] = {
        "published": {"title": "?", "source": "?", "ratio": [1.0, 1.0], "exact": False},
        "campaign": {"test": "?"},
        "quantity": {"metric": "cpu_per_event_s"},
    }
    for table, keys in samples.items():
        present = document.get(table)
        document[table] = {**keys, **(present if isinstance(present, dict) else {})}
    if "kind" not in document["quantity"]:  # its other keys mean nothing without it
        metric = "cpu_per_event_s"
        document["quantity"] = {"kind": "quotient", "metric": metric, "divisor": metric}
    datasets = document.get("dataset", [])
    if isinstance(datasets, list):
        for dataset in datasets:
            if isinstance(dataset, dict):
                dataset.setdefault("from", "?")


def read_result(folder: Path) -> PublishedResult:
    """Read the result in a folder.

    Raises:
        ResultFileError: the file cannot be read, or has mistakes; ``problems`` lists all of them.
    """
    path = folder / RESULT_FILE
    hint = "Give the folder of a result; those that are shipped show every key."
    text = read_document_text(path, ResultFileError, hint)
    result = load_document(
        PublishedResult,
        text,
        str(path),
        _fill_missing_keys,
        _find_problems,
        ResultFileError,
    )
    return result.replace(folder=folder.resolve())


def list_shipped_names() -> list[str]:
    """List the names of the shipped results."""
    return sorted(path.parent.name for path in SHIPPED_FOLDER.glob(f"*/{RESULT_FILE}"))


def find_results(names: tuple[str, ...]) -> list[PublishedResult]:
    """Read results by their names, or by their folders; all shipped ones without a name.

    Raises:
        ConfigError: there is no such result, or two have one name.
        ResultFileError: one is wrong.
    """
    shipped = list_shipped_names()
    results = []
    for name in names or tuple(shipped):
        if name in shipped:
            results.append(read_result(SHIPPED_FOLDER / name))
        elif (Path(name) / RESULT_FILE).is_file():
            results.append(read_result(Path(name)))
        else:
            near = suggest_nearest(name, shipped)
            raise ConfigError(
                f"no published result{near}",
                where=name,
                hint=f"Shipped: {', '.join(shipped)}; or the folder of a {RESULT_FILE}.",
            )
    repeated = sorted({r.name for r in results if sum(o.name == r.name for o in results) > 1})
    if repeated:
        raise ConfigError("is given twice", where=repeated[0])
    return results
