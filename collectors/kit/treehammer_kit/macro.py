"""Command ``python -m treehammer_kit.macro FILE.C``: run a ROOT macro as a payload.

As usual in ROOT, the function has the name of the file: ``read.C`` defines
``void read(treehammer::Pass &pass)``, for RNTuples ``void read(treehammer::NTuplePass &pass)``.  With
both, the latter stands between ``#ifdef TREEHAMMER_READS_NTUPLE`` and ``#endif``.
"""

from __future__ import annotations

import os
import sys

from . import run


def main() -> None:
    """Run the macro named on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m treehammer_kit.macro FILE.C")
    path = os.path.abspath(sys.argv[1])
    function = os.path.splitext(os.path.basename(path))[0]
    code = f'#include "{path}"'
    run(code, ntuple=code, function=function, folder=os.path.dirname(path))


if __name__ == "__main__":
    main()
