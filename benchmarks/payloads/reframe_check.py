"""Reading a tree, as a performance check of ReFrame; runs under ReFrame."""

from __future__ import annotations

import os

import reframe as rfm  # type: ignore[import-not-found]
import reframe.utility.sanity as sn  # type: ignore[import-not-found]

#: Tolerance of ReFrame's tutorial.
TOLERANCE = 0.1


@rfm.simple_test
class ReadCheck(rfm.RunOnlyRegressionTest):  # type: ignore[misc]
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = os.environ.get("PEER_PYTHON", "python3")
    executable_opts = [os.environ.get("PEER_SCRIPT", ""), os.environ.get("PEER_URL", "")]

    @run_before("run")  # type: ignore[name-defined, untyped-decorator]  # noqa: F821
    def set_reference(self) -> None:
        if reference := float(os.environ.get("PEER_REFERENCE", "0")):
            self.reference = {"*": {"seconds": (reference, None, TOLERANCE, "s")}}

    @sanity_function  # type: ignore[name-defined, untyped-decorator]  # noqa: F821
    def has_read(self) -> object:
        return sn.assert_found(r'"seconds"', self.stdout)

    @performance_function("s")  # type: ignore[name-defined, untyped-decorator]  # noqa: F821
    def seconds(self) -> object:
        return sn.extractsingle(r'"seconds": ([0-9.e-]+)', self.stdout, 1, float)
