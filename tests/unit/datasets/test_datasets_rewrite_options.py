from __future__ import annotations

import pytest

from treehammer.datasets.specs.rewrite_options import RewriteOptions, parse_rewrite_options
from treehammer.errors import DatasetError


@pytest.mark.parametrize(
    ("text", "setting"),
    [("zstd:5", 505), ("lz4", 404), ("zlib:9", 109), ("lzma", 207), ("none", 0), ("", -1)],
)
def test_compression_is_parsed(text: str, setting: int) -> None:
    assert RewriteOptions(compression=text).compression_setting == setting


@pytest.mark.parametrize("text", ["zstd:", "zstd:0", "zstd:10", "gzip", "zstd5", "505"])
def test_invalid_compression_is_refused(text: str) -> None:
    with pytest.raises(DatasetError, match="not a compression") as caught:
        RewriteOptions(compression=text)
    assert caught.value.where == "--compression"
    assert "zstd:5" in caught.value.hint


def test_autoflush_accepts_events_or_bytes() -> None:
    assert RewriteOptions(autoflush="400").auto_flush == 400
    assert RewriteOptions(autoflush="30MB").auto_flush == -30_000_000
    assert RewriteOptions(autoflush="1.5 MB").auto_flush == -1_500_000
    assert RewriteOptions().auto_flush == 0
    assert RewriteOptions(basket_size="32kB").basket_bytes == 32_000
    assert RewriteOptions(basket_memory="10MB").memory_bytes == 10_000_000


@pytest.mark.parametrize("text", ["0", "-1", "30", "3GB", "0MB", "many", "30 M"])
def test_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(DatasetError, match="size like") as caught:
        RewriteOptions(basket_size=text)
    assert caught.value.where == "--basket-size"


@pytest.mark.parametrize(
    ("options", "where", "other"),
    [
        ({"order": "entry", "format": "rntuple"}, "--order", "--format rntuple"),
        ({"basket_size": "32kB", "format": "rntuple"}, "--basket-size", "--format rntuple"),
        ({"autoflush": "400", "format": "rntuple"}, "--autoflush 400", "--format rntuple"),
        ({"basket_size": "32kB", "basket_memory": "1MB"}, "--basket-size", "--basket-memory"),
    ],
)
def test_conflicting_options_are_refused(options: dict[str, str], where: str, other: str) -> None:
    with pytest.raises(DatasetError, match=f"cannot be combined with {other}") as caught:
        RewriteOptions(**options)  # type: ignore[arg-type]
    assert caught.value.where == where
    assert caught.value.hint


def test_unknown_values_are_refused() -> None:
    with pytest.raises(
        DatasetError, match="unknown value 'events'; expected one of entry, branch, offset"
    ):
        RewriteOptions(order="events")
    with pytest.raises(
        DatasetError, match="unknown value 'parquet'; expected one of ttree, rntuple"
    ):
        RewriteOptions(format="parquet")


def test_suggested_names_contain_options() -> None:
    asked = RewriteOptions(root="6.38.00", compression="zstd:5", autoflush="30MB", order="branch")
    assert asked.suggest_name("nano") == "nano-root6.38.00-zstd5-flush30mb-by-branch"
    assert (
        RewriteOptions(format="rntuple", skip_unwritable=True).suggest_name("nano")
        == "nano-rntuple"
    )
    with pytest.raises(DatasetError, match="is not a valid name") as caught:
        RewriteOptions(root="path:/opt/root").suggest_name("nano")
    assert "--as" in caught.value.hint


def test_options_round_trip_through_manifest() -> None:
    asked = RewriteOptions(compression="lz4:4", basket_size="16kB", skip_unwritable=True)
    assert parse_rewrite_options(asked.to_mapping()) == asked
    command = asked.to_command("nano", "mine")
    assert command == (
        "treehammer datasets make nano --compression lz4:4 --basket-size 16kB --skip-unwritable --as mine"
    )


def test_baskets_are_copied_if_only_order_differs() -> None:
    assert not RewriteOptions(order="entry").rewrites_events
    assert RewriteOptions(order="entry", compression="zstd").rewrites_events
    assert RewriteOptions().rewrites_events
    assert not RewriteOptions(root="6.38.00").changes_layout
    assert RewriteOptions(format="ttree").changes_layout
