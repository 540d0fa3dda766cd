"""``treehammer`` and ``python -m treehammer``: the command line, and Ctrl-C before and after it."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; Ctrl-C while Python loads or leaves just ends it, as nothing is open."""
    # Started with SIGINT ignored, as by nohup, it stays ignored.
    listens = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if listens:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from treehammer import cli

    try:
        if listens:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        cli.main()
    finally:
        if listens:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
