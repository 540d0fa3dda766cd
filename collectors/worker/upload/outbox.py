"""Records on disk that wait for the results service, and the state of each.

``outbox.json`` beside ``records/`` lists the records that the service acknowledged or refused, so
that they are not sent again.  It is optional: without it all records are sent once more, which is
harmless.  Records are never removed and return with the sandbox in any case.
"""

from __future__ import annotations

import glob
import json
import os
from typing import Any, Dict, List, Mapping, Set

from ...record.measurement_record import Measurement, RecordError
from ...service_spec import OUTBOX_FILE
from ...shared_files import read_regular_file, write_atomically

#: Version of the layout of ``outbox.json``.
OUTBOX_FORMAT = 1
#: The worker writes no larger records.
MAX_RECORD_BYTES = 16_000_000


class Outbox:
    """The outbox of a sandbox, for one service.

    Attributes:
        acknowledged: identities of records that the service has stored.
        conflicting: those of them that it already had with other content, which it kept.
        refused: identity -> reason why the service rejects the record, or why it is invalid.
        problem: reason why the last transmission stopped; '' for none.
        retry_after_s: seconds that the service then required clients to wait.
    """

    def __init__(self, folder: str, url: str) -> None:
        self.folder = folder
        self.url = url.rstrip("/")
        state = _load_outbox(folder)
        # Another service has none of these records.
        is_same_service = state.get("service") == self.url
        self.acknowledged: Set[str] = set(state["acknowledged"]) if is_same_service else set()
        self.conflicting: Set[str] = set(state["conflicting"]) if is_same_service else set()
        self.refused: Dict[str, str] = dict(state["refused"]) if is_same_service else {}
        self.problem = str(state["problem"]) if is_same_service else ""
        self.retry_after_s = float(state["retry_after_s"]) if is_same_service else 0.0

    def pending(self) -> List[str]:
        """List the identities of records that the service neither has nor refused."""
        paths = glob.glob(os.path.join(glob.escape(self.folder), "records", "*.json"))
        names = (os.path.splitext(os.path.basename(path))[0] for path in sorted(paths))
        return [
            name for name in names if name not in self.acknowledged and name not in self.refused
        ]

    def read_record(self, identity: str) -> str:
        """Read a record's text; return '' for an invalid one, which is noted as refused."""
        path = os.path.join(self.folder, "records", f"{identity}.json")
        try:
            text = read_regular_file(path, MAX_RECORD_BYTES).strip()
            if Measurement.from_json(text).id != identity:
                raise RecordError("the identity differs from the file name")
        except (OSError, ValueError) as error:
            self.refused[identity] = f"not a record: {error}"
            return ""
        return text

    def save(self) -> None:
        """Write ``outbox.json``; on failure, records may be sent again."""
        document: Mapping[str, Any] = {
            "format": OUTBOX_FORMAT,
            "service": self.url,
            "acknowledged": sorted(self.acknowledged),
            "conflicting": sorted(self.conflicting),
            "refused": dict(sorted(self.refused.items())),
            "problem": self.problem,
            "retry_after_s": self.retry_after_s,
        }
        try:
            write_atomically(
                os.path.join(self.folder, OUTBOX_FILE), json.dumps(document, indent=1) + "\n"
            )
        except OSError:
            pass

    def summarize(self) -> Dict[str, Any]:
        """Summarize the outbox for ``attempt.json``."""
        return {
            "service": self.url,
            "acknowledged": len(self.acknowledged),
            "conflicting": sorted(self.conflicting),
            "refused": dict(sorted(self.refused.items())),
            "pending": len(self.pending()),
            "problem": self.problem,
        }


def describe_upload_problems(summary: Mapping[str, Any]) -> str:
    """Describe the records that the service did not store, and why; '' when it stored all."""
    problems = [
        f"{name} was refused: {reason}" for name, reason in summary.get("refused", {}).items()
    ]
    if summary.get("pending"):
        problems.append(f"{summary['pending']} not sent (they stay here and return with the job)")
    if summary["problem"]:
        problems.append(summary["problem"])
    return (
        f"results service {summary.get('service', '')}: {'; '.join(problems)}" if problems else ""
    )


def read_last_service(folder: str) -> str:
    """Return the URL that a sandbox's records were last sent to; '' for none."""
    return str(_load_outbox(folder).get("service") or "")


def _load_outbox(folder: str) -> Dict[str, Any]:
    """Load ``outbox.json``; empty when missing or invalid."""
    try:
        path = os.path.join(folder, OUTBOX_FILE)
        document = json.loads(read_regular_file(path, MAX_RECORD_BYTES))
        lists = (document["acknowledged"], document["conflicting"], document["refused"].items())
        is_valid = document["format"] == OUTBOX_FORMAT and all(map(_all_text, lists))
        float(document["retry_after_s"])
        return document if is_valid and isinstance(document, dict) else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _all_text(items: Any) -> bool:
    flat = (part for item in items for part in (item if isinstance(item, tuple) else (item,)))
    return all(isinstance(part, str) for part in flat)
