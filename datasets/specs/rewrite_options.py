"""Options for rewriting a dataset: compression, clusters, baskets, order, format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from treehammer.datasets.manifest import ALGORITHMS, DATASET_NAME, RNTUPLE, TTREE
from treehammer.errors import DatasetError, suggest_word

#: Order of baskets in the file -> its name in TTreeCloner.
ORDERS = {
    "entry": "SortBasketsByEntry",
    "branch": "SortBasketsByBranch",
    "offset": "SortBasketsByOffset",
}
FORMATS = (TTREE, RNTUPLE)
SIZE_UNITS = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3}
SIZE_PATTERN = re.compile(r"(\d+(?:\.\d+)?) ?([kMG]?)B")
#: Compression levels that ROOT uses by default.
DEFAULT_LEVELS = {"zlib": 1, "lzma": 7, "lz4": 4, "zstd": 5}


@dataclass(frozen=True)
class RewriteOptions:
    """Layout changes requested for a rewritten dataset; empty fields keep the source's layout.

    Args:
        root: release to write with, as on the ``root`` axis.
        compression: ``zstd:5``, ``zstd`` or ``none``.
        autoflush: of a cluster, its events (``400``) or its compressed bytes (``30MB``).
        basket_size: bytes of a basket of every branch (``32kB``).
        basket_memory: bytes of all baskets together, which ROOT divides (``10MB``).
        across_clusters: baskets are written when they are full, not at the end of a cluster.
        order: of the baskets in the file: one of :data:`ORDERS`.
        format: one of :data:`FORMATS`.
        skip_unwritable: leave out branches that cannot be written, instead of failing.

    Raises:
        DatasetError: an option is invalid, or conflicts with another.
    """

    root: str = ""
    compression: str = ""
    autoflush: str = ""
    basket_size: str = ""
    basket_memory: str = ""
    order: str = ""
    format: str = ""
    across_clusters: bool = False
    skip_unwritable: bool = False

    def __post_init__(self) -> None:
        for option, value, choices in (
            ("--order", self.order, tuple(ORDERS)),
            ("--format", self.format, FORMATS),
        ):
            if value and value not in choices:
                raise DatasetError(
                    f"unknown value {value!r}; expected one of {', '.join(choices)}",
                    where=option,
                    hint=suggest_word(value, choices),
                )
        # Invalid values are reported before conflicts.
        _ = self.compression_setting, self.auto_flush, self.basket_bytes, self.memory_bytes
        if self.basket_size and self.basket_memory:
            raise _conflict_error(
                "--basket-size", "--basket-memory", "Baskets have one size or share one."
            )
        if self.across_clusters and not (self.basket_size and self.auto_flush > 0):
            raise DatasetError(
                "needs the events of a cluster and the size of a basket",
                where="--across-clusters",
                hint="For example: --autoflush 100 --basket-size 4kB",
            )
        if self.writes_rntuple:
            self._check_rntuple_options()

    def _check_rntuple_options(self) -> None:
        for option in ("order", "basket_size", "basket_memory"):
            if getattr(self, option):
                flag = f"--{option.replace('_', '-')}"
                raise _conflict_error(
                    flag, "--format rntuple", "An RNTuple has pages in place of baskets."
                )
        if self.auto_flush > 0:
            raise _conflict_error(
                f"--autoflush {self.autoflush}",
                "--format rntuple",
                "ROOT's importer knows clusters of bytes alone: --autoflush 30MB.",
            )

    @property
    def writes_rntuple(self) -> bool:
        """Whether an RNTuple is requested."""
        return self.format == RNTUPLE

    @property
    def rewrites_events(self) -> bool:
        """Whether events are rewritten; otherwise whole baskets are copied."""
        return not self.order or any(
            (self.root, self.compression, self.autoflush, self.basket_size, self.basket_memory)
        )

    @property
    def changes_layout(self) -> bool:
        """Whether anything but the release is requested."""
        return bool(self.to_mapping().keys() - {"root"})

    @property
    def compression_setting(self) -> int:
        """ROOT's number, 100 * algorithm + level; -1 keeps the source's."""
        if not self.compression:
            return -1
        if self.compression == "none":
            return 0
        name, colon, level = self.compression.partition(":")
        if name not in DEFAULT_LEVELS or (colon and not re.fullmatch("[1-9]", level)):
            raise DatasetError(
                f"{self.compression!r} is not a compression",
                where="--compression",
                hint=f"Known are {', '.join(DEFAULT_LEVELS)}, each with a level from 1 to 9 as in zstd:5, "
                "and none.",
            )
        return 100 * ALGORITHMS[name] + (int(level) if colon else DEFAULT_LEVELS[name])

    @property
    def auto_flush(self) -> int:
        """TTree's number: events, or bytes if negative; 0 keeps the source's."""
        if re.fullmatch("[1-9][0-9]*", self.autoflush):
            return int(self.autoflush)
        return -_parse_size("--autoflush", self.autoflush, "the events of a cluster (400) or ")

    @property
    def basket_bytes(self) -> int:
        """Bytes of every branch's basket; 0 where not requested."""
        return _parse_size("--basket-size", self.basket_size)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all baskets together; 0 where not requested."""
        return _parse_size("--basket-memory", self.basket_memory)

    def to_mapping(self) -> dict[str, str]:
        """Return the requested options by name."""
        return {
            name.replace("_", "-"): value if isinstance(value, str) else "yes"
            for name, value in vars(self).items()
            if value
        }

    def to_command(self, source: str, name: str) -> str:
        """Return the command that makes the dataset."""
        flags = ""
        for option, value in self.to_mapping().items():
            argument = repr(value) if " " in value else value
            flags += f" --{option}" if value == "yes" else f" --{option} {argument}"
        return f"treehammer datasets make {source}{flags} --as {name}"

    def suggest_name(self, source: str) -> str:
        """Suggest a name that contains the source's name and the options.

        Raises:
            DatasetError: no name can be made of them.
        """
        parts = {
            "root": "root{}",
            "compression": "{}",
            "autoflush": "flush{}",
            "basket-size": "baskets{}",
            "basket-memory": "memory{}",
            "across-clusters": "across",
            "order": "by-{}",
            "format": "{}",
        }
        options = self.to_mapping()
        words = [text.format(options[key]) for key, text in parts.items() if key in options]
        name = "-".join([source, *words]).replace(":", "").lower()
        if not DATASET_NAME.fullmatch(name):
            raise DatasetError(
                f"{name!r} is not a valid name", where=source, hint="Name it with --as NEW."
            )
        return name


def parse_rewrite_options(options: Mapping[str, str]) -> RewriteOptions:
    """Parse the options that a manifest keeps."""
    values = {name.replace("-", "_"): value for name, value in options.items()}
    flags = {name: name in values for name in ("across_clusters", "skip_unwritable")}
    return RewriteOptions(**{**values, **flags})  # type: ignore[arg-type]


def _parse_size(flag: str, text: str, or_else: str = "") -> int:
    if not text:
        return 0
    match = SIZE_PATTERN.fullmatch(text)
    size = round(float(match[1]) * SIZE_UNITS[match[2]]) if match else 0
    if not 0 < size < 2**31:
        raise DatasetError(
            f"{text!r} is not {or_else}a size like 32kB or 30MB, of at most 2 GB", where=flag
        )
    return size


def _conflict_error(option: str, other_option: str, reason: str) -> DatasetError:
    return DatasetError(f"cannot be combined with {other_option}", where=option, hint=reason)
