"""Treehammer: identical ROOT TTree read tests at many grid sites, compared honestly."""

from treehammer.version import __version__

#: As of typing, whose import would show a traceback for an early Ctrl-C.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from treehammer.sql.transfer.arrow_stream import result_batches, results

__all__ = ["__version__", "result_batches", "results"]


def __getattr__(name: str) -> object:
    # The command line imports this package, too: it shall not pay for Arrow and SQLAlchemy.
    if name in ("result_batches", "results"):
        from importlib import import_module

        return getattr(import_module("treehammer.sql.transfer.arrow_stream"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
