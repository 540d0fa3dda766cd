"""Configuration files and scripts of components, rendered from the templates beside this module."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

import jinja2


def render_template(name: str, **values: object) -> str:
    """Render a template; every value that it names must be given."""
    return _make_environment().get_template(name).render(values)


@cache
def _make_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - configuration, not HTML
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = shlex.quote
    return environment
