"""All that this code needs of PyROOT beyond the names of ROOT's C++ interface.

The engine below PyROOT changes (cppyy until ROOT 6.40, cppjit from 6.42): no other module relies on
it.  A release that lacks a name is not supported; its sites did not fail.
"""

from __future__ import annotations

import traceback
from operator import attrgetter
from typing import Any, Sequence

from .payload_task import PayloadError

_NEEDED_NAMES = (
    *("gROOT.GetVersion", "gROOT.GetVersionInt", "gSystem.Load", "gSystem.Setenv"),
    *("gEnv.SetValue", "gInterpreter.Declare"),
)


def check_pyroot(root: Any) -> None:
    """Check that this PyROOT has the names that a payload needs.

    Raises:
        PayloadError: one is missing.
    """
    for name in _NEEDED_NAMES:
        try:
            attrgetter(name)(root)
        except AttributeError as error:
            raise make_unsupported_error(f"it has no {name}") from error


def make_unsupported_error(problem: str) -> PayloadError:
    """Make the error of a release whose PyROOT this code cannot use."""
    message = f"the Python interface of this ROOT is not supported: {problem}"
    return PayloadError("software-setup", "not-supported", "import", message)


def declare(root: Any, code: str) -> bool:
    """Compile C++ with ROOT's interpreter; return whether it compiles.

    An engine may return nothing for success, and raise an exception otherwise.
    """
    try:
        result = root.gInterpreter.Declare(code)
    except Exception:
        traceback.print_exc()
        return False
    return result is None or bool(result)


def is_cpp_exception(error: BaseException) -> bool:
    """Return whether C++ code raised an exception, whatever its class in Python.

    One whose class the engine cannot keep is a plain ``Exception`` or ``RuntimeError``.
    """
    return hasattr(error, "what") or type(error) in (Exception, RuntimeError)


def read_cpp_message(error: BaseException) -> str:
    """Read the message of a C++ exception, without the signature of the function that raised it."""
    return str(error.what() if hasattr(error, "what") else error)


def make_vector(root: Any, type_name: str, items: Sequence[Any]) -> Any:
    """Make a C++ vector of the items."""
    vector = root.std.vector[type_name]
    return vector(items) if items else vector()
