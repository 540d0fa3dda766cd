"""Identity: content hashes of tests, series and comparisons.  Names of people and files play no part.

What a series is made of stands in six columns of every measurement, :data:`SERIES_COLUMNS`, so that
analysis can tell from stored rows what belongs together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final

from treehammer.collectors.record.metric_catalogue import INSTRUMENT_VERSION
from treehammer.hctests.matrix.definition import (
    FORMAT_AXIS,
    TEST_FILE_NAME,
    PinnedTest,
    Scalar,
    Variant,
)

#: Columns of a measurement that make its series.
SERIES_COLUMNS: Final = (
    "test_hash",
    "variant",
    "dataset_hash",
    "site",
    "door",
    "instrument_version",
)
#: The axis whose values are releases of ROOT, for which a measurement has a column of its own.
RELEASE_AXIS: Final = "root"


def compute_test_hash(pinned: PinnedTest) -> str:
    """SHA-256 (hex) of what the test does.

    It covers the content of every file but test.toml, and of test.toml what changes a single
    measurement: payload, tree, seed, settings and units of its own metrics.  Matrix, counts of
    repeats, rounds and passes, limits, name and description can change within a series; the dataset
    stands in the series by its own hash.
    """
    definition = pinned.definition
    return _hash_document(
        {
            "files": {name: sha for name, sha in pinned.hashes.items() if name != TEST_FILE_NAME},
            "payload": definition.payload,
            "tree": definition.tree,
            "seed": definition.seed,
            "settings": definition.settings,
            "metrics": {name: metric.unit for name, metric in definition.metrics.items()},
        }
    )


compute_test_hash.__test__ = False  # type: ignore[attr-defined]  # not a pytest function


def get_payload_hash(pinned: PinnedTest) -> str:
    """SHA-256 (hex) of the payload file alone."""
    return pinned.hashes[pinned.definition.payload]


def compute_series(test: str, variant: Variant, dataset_hash: str, site: str, door: str) -> str:
    """Fingerprint (SHA-256, hex) of the series that a measurement belongs to.

    Args:
        test: :func:`test_hash` of the test.
        variant: of its matrix.
        dataset_hash: ``Manifest.hash``; '' for a test that reads no dataset.
        site: name of the site.
        door: name of the door.
    """
    return compute_comparison_key(
        {
            "test_hash": test,
            "variant": variant.canonical_json,
            "dataset_hash": dataset_hash,
            "site": site,
            "door": door,
            "instrument_version": INSTRUMENT_VERSION,
        },
        without=(),
    )


def compute_comparison_key(measurement: Mapping[str, Any], *, without: Collection[str]) -> str:
    """The fingerprint without the compared axes: equal for measurements that may be compared.

    Args:
        measurement: holds :data:`SERIES_COLUMNS`, and ``content_hash``, which stands in place of
            the dataset's own where formats are compared: each has its dataset.
        without: axes of the variant, ``site``, ``door`` or ``dataset``; with none it is the series.
    """
    row = {name: measurement.get(name) for name in SERIES_COLUMNS}
    # The database keeps no empty text: no dataset is NULL there and '' in a plan.
    row["dataset_hash"] = row["dataset_hash"] or ""
    if "dataset" in without:
        row["dataset_hash"] = ""
    elif FORMAT_AXIS in without:
        row["dataset_hash"] = measurement.get("content_hash") or row["dataset_hash"]
    row["axes"] = parse_axes(str(row.pop("variant")), without=without)
    for name in ("site", "door"):
        if name in without:
            del row[name]
    return _hash_document(row)


def parse_axes(variant: str, *, without: Collection[str] = ()) -> dict[str, Scalar]:
    """The axes of a variant and their values.

    Args:
        variant: as a measurement holds it, a JSON object.
        without: axes that are left out.

    Raises:
        ValueError: it is no JSON.
        AttributeError: it is another thing than an object.
    """
    return {name: value for name, value in json.loads(variant).items() if name not in without}


@lru_cache(maxsize=4096)
def drop_release_axis(variant: str) -> str:
    """A variant without its release of ROOT, as canonical JSON: equal for the same work.

    A text of others that is no JSON object is a variant of its own.
    """
    try:
        return Variant(tuple(parse_axes(variant, without=(RELEASE_AXIS,)).items())).canonical_json
    except (ValueError, AttributeError, RecursionError):
        return variant


def _hash_document(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
