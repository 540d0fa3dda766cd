"""``treehammer`` and ``python -m treehammer``: the command line, and Ctrl-C before and after it."""

from __future__ import annotations

import os
import signal
import sys

#: Seconds until a Ctrl-C that could not be handled is repeated.
INTERRUPT_REPEAT_DELAY_S = 0.2


def main() -> None:
    """Run the command line; Ctrl-C while Python loads or leaves just ends it, as nothing is open."""
    # Files would get the numbers of closed streams, and with them what programs print.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: PTH123, SIM115
    # Started with SIGINT ignored, as by nohup, it stays ignored.
    listens = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if listens:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from treehammer.errors import exit_for_bug

    # A user of a container may be neither in passwd nor have HOME, which Path.home() then needs.
    if os.path.expanduser("~") == "~":  # noqa: PTH111
        os.environ["HOME"] = "/"
    umask = os.umask(0o022)
    if umask & 0o002:  # no others may write: queued jobs run as their owner
        os.umask(umask)
    sys.unraisablehook = _handle_unraisable
    try:
        from treehammer import cli

        if listens:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        cli.main()
    except Exception as error:
        exit_for_bug(error)
    finally:
        if listens:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _handle_unraisable(hook_args: sys.UnraisableHookArgs) -> None:
    """Press Ctrl-C again when it came while Python ran a finalizer, out of which nothing is raised."""
    if isinstance(hook_args.exc_value, KeyboardInterrupt):
        import threading

        # To the process, not to the timer's thread: the main thread may be waiting for something.
        threading.Timer(INTERRUPT_REPEAT_DELAY_S, os.kill, [os.getpid(), signal.SIGINT]).start()
    else:
        sys.__unraisablehook__(hook_args)


if __name__ == "__main__":
    main()
