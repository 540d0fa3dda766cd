"""Draw a figure into a file, as a subprocess: Vega's engine takes time and memory to load.

``python -m treehammer.web.figures.drawing FORMAT`` reads the other arguments of :func:`draw_chart` as JSON
from stdin and writes the file to stdout.
"""

from __future__ import annotations

import codecs
import json
import re
import struct
import sys
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any

#: File format -> media type.
FIGURE_FORMATS = {"png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}
_IDS = re.compile(r"(?<=[\"#])(?:clip|gradient_)\d+(?=[\")])")
#: Pixels of a PNG per pixel of the drawing, and of one on paper per inch.
_PNG_SCALE, _PAPER_DPI = 2, 600
_POINTS_PER_INCH = 72
_MM_PER_POINT = 25.4 / _POINTS_PER_INCH
#: Widths of a paper's columns in mm.
PAPER_WIDTHS_MM = {"single": 86.0, "double": 178.0}
#: Pixels of a drawing per mm on paper: its letters of 11 pixels have 8 points there.
PIXELS_PER_MM = 11 / 8 / _MM_PER_POINT
_SVG_SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)"')
_PDF_TRAILER = re.compile(
    rb"/Size (\d+)\s+/Root (\d+) 0 R.*?startxref\s+(\d+)\s+%%EOF\s*$", re.DOTALL
)
#: Signature and first chunk of a PNG file.
_PNG_HEADER_BYTES = 33
#: Field of a file's metadata -> Dublin Core's term.
_DUBLIN_CORE = {"Title": "title", "Subject": "source", "Creator": "creator", "CreationDate": "date"}


def draw_chart(
    specification: Mapping[str, Any],
    form: str,
    *,
    width_mm: float = 0.0,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Draw a chart in Vega-Lite as PNG, SVG or PDF, without a browser.

    Args:
        form: one of :data:`FIGURE_FORMATS`.
        width_mm: width on paper; 0 for that of the chart.
        metadata: ``Title``, ``Subject`` and ``Creator`` of the file; the time is added.
    """
    import vl_convert

    # Specifications hold their data; nothing is read from files or other hosts.
    limits: dict[str, Any] = {"allowed_base_urls": []}
    svg = _renumber_ids(vl_convert.vegalite_to_svg(dict(specification), **limits))
    size = _SVG_SIZE.search(svg)
    if size is None:
        raise ValueError("the drawing has no size")
    width, height = map(float, size.groups())
    # Points of a pixel: one, unless the file has the width of a paper's column.
    scale = width_mm / _MM_PER_POINT / width if width_mm else 1.0
    now = datetime.now(UTC).isoformat(timespec="seconds")
    texts = {**metadata, "CreationDate": now} if metadata else {}
    if form == "png":
        options = {"scale": scale, "ppi": _PAPER_DPI} if width_mm else {"scale": _PNG_SCALE}
        return _add_png_texts(bytes(vl_convert.svg_to_png(svg, **options)), texts)
    if form == "pdf":
        points = f'width="{scale * width:.3f}" height="{scale * height:.3f}"'
        return _add_pdf_info(bytes(vl_convert.svg_to_pdf(svg.replace(size[0], points, 1))), texts)
    if width_mm:
        height_mm = width_mm * height / width
        svg = svg.replace(size[0], f'width="{width_mm:g}mm" height="{height_mm:.2f}mm"', 1)
    return _add_svg_metadata(svg, texts).encode()


def _add_png_texts(png: bytes, texts: Mapping[str, str]) -> bytes:
    """Add texts as iTXt chunks behind the header of a PNG file."""
    chunks = b""
    for name, text in texts.items():
        data = b"iTXt" + name.encode() + b"\0\0\0\0\0" + text.encode()
        chunks += struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    return png[:_PNG_HEADER_BYTES] + chunks + png[_PNG_HEADER_BYTES:]


def _add_pdf_info(pdf: bytes, texts: Mapping[str, str]) -> bytes:
    """Append the document information to a PDF file, as an incremental update."""
    trailer = _PDF_TRAILER.search(pdf)
    if not texts or trailer is None:
        return pdf
    count, root, table = map(int, trailer.groups())
    start = len(pdf) + 1
    digits = re.sub("[^0-9]", "", texts["CreationDate"])
    entries = {
        name: (codecs.BOM_UTF16_BE + text.encode("utf-16-be")).hex()
        for name, text in {**texts, "CreationDate": f"D:{digits[:14]}Z"}.items()
    }
    info = " ".join(f"/{name} <{text}>" for name, text in entries.items())
    update = f"\n{count} 0 obj\n<< {info} >>\nendobj\n"
    position = len(pdf) + len(update)
    update += (
        f"xref\n{count} 1\n{start:010d} 00000 n\r\ntrailer\n<< /Size {count + 1} /Root {root} 0 R "
    )
    update += f"/Info {count} 0 R /Prev {table} >>\nstartxref\n{position}\n%%EOF\n"
    return pdf + update.encode("ascii")


def _add_svg_metadata(svg: str, texts: Mapping[str, str]) -> str:
    """Add a title and Dublin Core's terms to an SVG file."""
    if not texts:
        return svg
    terms = "".join(
        f"<dc:{term}>{escape(texts[name])}</dc:{term}>"
        for name, term in _DUBLIN_CORE.items()
        if name in texts
    )
    metadata = f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">{terms}</metadata>'
    end = svg.index(">") + 1
    return f"{svg[:end]}<title>{escape(texts['Title'])}</title>{metadata}{svg[end:]}"


def _renumber_ids(svg: str) -> str:
    """Number ids from 1, so that equal charts have equal files; Vega counts on."""
    ids = list(dict.fromkeys(_IDS.findall(svg)))
    numbers = {id_: f"{id_.rstrip('0123456789')}{place}" for place, id_ in enumerate(ids, 1)}
    return _IDS.sub(lambda match: numbers[match[0]], svg)


def main() -> None:
    """Read JSON from stdin and write the file to stdout."""
    content = draw_chart(form=sys.argv[1], **json.load(sys.stdin))
    # sys.stdout.buffer is no buffer where PYTHONUNBUFFERED is set: its writes may end early.
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(content)


if __name__ == "__main__":
    main()
