"""Hash of what a compiled loop does: of its machine code and data, and of the script around it.

Two loops with one hash execute the same instructions, although their sources may differ in comments,
names or layout.
"""

from __future__ import annotations

import ast
import hashlib
import struct

#: Sections that are not loaded, those without contents, and notes such as the linker's identity.
_ALLOCATED, _NO_CONTENTS, _NOTE = 2, 8, 7
#: Header of a 64-bit ELF file of little endian, from its table of sections on; and one of that table.
_HEADER, _SECTION = struct.Struct("<40xQ10xHH2x"), struct.Struct("<IIQQQQ24x")


def hash_loop(library: str, script: str, code: str) -> str:
    """Hash a loop's library, and a Python script without the loop's code and comments; '' if unknown."""
    try:
        digest = hashlib.sha256(_hash_library(library))
        if script.endswith(".py"):
            with open(script, encoding="utf-8") as stream:
                tree = ast.parse(stream.read())
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and node.value == code:
                    node.value = ""
            digest.update(
                hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogateescape")).digest()
            )
    except (OSError, ValueError, SyntaxError, struct.error):
        return ""
    return digest.hexdigest()


def _hash_library(path: str) -> bytes:
    """Hash the sections of a shared library that a process maps."""
    with open(path, "rb") as stream:
        content = stream.read()
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file of little endian")
    table, size, count = _HEADER.unpack_from(content)
    digest = hashlib.sha256()
    for number in range(count):
        _, kind, flags, address, offset, length = _SECTION.unpack_from(
            content, table + number * size
        )
        if flags & _ALLOCATED and kind != _NOTE:
            digest.update(f"{kind} {flags} {address} {length}\n".encode())
            if kind != _NO_CONTENTS:
                digest.update(content[offset : offset + length])
    return digest.digest()
