"""Entry point: ``python datasets/generate ACTION`` runs the package beside this file."""

import ctypes
import os
import signal

if __name__ == "__main__":
    # The process that asks may be killed while ROOT loads or works for long: PR_SET_PDEATHSIG.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    # ROOT may print when it is loaded, too.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    from treehammer_generate import answer_request

    answer_request(channel)
