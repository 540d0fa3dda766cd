"""HTCondor pools that jobs are submitted to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HTCondorPool:
    """Address and credentials of an HTCondor pool.

    Attributes:
        name: how sites refer to it.
        config: configuration file (CONDOR_CONFIG); None for HTCondor's default.
        collector: ``host:port``; '' takes it from the configuration.
        schedd: name of the schedd; '' for the one on this machine.
        token_dir: folder with the IDTOKENS to authenticate with; None for HTCondor's default.
        scitoken_file: SciToken to authenticate with instead.
        spool: send inputs to the schedd and fetch outputs from it, as a remote schedd requires.
        submit_dir: folder for the inputs and outputs of jobs that are not spooled, readable and
            writable by the user under whom the schedd runs shadows.  None: below ``data_dir``.
    """

    name: str
    config: Path | None = None
    collector: str = ""
    schedd: str = ""
    token_dir: Path | None = None
    scitoken_file: Path | None = None
    spool: bool = False
    submit_dir: Path | None = None
