"""Row classes of campaigns and their results, except measurements, and of access keys.

:mod:`treehammer.sql.core.schema` derives the columns of their tables from the fields.
Times are microseconds since 1970 UTC. Unknown text is ``''`` here and NULL in the database.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

from treehammer.collectors.job_spec import EXTERNAL_PREFIX
from treehammer.collectors.record.metric_catalogue import MAX_IDENTITY, MAX_TEXT, MAX_WORD
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.evidence import VerdictEvidence

#: Text with its maximum length in characters; 0 for none.
Identity = Annotated[str, MAX_IDENTITY]
Word = Annotated[str, MAX_WORD]
Text = Annotated[str, MAX_TEXT]
LongText = Annotated[str, 0]

#: Marks text that is never empty, so that its column is NOT NULL.
REQUIRED = "required"
#: Kinds of flags: reasons of the sender, and of this store's rules, when a measurement was recorded.
RECORDED, RULE = "recorded", "rule"
#: Kinds of flags that come later.
BAD_REPLICA, QUARANTINED, OUTLIER = "bad replica", "quarantined", "outlier"
LATER_KINDS = (BAD_REPLICA, QUARANTINED, OUTLIER)
_Value = TypeVar("_Value")
Required = Annotated[_Value, REQUIRED]


@dataclass(frozen=True)
class StoredRow:
    """Base of the row classes."""


@dataclass(frozen=True)
class CampaignRow(StoredRow):
    """Campaign: one test at one commit, with its variants, sites and repeats.

    ``planned_measurements`` counts timed and checksum executions.
    """

    id: Identity
    name: Text
    created_us: int
    repository: Text
    ref: Text
    commit_id: Identity
    dirty: bool
    test_name: Text
    test_path: Text
    plan: CampaignPlan = field(hash=False)
    planned_jobs: int
    planned_measurements: int


@dataclass(frozen=True)
class JobRow(StoredRow):
    """Job of a campaign and its identity in the batch system; ``state`` is a JobState value."""

    id: Identity
    campaign_id: Required[Identity]
    site: Text
    door: Text
    kind: Text
    repeat: int
    label: Text
    batch_system: Text
    batch_id: Identity
    planned_measurements: int
    state: Text

    @property
    def is_external(self) -> bool:
        """Check for a job that the submitting installation tracks and reports."""
        return self.batch_system.startswith(EXTERNAL_PREFIX)

    def as_external(self) -> JobRow:
        """Return a copy that another installation tracks."""
        if self.is_external:
            return self
        return replace(self, batch_system=EXTERNAL_PREFIX + self.batch_system)


@dataclass(frozen=True)
class AttemptRow(StoredRow):
    """Execution of a job; ``failure_class`` is '' while it runs and after success."""

    job_id: Identity
    number: int
    state: Text
    started_us: int
    ended_us: int
    exit_code: int | None
    failure_class: Text
    message: LongText


@dataclass(frozen=True)
class ReplicaRow(StoredRow):
    """Result of a replica check: one file of a dataset read in full, or requested, through a door.

    Attributes:
        id: identity of this check.
        found_us: time of the check.
        dataset: name of the dataset.
        dataset_hash: identity of the dataset.
        site: site of the door.
        door: name of the door.
        file: name of the file within the dataset.
        url: URL that was read.
        good: True if the content matches the dataset's manifest.
        message: description of the mismatch.
        owner: group whose campaigns it applies to; '' for all.
    """

    id: Identity
    found_us: int
    dataset: Text
    dataset_hash: Text
    site: Text
    door: Text
    file: Text
    url: Text
    good: bool
    message: LongText
    owner: Text = ""


#: Group of campaigns that this installation submits without a key, or imports; administrators act
#: for it. Also the key in receipts of its own writes.
LOCAL_OWNER = "(this installation)"


@dataclass(frozen=True)
class CampaignOwnerRow(StoredRow):
    """Group that a campaign belongs to, since something of it was first sent."""

    campaign_id: Identity
    owner: Required[Text]
    claimed_us: int


@dataclass(frozen=True)
class ReceiptRow(StoredRow):
    """First time that a key sent something from an address.

    Attributes:
        subject: identity of the job, campaign or check of a replica.
        kind: a kind of :mod:`treehammer.sql.write.audit_trail`.
        key_id: identity of the key.
        address: network address.
        campaign_id: campaign that the subject belongs to.
        received_us: time of the request.
    """

    subject: Identity
    kind: Word
    key_id: Identity
    address: Word
    campaign_id: Required[Identity]
    received_us: int


@dataclass(frozen=True)
class AuditRow(StoredRow):
    """Entry of the audit trail: a change by an administrator, a sign-in, or refused requests.

    Attributes:
        id: identity of this change.
        changed_us: time of the change.
        action: what was done, such as ``quarantine``, ``create key`` or ``refuse``.
        actor: user and host, or the client of the service.
        scope: selected measurements, key or requests, in words.
        reason: as given; '' for none.
        measurements: number of changed measurements or refused requests.
    """

    id: Identity
    changed_us: int
    action: Required[Word]
    actor: Required[Text]
    scope: Required[Text]
    reason: Text
    measurements: int


@dataclass(frozen=True)
class PairRow(StoredRow):
    """One job's paired effect: ``log_ratio`` is ln(B/A) of ``metric``, as ``d`` of ``JobPair``.

    ``a_value`` and ``b_value`` are the means of the job's executions on either side, in the metric's unit.
    ``comparison_id`` names the comparison that wrote the row; ``comparison_key`` is the fingerprint
    without the compared axis, ``label`` its display name.
    """

    comparison_id: Identity
    job_id: Identity
    campaign_id: Identity
    site: Text
    host: Text
    comparison_key: Text
    label: Text
    metric: Text
    axis: Text
    a: Text
    b: Text
    rounds: int
    a_value: float
    b_value: float
    log_ratio: float


@dataclass(frozen=True)
class VerdictRow(StoredRow):
    """Conclusion of a verdict rule, with its evidence; effects are means of d = ln(B/A).

    ``scope`` is ``host`` (one comparison key on one or two hosts), ``site`` (on three hosts and
    more) or ``sites`` (pooled over sites).
    ``verdict`` is a value of :class:`treehammer.analysis.statistics.verdict.Verdict`.
    ``low`` and ``high`` bound the adjusted interval; None where there are too few data.
    ``jobs_needed`` is the size of a new campaign that would probably decide.
    """

    comparison_id: Identity
    created_us: int
    rule_version: int
    scope: Text
    site: Text
    comparison_key: Text
    label: Text
    metric: Text
    axis: Text
    a: Text
    b: Text
    verdict: Text
    effect: float | None
    low: float | None
    high: float | None
    jobs: int
    hosts: int
    jobs_needed: int | None
    evidence: VerdictEvidence = field(hash=False)


@dataclass(frozen=True)
class InstructionRow(StoredRow):
    """Instructions of one library or function in a count of one variant under callgrind.

    A count is identified by test, variant with its ROOT release, dataset and number of events;
    ``line`` orders its rows. ``function`` is '' in the total of a library. ``instructions`` are
    those of the whole loop over ``events`` events.
    """

    count_id: Identity
    line: int
    created_us: int
    test_name: Text
    test_hash: Identity
    variant: Text
    label: Text
    root_version: Text
    dataset: Text
    dataset_hash: Text
    events: int
    host: Text
    valgrind: Text
    library: Text
    function: Text
    instructions: int


@dataclass(frozen=True)
class ExtraRow(StoredRow):
    """Value of a test-defined metric in one measurement, in the unit stated there."""

    measurement_id: Identity
    name: Word
    value: float


@dataclass(frozen=True)
class FlagRow(StoredRow):
    """Why a measurement is implausible; ``set_by`` is a person or a part of Treehammer."""

    measurement_id: Identity
    kind: Word
    reason: LongText
    set_by: Required[Text]
    set_us: int

    @property
    def is_later(self) -> bool:
        """Return whether it was set after the recording, and can be taken back."""
        return self.kind in LATER_KINDS


@dataclass(frozen=True)
class AccessKeyRow(StoredRow):
    """A key as the service stores it.

    ``expires_us`` and ``revoked_us`` are None for a key that does not expire or was not revoked.
    ``master_key_fingerprint`` identifies the master key from which the key was derived; see
    :func:`treehammer.sql.core.access_keys.fingerprint_master_key`. Keys with the same ``owner`` share their campaigns.
    """

    key_id: Identity
    role: Required[Identity]
    name: Required[Text]
    created_us: int
    expires_us: int | None
    revoked_us: int | None
    master_key_fingerprint: Required[Identity]
    owner: Required[Text]


@dataclass(frozen=True)
class RevocationRow(StoredRow):
    """A campaign or a job (``scope``) whose tokens were revoked."""

    scope: Identity
    subject: Identity
    revoked_us: int


@dataclass(frozen=True)
class ReadSession(StoredRow):
    """A browser signed in with a key. The cookie holds a random token, of which the hash is stored."""

    token_hash: Identity
    role: Required[Identity]
    name: Required[Text]
    key_id: Required[Identity]
    address: Required[Word]
    created_us: int
    expires_us: int
