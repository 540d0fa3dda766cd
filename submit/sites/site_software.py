"""Which ROOT a value of the ``root`` axis is at a site: what was asked for, or what the site has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.software import providers
from treehammer.errors import ConfigError
from treehammer.submit.sites.site_model import Site

#: Stands in a site's software for every release that it does not name.
ANY_RELEASE = "*"


def resolve_site_software(
    sites: Iterable[Site], releases: Mapping[str, SoftwareRequest]
) -> dict[tuple[str, str], SoftwareRequest]:
    """(Site, value of the root axis) -> what sets it up there, for all sites beside this machine.

    Args:
        sites: where jobs will run.
        releases: value of the root axis -> as parsed.

    Raises:
        ConfigError: a site lacks a release, or says of one what cannot be understood.
    """
    return {
        (site.name, text): _resolve_at_site(site, text, request)
        for site in sites
        if site.batch != LOCAL_BATCH
        for text, request in releases.items()
    }


def _resolve_at_site(site: Site, text: str, request: SoftwareRequest) -> SoftwareRequest:
    plain = request.version if request.provider == "wheel" else text
    wanted = site.software.get(text) or site.software.get(plain)
    if wanted is None and request.provider == "wheel":
        wanted = site.software.get(ANY_RELEASE)
    if wanted is None:
        if request.provider == "wheel":
            raise _missing_software_error(site, text)
        return request
    where = f"site {site.name}: software"
    try:
        found = providers.parse_software_request(wanted.replace("{version}", request.version))
    except ValueError as error:
        raise ConfigError(str(error), where=where) from error
    if found.provider == "wheel":
        raise _missing_software_error(site, text)
    if request.version and found.version not in ("", request.version):
        raise ConfigError(
            f"{wanted!r} stands for ROOT {request.version}, but is {found.version}", where=where
        )
    # What it reports must be what was asked for, also where the site's word names no version.
    return replace(found, version=found.version or request.version)


def _missing_software_error(site: Site, text: str) -> ConfigError:
    return ConfigError(
        f"site {site.name} does not say where it has ROOT {text}",
        where="axis root",
        hint="Nothing downloads software inside a grid job. Tell Treehammer what the site has, e.g. "
        f'[sites.{site.name}.software] "*" = "cvmfs:ROOT/{{version}}/PLATFORM", '
        "or ask for it directly: -P root=cvmfs:ROOT/VERSION/PLATFORM.",
    )
