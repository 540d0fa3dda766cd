"""Checks of an installation, run at the same time and each bounded in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from treehammer.errors import TreehammerError
from treehammer.text_formatting import format_duration


class DiagnosisState(Enum):
    """State of one part of an installation."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    NOT_CONFIGURED = "not configured"


@dataclass(frozen=True)
class Diagnosis:
    """State of one part: ``finding`` is the observation, ``remedy`` the advice."""

    part: str
    state: DiagnosisState
    finding: str
    remedy: str = ""


@dataclass(frozen=True)
class InstallationCheck:
    """A check of some parts.

    Attributes:
        name: part that is named if the check itself fails.
        examine: yields the findings; a TreehammerError is a finding, too.
        limit_s: seconds after which the remaining findings are ignored.
        remedy: advice if it takes longer.
        late_state: state if it takes longer.
    """

    name: str
    examine: Callable[[], Iterable[Diagnosis]]
    limit_s: float = 15.0
    remedy: str = "Check the network and the server."
    late_state: DiagnosisState = DiagnosisState.FAILED


class _RunningCheck:
    """A check in its own thread, which is abandoned if it hangs."""

    def __init__(self, check: InstallationCheck) -> None:
        self.check = check
        self._findings: list[Diagnosis] = []
        self._thread = threading.Thread(target=self._examine, daemon=True)
        self._thread.start()

    def _examine(self) -> None:
        try:
            for diagnosis in self.check.examine():
                self._findings.append(diagnosis)
        except TreehammerError as error:
            where = f"{error.where}: " if error.where else ""
            self._report_failure(f"{where}{error.message}", error.hint)
        except Exception as error:  # a broken part must not hide the others
            self._report_failure(f"{type(error).__name__}: {error}", "")

    def _report_failure(self, finding: str, remedy: str) -> None:
        self._findings.append(Diagnosis(self.check.name, DiagnosisState.FAILED, finding, remedy))

    def wait(self, deadline_s: float) -> list[Diagnosis]:
        """Wait until a time of the monotonic clock; return the findings by then."""
        self._thread.join(max(deadline_s - time.monotonic(), 0))
        findings = list(self._findings)
        if self._thread.is_alive():
            check = self.check
            finding = f"no answer within {format_duration(check.limit_s)}"
            findings.append(Diagnosis(check.name, check.late_state, finding, check.remedy))
        return findings


def diagnose(checks: Sequence[InstallationCheck]) -> Iterator[Diagnosis]:
    """Run all checks at once and yield their findings in order."""
    begin = time.monotonic()
    for running in [_RunningCheck(check) for check in checks]:
        yield from running.wait(begin + running.check.limit_s)
