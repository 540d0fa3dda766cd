"""Template engine with strict variables, and a quoting filter for each target language."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2

from treehammer.errors import ConfigError
from treehammer.submit import batch
from treehammer.submit.batch.interface import find_batch
from treehammer.submit.sites.site_model import Site

#: Folder of the shipped templates, which lie beside their batch systems.
SHIPPED_TEMPLATES = Path(batch.__file__).parent
#: Template of jobs in HTCondor pools.
HTCONDOR_TEMPLATE = "htcondor.sub.j2"
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
        "toml": quote_toml,
        "comment": quote_comment,
        "text": quote_submit_value,
        "classad": quote_classad,
        "expression": flatten_expression,
        "environment": quote_environment,
        "shell_word": quote_shell_word,
    }
    return environment


def render_template(
    template: str,
    values: Mapping[str, Any],
    *,
    folder: Path = SHIPPED_TEMPLATES,
    filters: Mapping[str, Callable[[Any], str]] = MappingProxyType({}),
    where: str = "",
) -> str:
    """Render a template.

    Args:
        template: file name.
        values: variables that it may use.
        folder: folder of templates.
        filters: quoting filters beside the shared ones.
        where: subject of the rendering, for error messages.

    Raises:
        ConfigError: the template is missing or invalid, or uses an undefined variable; the message
            names template and variable.
    """
    path = folder / template
    try:
        environment = _make_environment(folder)
        environment.filters |= filters
        return environment.get_template(template).render(values)
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
    """Identify the template of a site's jobs by name, origin and the start of its SHA-256.

    Raises:
        UnknownBatchSystemError: nothing declares its batch system.
    """
    if site.pool:
        path = (site.templates or SHIPPED_TEMPLATES) / HTCONDOR_TEMPLATE
    else:
        path = find_batch(site.batch).template
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError:
        digest = "missing"
    return f"{path.name} {digest}{' (of the site)' if path.parent == site.templates else ''}"


def quote_toml(value: object) -> str:
    """Quote any text as a TOML string.

    Raises:
        ValueError: it contains a lone surrogate, as file names that are not UTF-8 do.
    """
    # JSON and TOML share their escapes, but TOML also requires DEL to be escaped.
    return json.dumps(_check_text(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def quote_comment(value: object) -> str:
    """Put any text on one line, for use in a comment."""
    return "".join(c if c.isprintable() else "?" for c in str(value))


def quote_submit_value(value: object) -> str:
    """Quote any text as the value of a submit command, on one line.

    HTCondor expands neither ``$(NAME)`` nor ``$$(NAME)`` in it.  Control characters and surrounding
    space, which a line cannot hold, are lost.

    Raises:
        ValueError: it contains a lone surrogate.
    """
    line = _join_lines(value).strip()
    # A trailing backslash would continue the line.
    return _escape_macros(line + "." if line.endswith("\\") else line)


def quote_classad(value: object) -> str:
    """Quote any text as a string of a ClassAd expression in a submit description.

    Raises:
        ValueError: it contains a lone surrogate, or a zero byte, which ClassAds cannot hold.
    """
    text = _check_text(value)
    if "\x00" in text:
        raise ValueError(f"{text!r} contains a zero byte")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    escaped = "".join(
        named.get(c) or (c if c.isprintable() or not c.isascii() else f"\\{ord(c):03o}")
        for c in escaped
    )
    return f'"{_escape_macros(escaped)}"'


def quote_environment(variables: Mapping[str, str]) -> str:
    """Quote variables as the value of the submit command ``environment``, quotes included.

    Raises:
        ValueError: a name or value cannot be passed this way.
    """
    items = []
    for name, value in sorted(variables.items()):
        text = _check_text(value)
        if not name.isidentifier() or any(c in text for c in "\n\r\x00"):
            raise ValueError(f"the variable {name}={text!r} cannot be set in a job's environment")
        inner = f"{name}={text}".replace("'", "''").replace('"', '""')
        items.append(f"'{_escape_macros(inner)}'")
    return '"' + " ".join(items) + '"'


def quote_shell_word(value: object) -> str:
    """Quote a word of a shell script within single quotes in the submit command ``arguments``.

    Raises:
        ValueError: it contains a lone surrogate.
    """
    return _escape_macros(shlex.quote(_join_lines(value)).replace("'", "''").replace('"', '""'))


def flatten_expression(value: object) -> str:
    """Put a hand-written ClassAd expression on one line.

    Raises:
        ValueError: it ends with a backslash, which would continue the line.
    """
    line = " ".join(_check_text(value).split())
    if line.endswith("\\"):
        raise ValueError(f"{line!r} ends with a backslash, which would continue the line")
    return line


def _escape_macros(text: str) -> str:
    """Escape text so that HTCondor expands nothing, neither at submission nor at the match."""
    parts = (part.replace("$", "$(DOLLAR)") for part in text.split("$$("))
    return "$$(DOLLARDOLLAR)(".join(parts)


def _join_lines(value: object) -> str:
    return "".join(c if c.isprintable() else " " for c in _check_text(value))


def _check_text(value: object) -> str:
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is not valid text") from error
    return text
