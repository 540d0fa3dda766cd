"""Labels of variants."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from service_thread import run_service

from treehammer.hctests.definition.model import Scalar
from treehammer.sql.write.store import Store
from treehammer.web.labels import label_variants


def variant(**axes: Scalar) -> str:
    return json.dumps(axes, sort_keys=True, separators=(",", ":"))


def test_common_axes_are_left_out() -> None:
    variants = [
        variant(root=root, cache="warm", branches=share, cache_mb=mb)
        for root in ("6.40.00", "6.38.00")
        for share in (1.0, 0.02)
        for mb in (0, 30)
    ]
    labels = label_variants(variants, hide_release=True)
    assert labels.shared_text == "cache=warm"
    assert labels.axes == ("branches", "cache_mb")
    assert labels.names[variants[0]] == "branches=100% cache_mb=0"
    assert labels.values["branches=100% cache_mb=0"] == "100% · 0"
    assert list(dict.fromkeys(labels.names.values())) == [
        "branches=2% cache_mb=0",
        "branches=2% cache_mb=30",
        "branches=100% cache_mb=0",
        "branches=100% cache_mb=30",
    ]


def test_releases_of_a_variant_are_adjacent() -> None:
    variants = [variant(root=root, size=n) for root in ("6.38.00", "6.40.00") for n in (1, 2)]
    assert [*label_variants(variants).names] == [variants[place] for place in (0, 2, 1, 3)]


def test_invalid_variants_are_shown_unchanged() -> None:
    texts = ["<script>", variant(a=1, b=2), "[1]", "{}", '{"a":[1]}', '{"a":' + "9" * 400 + "}"]
    labels = label_variants(texts)
    assert (labels.axes, labels.shared_text) == ((), "")
    expected = dict(zip(texts, texts, strict=True)) | {texts[1]: "a=1 b=2"}
    assert labels.names == expected
    assert labels.label("another") == "another"
    assert labels.label(None) == "–"


def test_single_variant_has_all_axes() -> None:
    one, other = (variant(root=root, only=1) for root in ("6.38.00", "6.40.00"))
    labels = label_variants([one])
    assert (labels.names, labels.shared_text, labels.axes) == ({one: "only=1 root=6.38.00"}, "", ())
    labels = label_variants([one, other], hide_release=True)
    assert {*labels.names.values()} == {"only=1"}


@pytest.mark.parametrize(
    "values",
    [
        (1, 1.0, True),
        ("1", 1),
        (0.02, 0.0200000001),
        (0.12345678, 0.12345679),
        (0.5, "50%"),
        (1, "1 b=2"),
    ],
)
def test_different_variants_have_different_labels(values: tuple[Scalar, ...]) -> None:
    variants = [variant(branches=value) for value in values] + [variant(branches=1, b=2)]
    assert len({*label_variants(variants).names.values()}) == len({*variants})
    alone = label_variants(variants[:-1])
    short = {*alone.values.values()}
    assert len(short) == len(alone.values) == (len(values) if alone.axes else 0)


def test_label_is_independent_of_spelling() -> None:
    labels = label_variants(['{"a":1,"b":2}', '{"b": 2, "a": 1}', '{"a":2,"b":2}'])
    assert [*labels.names.values()] == ["a=1", "a=1", "a=2"]


def test_labels_are_in_the_order_of_their_values() -> None:
    """Numbers count as numbers, and text such as versions by its parts."""
    values = ["0.2", "0.04", "1.5", "0.4", "1.25", '"5.10"', '"5.9"']
    names = label_variants(f'{{"x":{value}}}' for value in values).names
    assert [*names.values()] == ["x=0.04", "x=0.2", "x=0.4", "x=1.25", "x=1.5", "x=5.9", "x=5.10"]


def test_pages_list_variants_in_the_order_of_their_values(tmp_path: Path) -> None:
    """Pages whose tables come from the database sort them as those that sort them themselves."""
    shares = (0.2, 10.5, 0.04, 2.5)
    labels = [f"share={share:g}" for share in shares]
    url = f"sqlite:///{tmp_path / 'results.db'}"
    with Store.open(url) as store:
        jobs = [make_job_row(f"j{place}", label=label) for place, label in enumerate(labels)]
        store.add_campaign(make_campaign_row(), jobs)
        for place, share in enumerate(shares):
            for root in ("6.38.00", "6.40.00"):
                values: dict[str, Any] = dict.fromkeys(
                    ("cpu_per_event_s", "wall_per_event_s", "loop_cpu_s"), 1e-3
                )
                values |= {"variant": f'{{"root":"{root}","share":{share}}}', "axis_root": root}
                position = 1 + (root == "6.40.00")
                store.add([make_measurement(f"j{place}", 1, position, site="A", **values)])
    with run_service(tmp_path, reading_open=True) as service:
        day = make_measurement("x").values["day"]
        tables = (
            service.load_tables("/compare?a=6.38.00&b=6.40.00")["by_site"],
            service.load_tables("/campaigns/campaign")["jobs"],
            service.load_tables(f"/days/{day}?site=A")["measured"],
            service.load_tables("/sites/A")["work"],
            service.load_tables("/explore?metric=cpu_per_event_s&by=variant")["figure"],
        )
    for rows in tables:
        names = [row["label"] if "label" in row else row["variant"] for row in rows]
        found = [float(re.findall(r"share\W+([\d.]+)", name)[0]) for name in names]
        assert list(dict.fromkeys(found)) == sorted(shares)
