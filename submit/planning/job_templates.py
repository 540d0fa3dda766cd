"""Template engine with strict variables, and a quoting filter for each target language."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
from jinja2 import nodes

from treehammer.errors import ConfigError
from treehammer.submit.batch.interface import find_batch
from treehammer.submit.sites.site_model import Site
from treehammer.text_formatting import check_text

#: Prefix by which a site's own template extends a shipped one.
SHIPPED_ORIGIN = "shipped"


@cache
def _make_environment(folder: Path, origin: Path) -> jinja2.Environment:
    shipped = jinja2.FileSystemLoader(origin)
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
    environment.filters |= {"toml": quote_toml, "comment": quote_comment}
    return environment


def render_template(
    template: Path,
    values: Mapping[str, Any],
    *,
    folder: Path | None = None,
    filters: Mapping[str, Callable[[Any], str]] = MappingProxyType({}),
    where: str = "",
) -> str:
    """Render a template.

    Args:
        template: the template of a batch system.
        values: variables that it may use.
        folder: folder with the site's own template of this name, which may extend the first.
        filters: quoting filters beside the shared ones.
        where: subject of the rendering, for error messages.

    Raises:
        ConfigError: the template is missing or invalid, or uses an undefined variable; the message
            names template and variable.
    """
    path = (folder or template.parent) / template.name
    try:
        environment = _make_environment(path.parent, template.parent)
        environment.filters |= filters
        _check_blocks(environment, path.name)
        return environment.get_template(path.name).render(values)
    except jinja2.TemplateNotFound as error:
        raise ConfigError(
            f"template {error} not found",
            where=str(path),
            hint="Correct the site's key templates, or the name in a template: the shipped one is "
            f"{SHIPPED_ORIGIN}/{path.name}.",
        ) from error
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(str(error.message), where=f"{error.filename}:{error.lineno}") from error
    except (jinja2.TemplateError, ConfigError, ValueError, TypeError, ArithmeticError) as error:
        is_undefined = isinstance(error, jinja2.UndefinedError)
        hint = f"Available variables: {', '.join(sorted(values))}." if is_undefined else ""
        message = f"{error}{where and f' (for {where})'}"
        raise ConfigError(message, where=str(path), hint=hint) from error


def _check_blocks(environment: jinja2.Environment, name: str) -> set[str]:
    """Return the names of a template's blocks, with those of the template that it extends.

    Raises:
        jinja2.TemplateSyntaxError: it extends one, but has text or blocks that Jinja would ignore.
    """
    template = environment.get_template(name)
    file, inherited = str(template.filename), set[str]()
    for node in environment.parse(Path(file).read_text(encoding="utf-8"), name, file).body:
        if isinstance(node, nodes.Extends) and isinstance(node.template, nodes.Const):
            inherited = _check_blocks(environment, node.template.value)
        is_unknown = isinstance(node, nodes.Block) and node.name not in inherited
        is_outside = isinstance(node, nodes.Output) and any(
            getattr(part, "data", "x").strip() for part in node.nodes
        )
        if inherited and (is_unknown or is_outside):
            names = ", ".join(sorted(inherited))
            message = f"this is in no block of the template that it extends; blocks are {names}"
            raise jinja2.TemplateSyntaxError(message, node.lineno, name, file)
    return inherited | {*template.blocks}


def fingerprint_template(site: Site) -> str:
    """Identify the template of a site's jobs by name, origin and the start of its SHA-256.

    Raises:
        UnknownBatchSystemError: nothing declares its batch system.
    """
    template = find_batch(site.batch).template
    path = (site.templates or template.parent) / template.name
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
    return json.dumps(check_text(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def quote_comment(value: object) -> str:
    """Put any text on one line, for use in a comment."""
    return "".join(c if c.isprintable() else "?" for c in str(value))
