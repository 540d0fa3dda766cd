"""Where each key and value of a TOML document stands, so that a mistake can name its line.

``tomllib`` keeps no positions; the tree-sitter grammar does.  It is used for positions alone: what
a document means is decided by ``tomllib``.
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
    """Line (from 1) of every table, key and list item of a valid TOML document."""
    lines: dict[KeyPath, int] = {(): 1}
    counts: dict[KeyPath, int] = {}
    for node in Parser(_TOML_LANGUAGE).parse(text.encode()).root_node.named_children:
        if node.type == "pair":
            _locate_pair(node, (), lines)
        elif node.type in ("table", "table_array_element"):
            _locate_table(node, lines, counts)
    return lines


def find_line(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """Line of ``path``, or of the nearest thing around it when it is not written out."""
    while path not in lines:
        path = path[:-1]
    return lines[path]


def _locate_table(node: Node, lines: dict[KeyPath, int], counts: dict[KeyPath, int]) -> None:
    header, *rest = node.named_children
    path = _resolve_header(_split_key(header), counts)
    if node.type == "table_array_element":
        counts[path] = counts.get(path, 0) + 1
        lines.setdefault(path, header.start_point.row + 1)
        path = (*path, counts[path] - 1)
    for length in range(1, len(path)):  # tables that only headers like this one make
        lines.setdefault(path[:length], header.start_point.row + 1)
    lines[path] = header.start_point.row + 1
    for child in rest:
        if child.type == "pair":
            _locate_pair(child, path, lines)


def _resolve_header(keys: tuple[str, ...], counts: Mapping[KeyPath, int]) -> KeyPath:
    """The path of a header: below a list of tables it means the last one so far."""
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
    """The names of a key; ``a."b c"`` gives two."""
    if node.type == "dotted_key":
        return tuple(name for child in node.named_children for name in _split_key(child))
    text = (node.text or b"").decode()
    # Quoted keys have the escapes of strings: TOML itself decodes them.
    return (str(tomllib.loads(f"k = {text}")["k"]),) if node.type == "quoted_key" else (text,)
