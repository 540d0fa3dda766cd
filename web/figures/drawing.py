"""Draw a figure into a file, as a subprocess: Vega's engine and uproot take time and memory to load.

``python -m treehammer.web.figures.drawing FORMAT`` reads a chart's specification or the rows of a tree
as JSON from stdin and writes the file to stdout.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treehammer.program_output import open_binary_stdout

#: File format -> media type.
FIGURE_FORMATS = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "root": "application/x-root",
}
#: Formats of drawings.
DRAWN_FORMATS = ("svg", "png", "pdf")
TREE_NAME = "figure"
_IDS = re.compile(r"(?<=[\"#])(?:clip|gradient_)\d+(?=[\")])")
#: Pixels of a PNG per pixel of the drawing.
_PNG_SCALE = 2


def draw_chart(specification: Mapping[str, Any], form: str) -> bytes:
    """Draw a chart in Vega-Lite as PNG, SVG or PDF, without a browser."""
    import vl_convert

    chart = dict(specification)
    # Specifications hold their data; nothing is read from files or other hosts.
    limits: dict[str, Any] = {"allowed_base_urls": []}
    if form == "png":
        return bytes(vl_convert.vegalite_to_png(chart, scale=_PNG_SCALE, **limits))
    if form == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(chart, **limits))
    return _renumber_ids(vl_convert.vegalite_to_svg(chart, **limits)).encode()


def _renumber_ids(svg: str) -> str:
    """Number ids from 1, so that equal charts have equal files; Vega counts on."""
    ids = list(dict.fromkeys(_IDS.findall(svg)))
    numbers = {id_: f"{id_.rstrip('0123456789')}{place}" for place, id_ in enumerate(ids, 1)}
    return _IDS.sub(lambda match: numbers[match[0]], svg)


def write_tree(
    columns: Sequence[Mapping[str, str]], rows: Sequence[Mapping[str, Any]], title: str
) -> bytes:
    """Write rows as a ROOT file with one TTree.

    Missing values are an empty text, NaN, -2^63, or 255 for booleans.

    Args:
        columns: each with ``name`` and ``type``: text, int, float or bool.
        rows: values by name.
        title: title of the tree.
    """
    import uproot

    arrays = {
        column["name"]: _make_array(column["type"], [row[column["name"]] for row in rows])
        for column in columns
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figure.root"
        with uproot.recreate(file) as out:
            types = {
                name: "string" if isinstance(values, list) else values.dtype
                for name, values in arrays.items()
            }
            out.mktree(TREE_NAME, types, title=title.replace("\0", ""))
            if rows:
                out[TREE_NAME].extend(arrays)
        return file.read_bytes()


def _make_array(kind: str, values: Sequence[Any]) -> Any:
    """Make the values of a column: a list of texts, or an array."""
    import numpy as np

    if kind == "text":
        # ROOT strings end at the first NUL.
        return ["" if value is None else str(value).replace("\0", "") for value in values]
    kinds = {"int": (np.int64, -(2**63)), "float": (np.float64, np.nan), "bool": (np.uint8, 255)}
    dtype, unknown = kinds[kind]
    return np.array([unknown if value is None else value for value in values], dtype)


def draw_file(form: str, request: Mapping[str, Any]) -> bytes:
    """Draw a file of one of :data:`FIGURE_FORMATS`."""
    if form == "root":
        return write_tree(request["columns"], request["rows"], request["title"])
    return draw_chart(request["chart"], form)


def main() -> None:
    """Read JSON from stdin and write the file to stdout."""
    content = draw_file(sys.argv[1], json.load(sys.stdin))
    with open_binary_stdout() as out:
        out.write(content)


if __name__ == "__main__":
    main()
