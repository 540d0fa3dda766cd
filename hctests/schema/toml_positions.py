"""Line numbers of the keys and values of a TOML document, for error messages.

``tomllib`` provides no positions; the tree-sitter grammar does.  It is used for positions only,
``tomllib`` for the content.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

import tree_sitter_toml
from tree_sitter import Language, Node, Parser

#: Keys and list indices from the document's root to a key or value.
KeyPath = tuple[str | int, ...]

_TOML_LANGUAGE = Language(tree_sitter_toml.language())


def locate_keys(text: str) -> Mapping[KeyPath, int]:
    """Map every table, key and list item of a valid TOML document to its line, from 1."""
    lines: dict[KeyPath, int] = {(): 1}
    counts: dict[KeyPath, int] = {}
    for node in Parser(_TOML_LANGUAGE).parse(text.encode()).root_node.named_children:
        if node.type == "pair":
            _locate_pair(node, (), lines)
        elif node.type in ("table", "table_array_element"):
            _locate_table(node, lines, counts)
    return lines


def find_line(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """Find the line of ``path``, or of the nearest enclosing item that is written out."""
    while path not in lines:
        path = path[:-1]
    return lines[path]


def _locate_table(node: Node, lines: dict[KeyPath, int], counts: dict[KeyPath, int]) -> None:
    header, *children = node.named_children
    path = _resolve_header(_split_key(header), counts)
    if node.type == "table_array_element":
        counts[path] = counts.get(path, 0) + 1
        lines.setdefault(path, header.start_point.row + 1)
        path = (*path, counts[path] - 1)
    for length in range(1, len(path)):  # tables that exist only through headers like this
        lines.setdefault(path[:length], header.start_point.row + 1)
    lines[path] = header.start_point.row + 1
    for child in children:
        if child.type == "pair":
            _locate_pair(child, path, lines)


def _resolve_header(keys: tuple[str, ...], counts: Mapping[KeyPath, int]) -> KeyPath:
    """Resolve a header's path; in a list of tables it refers to the last one so far."""
    path: KeyPath = ()
    for number, key in enumerate(keys):
        path = (*path, key)
        if path in counts and number < len(keys) - 1:
            path = (*path, counts[path] - 1)
    return path


def _locate_pair(node: Node, above: KeyPath, lines: dict[KeyPath, int]) -> None:
    key, value = node.named_children[0], node.named_children[-1]
    path = above
    for name in _split_key(key):
        path = (*path, name)
        lines.setdefault(path, key.start_point.row + 1)
    _locate_value(value, path, lines)


def _locate_value(node: Node, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    if node.type == "array":
        items = [child for child in node.named_children if child.type != "comment"]
        for index, item in enumerate(items):
            lines[*path, index] = item.start_point.row + 1
            _locate_value(item, (*path, index), lines)
    elif node.type == "inline_table":
        for child in node.named_children:
            if child.type == "pair":
                _locate_pair(child, path, lines)


def _split_key(node: Node) -> tuple[str, ...]:
    """Split a key into its names; ``a."b c"`` has two."""
    if node.type == "dotted_key":
        return tuple(name for child in node.named_children for name in _split_key(child))
    text = (node.text or b"").decode()
    # Quoted keys may contain escapes, which tomllib decodes.
    return (str(tomllib.loads(f"k = {text}")["k"]),) if node.type == "quoted_key" else (text,)
