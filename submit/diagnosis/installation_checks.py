"""The checks of ``treehammer doctor``, in the order in which they are shown."""

from __future__ import annotations

import os
from functools import partial

from treehammer.config import Settings
from treehammer.submit.diagnosis import (
    access_checks,
    machine_checks,
    package_checks,
    result_checks,
)
from treehammer.submit.diagnosis.diagnosis_run import DiagnosisState, InstallationCheck


def list_checks(settings: Settings) -> list[InstallationCheck]:
    """List all checks for these settings."""
    environment = dict(os.environ)
    return [
        InstallationCheck("packages", package_checks.check_packages),
        InstallationCheck("programs", package_checks.check_programs),
        InstallationCheck(
            "disk",
            partial(machine_checks.check_folders, settings),
            remedy="A file system does not answer: check its mount.",
        ),
        InstallationCheck("processor counters", machine_checks.check_hardware_counters),
        InstallationCheck("database", partial(result_checks.check_revision, settings)),
        InstallationCheck(
            "database integrity",
            partial(result_checks.check_integrity, settings),
            limit_s=30.0,
            remedy="A large database takes longer: run treehammer db check.",
            late_state=DiagnosisState.WARNING,
        ),
        InstallationCheck(
            "results service", partial(result_checks.check_service, settings), limit_s=20.0
        ),
        InstallationCheck(
            "credentials", partial(access_checks.check_credentials, settings, environment)
        ),
        InstallationCheck("authorities", partial(access_checks.check_authorities, environment)),
        InstallationCheck("Rucio", partial(access_checks.check_rucio, settings), limit_s=30.0),
        InstallationCheck(
            "sites",
            partial(access_checks.check_sites, settings),
            limit_s=60.0,
            remedy="Run treehammer sites check SITE for one site after the other.",
        ),
    ]
