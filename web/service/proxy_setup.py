"""Configuration of the proxy in front of the service, and the secret by which the service knows it.

An address proves nothing: every user of the proxy's machine has it.
"""

from __future__ import annotations

import os
import secrets
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

from jinja2 import Environment, StrictUndefined

from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.program_output import create_private_file, is_private, read_secret_file

#: Header with the secret.
SECRET_HEADER = "X-Treehammer-Proxy"  # noqa: S105 - a name
_SECRET_BYTES = 32
#: Proxy -> template of its configuration.
TEMPLATES = {"nginx": "nginx.conf.j2", "caddy": "Caddyfile.j2"}
_EXAMPLE_HOST = "results.example.org"


def load_proxy_secret(file: Path) -> str:
    """Load the secret of the proxy, which is created if missing.

    Raises:
        ConfigError: it cannot be read or created, is empty, or other users can read it.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(create_private_file(file), "w") as stream:
            stream.write(f"{secrets.token_urlsafe(_SECRET_BYTES)}\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"cannot be created ({error.strerror})", where=str(file)) from error
    if not is_private(file) or not file.stat().st_size:  # a full disk leaves it empty
        raise ConfigError(
            "the secret of the proxy is empty, or other users can read it",
            where=str(file),
            hint="Remove the file, then configure the proxy anew: treehammer serve --print-proxy nginx",
        )
    return read_secret_file("secret of the proxy", file)


def render_proxy(name: str, settings: Settings) -> str:
    """Write the configuration of a proxy for the settings of a service.

    Args:
        name: one of :data:`TEMPLATES`.
        settings: of the service.
    """
    template = (files("treehammer") / "web" / "deployment" / TEMPLATES[name]).read_text("utf-8")
    host = f"[{settings.serve_host}]" if ":" in settings.serve_host else settings.serve_host
    url = urlsplit(settings.serve_url or f"https://{_EXAMPLE_HOST}")
    # The files are no HTML, and their values are checked as settings.
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, autoescape=False)  # noqa: S701
    return (
        environment.from_string(template).render(
            host=url.hostname,
            port=url.port or 443,
            upstream=f"{host}:{settings.serve_port}",
            secret_header=SECRET_HEADER,
            secret=load_proxy_secret(settings.proxy_key_file),
            user_header=settings.serve_user_header,
        )
        + "\n"
    )
