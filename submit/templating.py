"""Templates: filled strictly, with a quoting filter for every language they are written in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from treehammer.errors import ConfigError
from treehammer.submit import quoting
from treehammer.submit.batch.local import LocalBatch
from treehammer.submit.site import Site

TEMPLATES = Path(__file__).parent / "templates"
#: The templates of jobs of this machine, and of jobs of an HTCondor pool.
LOCAL, GRID = "local.job.j2", "htcondor.sub.j2"
#: What a template of a site's own puts before the name of a shipped one, to extend it.
SHIPPED = "shipped"


@cache
def _environment(folder: Path) -> jinja2.Environment:
    shipped = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.FileSystemLoader(folder), jinja2.PrefixLoader({SHIPPED: shipped})]
        ),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - no HTML: every value goes through a quoting filter
    )
    environment.filters |= {
        "toml": quoting.toml_text,
        "comment": quoting.comment_text,
        "text": quoting.submit_text,
        "classad": quoting.classad_text,
        "expression": quoting.expression,
        "environment": quoting.environment_text,
        "shell_word": quoting.shell_word,
    }
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
        missing = path if str(error) == template else str(error)
        raise ConfigError("there is no such template", where=f"{missing}") from error
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


def fingerprint(site: Site) -> str:
    """Which template a site's jobs are made with: its name, where it is from, the beginning of its SHA-256."""
    name = LOCAL if site.batch == LocalBatch.name else GRID
    folder = TEMPLATES if name == LOCAL else site.templates or TEMPLATES
    try:
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()[:12]
    except OSError:
        found = "missing"
    return f"{name} {found}{'' if folder == TEMPLATES else ' (of the site)'}"
