"""Rendering: from planned jobs to exactly what a batch system is sent."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import jinja2

from treehammer.collectors import pack
from treehammer.collectors.providers.script import CVMFS_VARIABLE
from treehammer.errors import ConfigError, SourceError
from treehammer.hctests.definition import PinnedTest
from treehammer.submit.batch.base import Description
from treehammer.submit.plan import Plan
from treehammer.submit.planner import PAYLOAD_FOLDER, PlannedJob

TEMPLATES = Path(__file__).parent / "templates"
WORKER_NAME = "worker.pyz"
JOB_NAME = "job.json"

#: What a local job keeps of the environment it was submitted from: where programs, libraries and
#: credentials are found, never a secret itself.
KEPT_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "ROOTSYS",
    CVMFS_VARIABLE,
    "BEARER_TOKEN_FILE",
    "KRB5CCNAME",
)
KEPT_PREFIXES = ("LC_", "XRD_", "X509_", "ROOT_", "CLING_")


def toml_text(value: object) -> str:
    """Quote any text as a TOML string.

    Raises:
        ValueError: it holds half of a surrogate pair, as names of files can that are not UTF-8.
    """
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is not valid text") from error
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def comment_text(value: object) -> str:
    """Any text on one line, fit for a comment."""
    return "".join(c if c.isprintable() else "?" for c in str(value))


def job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a local job is given, see :data:`KEPT_VARIABLES`."""
    return {
        name: value
        for name, value in environ.items()
        if name in KEPT_VARIABLES or name.startswith(KEPT_PREFIXES)
    }


@cache
def _environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - no HTML: every value goes through a quoting filter
    )
    environment.filters |= {"toml": toml_text, "comment": comment_text}
    return environment


def render(
    template: str, values: Mapping[str, Any], *, folder: Path = TEMPLATES, where: str = ""
) -> str:
    """Fill a template.

    Args:
        template: name of its file.
        values: what it may use.
        folder: where templates are.
        where: what is being rendered, for messages.

    Raises:
        ConfigError: the template is missing or wrong, or uses what does not exist; the message
            names template and variable.
    """
    path = folder / template
    try:
        return _environment(folder).get_template(template).render(values)
    except jinja2.TemplateNotFound as error:
        raise ConfigError("there is no such template", where=str(path)) from error
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(str(error.message), where=f"{error.filename}:{error.lineno}") from error
    except jinja2.UndefinedError as error:
        known = ", ".join(sorted(values))
        raise ConfigError(
            f"{error.message}{where and f' (for {where})'}",
            where=str(path),
            hint=f"A template may use: {known}.",
        ) from error
    except (jinja2.TemplateError, ValueError, TypeError, ArithmeticError) as error:
        raise ConfigError(f"{error}{where and f' (for {where})'}", where=str(path)) from error


def describe(
    plan: Plan,
    folder: Path,
    jobs: Iterable[PlannedJob] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Description]:
    """Render jobs of a plan one by one, and write what they need into ``folder``.

    Args:
        plan: what to render.
        folder: an empty folder; it must last until the jobs are submitted.
        jobs: of this plan; by default all.
        environ: the environment jobs are submitted from, ``os.environ`` by default.

    Raises:
        ConfigError: a template is wrong.
        SourceError: the test's files changed since they were pinned.
    """
    environment = job_environment(os.environ if environ is None else environ)
    worker = pack.build(folder / WORKER_NAME)
    payload = copy_payload(plan.pinned, folder / PAYLOAD_FOLDER)
    return (
        _describe(plan, job, folder, worker, payload, environment)
        for job in (plan.jobs if jobs is None else jobs)
    )


def _describe(
    plan: Plan,
    job: PlannedJob,
    folder: Path,
    worker: Path,
    payload: Path,
    environment: Mapping[str, str],
) -> Description:
    job_file = folder / f"{job.spec.job_id}.json"
    job_file.write_text(job.spec.to_json() + "\n", encoding="utf-8")
    inputs = {JOB_NAME: job_file, WORKER_NAME: worker, PAYLOAD_FOLDER: payload}
    values = {
        "campaign": {"id": plan.campaign_id, "name": plan.campaign_name},
        "job": {
            "id": job.spec.job_id,
            "site": job.site.name,
            "door": job.spec.door,
            "kind": job.kind,
            "repeat": job.repeat,
            "label": job.label,
            "executions": len(job.spec.executions),
            "wall_limit_s": job.wall_limit_s,
        },
        "executable": sys.executable,
        "environment": environment,
        "inputs": sorted(inputs),
    }
    text = render(f"{job.site.batch_kind}.job.j2", values, where=f"job {job.spec.job_id}")
    return Description(job.spec.job_id, text, inputs)


def copy_payload(pinned: PinnedTest, target: Path) -> Path:
    """Copy the files that the test names, and nothing else, exactly as they were pinned.

    Raises:
        SourceError: one of them is gone or has changed since.
    """
    for name, expected in pinned.hashes.items():
        source, copy = pinned.folder / name, target / name
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)  # with its mode: an executable stays one
            copy.chmod(copy.stat().st_mode | 0o200)
            found = sha256(copy.read_bytes()).hexdigest()
        except OSError as error:
            raise SourceError(
                f"cannot be copied ({error.strerror})",
                where=str(source),
                hint="Submit again once the file is back.",
            ) from error
        if found != expected:
            raise SourceError(
                "changed while it was being submitted",
                where=str(source),
                hint="Submit again once the file is saved.",
            )
    return target
