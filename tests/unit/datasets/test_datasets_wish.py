from __future__ import annotations

import pytest

from treehammer.datasets import wish
from treehammer.datasets.wish import Wish
from treehammer.errors import DatasetError


@pytest.mark.parametrize(
    ("text", "setting"),
    [("zstd:5", 505), ("lz4", 404), ("zlib:9", 109), ("lzma", 207), ("none", 0), ("", -1)],
)
def test_compression(text: str, setting: int) -> None:
    assert Wish(compression=text).compression_setting == setting


@pytest.mark.parametrize("text", ["zstd:", "zstd:0", "zstd:10", "gzip", "zstd5", "505"])
def test_what_is_no_compression(text: str) -> None:
    with pytest.raises(DatasetError, match="no compression") as caught:
        Wish(compression=text)
    assert caught.value.where == "--compression"
    assert "zstd:5" in caught.value.hint


def test_clusters_are_of_events_or_of_bytes() -> None:
    assert Wish(autoflush="400").auto_flush == 400
    assert Wish(autoflush="30MB").auto_flush == -30_000_000
    assert Wish(autoflush="1.5 MB").auto_flush == -1_500_000
    assert Wish().auto_flush == 0
    assert Wish(basket_size="32kB").basket_bytes == 32_000
    assert Wish(basket_memory="10MB").memory_bytes == 10_000_000


@pytest.mark.parametrize("text", ["0", "-1", "30", "3GB", "0MB", "many", "30 M"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(DatasetError, match="size like") as caught:
        Wish(basket_size=text)
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
def test_what_has_no_meaning_together(options: dict[str, str], where: str, other: str) -> None:
    with pytest.raises(DatasetError, match=f"no meaning beside {other}") as caught:
        Wish(**options)  # type: ignore[arg-type]
    assert caught.value.where == where
    assert caught.value.hint


def test_unknown_words_are_named() -> None:
    with pytest.raises(DatasetError, match="entry, branch, offset, not 'events'"):
        Wish(order="events")
    with pytest.raises(DatasetError, match="ttree, rntuple, not 'parquet'"):
        Wish(format="parquet")


def test_names_tell_the_options() -> None:
    asked = Wish(root="6.38.00", compression="zstd:5", autoflush="30MB", order="branch")
    assert asked.name_for("nano") == "nano-root6.38.00-zstd5-flush30mb-by-branch"
    assert Wish(format="rntuple", leave_out=True).name_for("nano") == "nano-rntuple"
    with pytest.raises(DatasetError, match="is no name") as caught:
        Wish(root="path:/opt/root").name_for("nano")
    assert "--as" in caught.value.hint


def test_what_a_manifest_keeps_is_the_wish() -> None:
    asked = Wish(compression="lz4:4", basket_size="16kB", leave_out=True)
    assert wish.of(asked.options()) == asked
    command = asked.command("nano", "mine")
    assert command == (
        "treehammer datasets make nano --compression lz4:4 --basket-size 16kB --leave-out --as mine"
    )


def test_baskets_are_copied_where_only_their_order_differs() -> None:
    assert not Wish(order="entry").anew
    assert Wish(order="entry", compression="zstd").anew
    assert Wish().anew
    assert not Wish(root="6.38.00").layout
    assert Wish(format="ttree").layout
