"""Entry point: ``python datasets/generate ACTION`` runs the package beside this file."""

import os

if __name__ == "__main__":
    # ROOT may print when it is loaded, too.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    from treehammer_generate import answer_request

    answer_request(channel)
