from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treehammer.collectors.record import metric_catalogue
from treehammer.config import Settings, load_settings
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition import model
from treehammer.hctests.definition.matrix import expand_variants
from treehammer.hctests.definition.model import (
    SERIES_COLUMNS,
    PinnedTest,
    Variant,
    compute_comparison_key,
    compute_series,
    compute_test_hash,
    drop_release_axis,
    get_payload_hash,
)

WriteTest = Callable[..., Path]
Pin = Callable[..., PinnedTest]

BASE: dict[str, Any] = {
    "test": {"name": "mine", "payload": "read.py", "seed": 1, "tree": "events"},
    "matrix": {"root": ["6.38.00", "6.40.00"], "cache_mb": [0, 30]},
    "settings": {"a": 1, "b": [1, 2]},
    "metrics": {"mine": {"unit": "B"}},
    "environment": {"A": "1"},
}


def toml(document: dict[str, Any]) -> str:
    """Format a document as TOML, in the given order of tables and keys."""
    tables = []
    for name, table in document.items():
        tables.append(f"[{name}]")
        for key, value in table.items():
            if isinstance(value, dict):
                inner = ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items())
                tables.append(f"{key} = {{{inner}}}")
            else:
                tables.append(f"{key} = {json.dumps(value)}")
    return "\n".join(tables) + "\n"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"cache_dir": tmp_path / "cache"}, environ={}, folder=tmp_path)


@pytest.fixture
def pin(write_test: WriteTest, settings: Settings) -> Pin:
    def pinned(
        changes: dict[str, dict[str, Any]] | None = None, order: int = 1, **files: str
    ) -> PinnedTest:
        document = {name: {**table} for name, table in BASE.items()}
        for table, keys in (changes or {}).items():
            document[table].update(keys)
        document = {
            name: dict(list(document[name].items())[::order]) for name in list(document)[::order]
        }
        return pinned_tests.pin_test(str(write_test(toml(document), **files)), settings)

    return pinned


def key(pinned: PinnedTest) -> str:
    variant = expand_variants(pinned.definition, "file")[0]
    return compute_series(compute_test_hash(pinned), variant, "d" * 64, "local", "file")


def test_order_and_comments_do_not_change_the_identity(pin: Pin) -> None:
    first = pin()
    second = pin(order=-1)
    assert second.hashes["test.toml"] != first.hashes["test.toml"]
    assert compute_test_hash(second) == compute_test_hash(first)
    assert key(second) == key(first)


@pytest.mark.parametrize(
    "changes",
    [
        {"test": {"name": "other"}},
        {"test": {"description": "words"}},
        {"test": {"repeats": 6, "rounds": 4, "passes": 9}},
        {"test": {"wall_limit_s": 5, "memory_limit_mb": 9}},
        {"test": {"dataset": "renamed"}},
        {"matrix": {"events": [1.0, 0.5], "bundle": ["root"]}},
        {"metrics": {"mine": {"unit": "B", "description": "words", "better": "lower"}}},
    ],
)
def test_irrelevant_changes_keep_the_series(pin: Pin, changes: dict[str, dict[str, Any]]) -> None:
    assert compute_test_hash(pin(changes)) == compute_test_hash(pin())


@pytest.mark.parametrize(
    "changes",
    [
        {"test": {"seed": 2}},
        {"test": {"tree": "other"}},
        {"test": {"payload": "again.py"}},
        {"settings": {"a": 2}},
        {"test": {"record": True}},
        {"environment": {"A": "2"}},
        {"metrics": {"mine": {"unit": "s"}}},
    ],
)
def test_relevant_changes_start_a_new_series(pin: Pin, changes: dict[str, dict[str, Any]]) -> None:
    assert compute_test_hash(pin(changes, again_py="1")) != compute_test_hash(pin())


def test_file_content_is_part_of_the_identity(pin: Pin) -> None:
    first = pin()
    second = pin(read_py="print('other')\n")
    assert compute_test_hash(first) != compute_test_hash(second)
    assert get_payload_hash(first) != get_payload_hash(second)
    listed = {"test": {"files": ["helper.h"]}}
    third = pin(listed, helper_h="1", read_py="print()\n")
    fourth = pin(listed, helper_h="2")
    assert get_payload_hash(third) == get_payload_hash(first)
    assert len({compute_test_hash(test) for test in (first, third, fourth)}) == 3


def test_series_depends_on_each_of_its_columns(pin: Pin, monkeypatch: pytest.MonkeyPatch) -> None:
    test = compute_test_hash(pin())
    one, other = expand_variants(pin().definition, "file")[:2]
    columns: list[tuple[Any, ...]] = [
        (test, one, "d", "local", "file"),
        (test, other, "d", "local", "file"),
        (test, one, "e", "local", "file"),
        (test, one, "d", "cern", "file"),
        (test, one, "d", "local", "root"),
    ]
    columns.append((test, one, "d", "local", "file", "cern"))
    keys = {compute_series(*values) for values in columns}
    monkeypatch.setattr(model, "INSTRUMENT_VERSION", metric_catalogue.INSTRUMENT_VERSION + 1)
    assert len(keys | {compute_series(*columns[0])}) == 7


def test_own_storage_leaves_series_unchanged(pin: Pin) -> None:
    test = compute_test_hash(pin())
    variant = expand_variants(pin().definition, "file")[0]
    keys = [
        compute_series(test, variant, "", "cern", "file", storage)
        for storage in ("", "cern", "ral")
    ]
    assert keys[0] == keys[1] != keys[2]


def test_comparison_key_ignores_the_compared_axes(pin: Pin) -> None:
    test = pin()
    variants = expand_variants(test.definition, "file")

    def keys(*without: str) -> int:
        return len(
            {
                compute_comparison_key(
                    {
                        "test_hash": compute_test_hash(test),
                        "variant": variant.canonical_json,
                        "dataset_hash": "d",
                        "site": site,
                        "door": door,
                        "instrument_version": metric_catalogue.INSTRUMENT_VERSION,
                    },
                    without=without,
                )
                for variant in variants
                for site in ("x", "y")
                for door in ("file", "root")
            }
        )

    assert len(variants) == 4
    assert keys() == 16
    assert keys("root") == 8
    assert keys("root", "cache_mb") == 4
    assert keys("door") == 8
    assert keys("site", "door") == 4


def test_formats_share_only_the_comparison_key(pin: Pin) -> None:
    def key(format_: str, dataset: str, content: str, *without: str) -> str:
        row = {
            "test_hash": "t",
            "variant": Variant((("format", format_), ("root", "6.40.00"))).canonical_json,
            "dataset_hash": dataset,
            "content_hash": content,
            "site": "x",
            "door": "file",
            "instrument_version": 1,
        }
        return compute_comparison_key(row, without=without)

    tree, ntuple = ("ttree", "d", "d"), ("rntuple", "twin of d", "d")
    assert key(*tree, "format") == key(*ntuple, "format")
    assert key(*tree, "format") != key("rntuple", "twin of e", "e", "format")
    assert key(*tree, "root") != key("ttree", "twin of d", "d", "root")


def test_stored_rows_have_the_planned_keys(pin: Pin) -> None:
    test = pin()
    variant = expand_variants(test.definition, "file")[1]
    row: dict[str, Any] = {
        "test_hash": compute_test_hash(test),
        "variant": variant.canonical_json,
        "dataset_hash": None,  # as the database stores a test without dataset
        "site": "local",
        "door": "file",
        "instrument_version": metric_catalogue.INSTRUMENT_VERSION,
        "host": "node7",
        "axis_root": "6.40.00",
    }
    series = compute_series(compute_test_hash(test), variant, "", "local", "file")
    assert compute_comparison_key(row, without=()) == series
    assert compute_comparison_key(row, without=("root",)) != series
    assert set(SERIES_COLUMNS) <= set(metric_catalogue.METRICS_BY_NAME)


def test_variant_identity_depends_on_values_alone() -> None:
    one = Variant((("root", "6.40.00"), ("cache_mb", 30)))
    assert one.canonical_json == Variant(one.values[::-1]).canonical_json
    assert (
        dataclasses.replace(one, values=(("root", "6.40.00"),)).canonical_json != one.canonical_json
    )


def test_variant_without_release_is_canonical() -> None:
    texts = ('{"root":"6.38.00","a":1,"b":"x"}', '{ "b": "x", "a": 1, "root": "6.40.00" }')
    assert {drop_release_axis(text) for text in texts} == {'{"a":1,"b":"x"}'}
    assert drop_release_axis('{"a":2,"b":"x"}') == '{"a":2,"b":"x"}'
    for other in ("", "[1]", "no JSON", "[" * 50_000):
        assert drop_release_axis(other) == other
