"""The kit as a shared library: ROOT without PyROOT, for loops that a compiler has compiled.

The names below are those that PyROOT has, so that the passes use either.
"""

from __future__ import annotations

import ctypes
import json
from types import SimpleNamespace
from typing import Any, Dict, Optional

from .loop_libraries import LOOP_SYMBOL


class CompiledRoot:
    """ROOT as loaded by the kit's library.

    Args:
        kit: path of the kit's library.
        loop: path of the loop's library, which needs the kit's.

    Raises:
        OSError: a library is missing, or needs symbols that this ROOT does not have.
    """

    def __init__(self, kit: str, loop: str) -> None:
        # Also libraries that ROOT and the test load later find ROOT's symbols.
        library = ctypes.CDLL(kit, mode=ctypes.RTLD_GLOBAL)
        self._call_library = library.treehammer_call
        self._call_library.restype = ctypes.c_char_p
        self._call_library.argtypes = [
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_char_p),
        ]
        self._loop = loop
        self.gROOT = _Namespace(self, "gROOT")
        self.gSystem = _Namespace(self, "gSystem")
        self.gEnv = _Namespace(self, "gEnv")
        self.treehammer = _Namespace(self, "treehammer")

    def load_loop(self, name: str) -> None:
        """Install the loop's function as the timed loop, a function of the kit called ``name``.

        Raises:
            OSError: its library is missing, or needs symbols that no loaded library has.
        """
        function = ctypes.CDLL(self._loop)[LOOP_SYMBOL]
        function.restype = ctypes.c_void_p
        self.call(f"treehammer.{name}", None, function())

    def call(self, name: str, address: Optional[int], *arguments: Any) -> Any:
        """Call a function of the library, or a method of the object at an address.

        Raises:
            RuntimeError: it failed.
        """
        texts = [_encode(argument) for argument in arguments]
        array = (ctypes.c_char_p * len(texts))(*texts)
        text = self._call_library(name.encode(), address, len(texts), array)
        if text.startswith(b"!"):
            raise RuntimeError(text[1:].decode("utf-8", "replace"))
        return json.loads(
            text.decode("utf-8", "replace"), object_hook=lambda items: SimpleNamespace(**items)
        )


def _encode(argument: Any) -> bytes:
    if isinstance(argument, bool):
        return b"1" if argument else b"0"
    if isinstance(argument, (list, tuple)):
        return " ".join(map(str, argument)).encode()
    return str(argument).encode("utf-8", "surrogateescape")


class _Namespace:
    """Functions of ROOT or of the kit; those that make a reader return a :class:`CompiledReader`."""

    def __init__(self, root: CompiledRoot, name: str) -> None:
        self._root = root
        self._name = name

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            result = self._root.call(f"{self._name}.{name}", None, *arguments)
            return CompiledReader(self._root, name, result) if name.endswith("Reader") else result

        return call


class CompiledReader:
    """A reader of one file: its methods, and the members of its C++ class as attributes."""

    def __init__(self, root: CompiledRoot, name: str, address: int) -> None:
        self._root = root
        self._name = name
        self._address = address
        self._attributes: Dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name[0].isupper():
            return lambda *arguments: self._call(name, *arguments)
        if not self._attributes:
            self._attributes = vars(self._call("attributes"))
        try:
            return self._attributes[name]
        except KeyError:
            raise AttributeError(name) from None

    def __del__(self) -> None:
        self._call("delete")

    def _call(self, method: str, *arguments: Any) -> Any:
        self._attributes = {}
        return self._root.call(f"{self._name}.{method}", self._address, *arguments)
