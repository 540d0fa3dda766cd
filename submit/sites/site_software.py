"""Software of sites: values of the ``root`` axis, resolved at each site.

A value stands for the test's own software, or for what a site has in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.software import providers
from treehammer.errors import ConfigError, DefinitionError
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.submit.sites.site_model import Site

#: Key of a site's software for all releases of ROOT without a key of their own.
ANY_RELEASE = "*"
#: The same for all releases of the XRootD client.
ANY_XROOTD = "xrootd"


def parse_releases(definition: TestDefinition) -> dict[str, SoftwareRequest]:
    """Parse every value of a test's ``root`` axis.

    Raises:
        DefinitionError: a value is invalid.
    """
    try:
        return {
            value: providers.parse_software_request(value)
            for value in definition.axis_values("root")
        }
    except ValueError as error:
        raise DefinitionError(str(error), where=f"{definition.test.name}: axis root") from error


def find_site_software(site: Site, value: str, request: SoftwareRequest) -> SoftwareRequest:
    """Find the software of a site for a value of the root axis; the request itself if it has none."""
    with suppress(ConfigError):
        return request if site.is_local else _resolve_at_site(site, value, request)
    return request


def resolve_site_software(
    sites: Iterable[Site], releases: Mapping[str, SoftwareRequest]
) -> dict[tuple[str, str], SoftwareRequest]:
    """Resolve the values of the root axis at each site other than this machine.

    Args:
        sites: sites of the campaign.
        releases: value of the root axis -> parsed software request.

    Returns:
        (site, value of the root axis) -> software request at that site.

    Raises:
        ConfigError: a site lacks a release, or its entry for one is invalid.
    """
    return {
        (site.name, value): _resolve_at_site(site, value, request)
        for site in sites
        if not site.is_local
        for value, request in releases.items()
    }


def _resolve_at_site(site: Site, value: str, request: SoftwareRequest) -> SoftwareRequest:
    stand_ins = {"wheel": (request.version, ANY_RELEASE), "xrootd": (ANY_XROOTD,)}
    keys = (value, *stand_ins.get(request.provider, ()))
    entry = next(filter(None, map(site.software.get, keys)), "")
    if not entry:
        if providers.is_installed_release(request):
            raise _missing_software_error(site, request)
        return request
    where = f"site {site.name}: software"
    try:
        resolved = providers.parse_software_request(entry.replace("{version}", request.version))
    except ValueError as error:
        raise ConfigError(str(error), where=where) from error
    if providers.is_installed_release(resolved):
        raise _missing_software_error(site, request)
    if request.version and resolved.version not in ("", request.version):
        raise ConfigError(
            f"{entry!r} is ROOT {resolved.version}, but stands for {request.version}", where=where
        )
    if request.provider in providers.WITHOUT_ROOT:
        return resolved  # the version is none of ROOT
    # Measurements report the requested version even if the site's entry names none.
    return replace(resolved, version=resolved.version or request.version)


def _missing_software_error(site: Site, request: SoftwareRequest) -> ConfigError:
    program, key, direct = "ROOT", ANY_RELEASE, "cvmfs:ROOT/VERSION/PLATFORM"
    if request.provider == "xrootd":
        program, key, direct = "XRootD", ANY_XROOTD, "xrootd:/FOLDER"
    elif request.provider == "pypi":
        name = request.request.partition(":")[2].partition("=")[0]
        program, key, direct = name, request.request, "build:/FOLDER"
    entry = f'"{key}" = "{direct.replace("VERSION", "{version}")}"'
    return ConfigError(
        f"site {site.name} does not define its installation of {program} {request.version}",
        where="axis root",
        hint="Grid jobs never download software. Define the site's installation, e.g. "
        f"[sites.{site.name}.software] {entry}, or request it directly: -P root={direct}.",
    )
