"""Rule for storages by the operations of load tests on a day, after study S1."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from treehammer.hctests.definition.document_problems import StrictModel
from treehammer.text_formatting import format_share

Share = Annotated[float, Field(ge=0, le=1)]


class VersionedRule(StrictModel):
    """A rule whose version follows from its values."""

    @cached_property
    def version(self) -> str:
        """Hash of the rule's values."""
        text = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class OperationsRule(VersionedRule):
    """State of a storage by the operations of load tests on a day; by default the shipped rule."""

    kind: Literal["operations"] = "operations"
    opens: list[str] = Field(["open"], min_length=1, description="Operations that count as opens.")
    blocks: list[str] = Field(
        ["read", "vector_read"], min_length=1, description="Operations that read a block."
    )
    max_failed_per_success: Share = Field(0.06, description="A warning above this ratio.")
    max_block_s: float = Field(
        3.0,
        gt=0,
        description="A warning above this mean time of a block, without the round trip.",
    )
    min_opens: int = Field(20, ge=1, description="Fewer opens are not judged.")
    min_blocks: int = Field(20, ge=1, description="Fewer reads are not judged.")
    target_tests: list[str] = Field(
        ["open-rate", "read-rate"], description="Tests that the expected rates are about."
    )
    target_open_hz: float = Field(
        100.0, gt=0, description="Expected rate of opens; shown in figures of target_tests."
    )
    target_read_bytes_per_s: float = Field(
        150e6, gt=0, description="Expected rate of reading; shown in figures of target_tests."
    )

    def describe(self) -> str:
        """Describe the rule in words."""
        return (
            "Critical: no open, or no read, succeeded. Warning: failures are more than "
            f"{format_share(self.max_failed_per_success)} of the successes, or a block takes more than "
            f"{self.max_block_s:g} s on average, without the round trip to the door. "
            f"N: fewer than {self.min_opens} opens and {self.min_blocks} reads ended. "
            "Steps in which the load generator was the limit are left out. "
            f"Rule {self.version}, after study S1."
        )
