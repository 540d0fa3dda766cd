"""Matplotlib figures as SVG elements inside a page, in the page's text color."""

from __future__ import annotations

import io
from dataclasses import dataclass
from xml.etree import ElementTree

from matplotlib.figure import Figure

#: Color of text and axes while drawing; replaced by the page's text color.
INK_COLOR = "#123456"
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"


@dataclass(frozen=True)
class InlineFigure:
    """An SVG element with a description of its points, and a caption."""

    svg: str
    caption: str


def xml_text(text: str) -> str:
    """Truncate text and replace characters that XML cannot hold."""
    clean = "".join(c if c.isprintable() else "�" for c in text)
    return clean if len(clean) <= 48 else f"{clean[:47]}…"


def render_svg(figure: Figure, name: str, alt: str) -> str:
    """Render a figure as an inline SVG element with own ids, without date, in the page's text color."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    root = ElementTree.fromstring(text)  # noqa: S314 - our own output of the line above
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        for key, value in element.attrib.items():
            element.set(key, _own_ids(key, value, name))
    # The page sets the size, the viewBox keeps the aspect ratio.
    del root.attrib["width"], root.attrib["height"]
    least = f"min-width: {4.5 * figure.get_figwidth():.0f}rem"
    root.attrib.update({"role": "img", "aria-label": alt, "style": least})
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _own_ids(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == f"{{{_XLINK}}}href":
        return value.replace("#", f"#{name}-")
    return value.replace("url(#", f"url(#{name}-").replace(INK_COLOR, "currentColor")
