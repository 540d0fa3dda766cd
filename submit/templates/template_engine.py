"""Template engine with strict variables and a quoting filter for each target language."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from treehammer.errors import ConfigError
from treehammer.submit.sites.site_model import Site
from treehammer.submit.templates import quoting

SHIPPED_TEMPLATES = Path(__file__).parent
#: Templates of local jobs and of jobs in HTCondor pools.
LOCAL_TEMPLATE, HTCONDOR_TEMPLATE = "local.job.j2", "htcondor.sub.j2"
#: Prefix by which a site's own template extends a shipped one.
SHIPPED_ORIGIN = "shipped"


@cache
def _make_environment(folder: Path) -> jinja2.Environment:
    shipped = jinja2.FileSystemLoader(SHIPPED_TEMPLATES)
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.FileSystemLoader(folder), jinja2.PrefixLoader({SHIPPED_ORIGIN: shipped})]
        ),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - not HTML; every value passes a quoting filter
    )
    environment.filters |= {
        "toml": quoting.quote_toml,
        "comment": quoting.quote_comment,
        "text": quoting.quote_submit_value,
        "classad": quoting.quote_classad,
        "expression": quoting.flatten_expression,
        "environment": quoting.quote_environment,
        "shell_word": quoting.quote_shell_word,
    }
    return environment


def render_template(
    template: str, values: Mapping[str, Any], *, folder: Path = SHIPPED_TEMPLATES, where: str = ""
) -> str:
    """Render a template.

    Args:
        template: file name.
        values: variables that it may use.
        folder: folder of templates.
        where: subject of the rendering, for error messages.

    Raises:
        ConfigError: the template is missing or invalid, or uses an undefined variable; the message
            names template and variable.
    """
    path = folder / template
    try:
        return _make_environment(folder).get_template(template).render(values)
    except jinja2.TemplateNotFound as error:
        missing = path if str(error) == template else str(error)
        raise ConfigError("template not found", where=f"{missing}") from error
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(str(error.message), where=f"{error.filename}:{error.lineno}") from error
    except jinja2.UndefinedError as error:
        variables = ", ".join(sorted(values))
        raise ConfigError(
            f"{error.message}{where and f' (for {where})'}",
            where=str(path),
            hint=f"Available variables: {variables}.",
        ) from error
    except (jinja2.TemplateError, ValueError, TypeError, ArithmeticError) as error:
        raise ConfigError(f"{error}{where and f' (for {where})'}", where=str(path)) from error


def fingerprint_template(site: Site) -> str:
    """Identify the template of a site's jobs by name, origin and the start of its SHA-256."""
    name = LOCAL_TEMPLATE if site.is_local else HTCONDOR_TEMPLATE
    folder = SHIPPED_TEMPLATES if name == LOCAL_TEMPLATE else site.templates or SHIPPED_TEMPLATES
    try:
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()[:12]
    except OSError:
        digest = "missing"
    return f"{name} {digest}{'' if folder == SHIPPED_TEMPLATES else ' (of the site)'}"
