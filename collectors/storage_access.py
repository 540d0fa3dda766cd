"""Access to storage: schemes of URLs, operations that each software supports, TLS settings.

One table of schemes for the sites file, ``sites check``, plans, verification, placement and jobs.
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from .job_spec import SoftwareRequest

if TYPE_CHECKING:
    import ssl

#: Clients of storage: the file system, XRootD's client (in ROOT, in Python, ``xrdcp``), Python, and
#: Python with signed addresses or those of a director.  Modules with code of a client are named for it.
FILE_CLIENT, XROOTD_CLIENT, HTTP_CLIENT, S3_CLIENT, PELICAN_CLIENT = (
    *("file", "xrootd", "http", "s3", "pelican"),
)

#: Operations of a job on a door: ROOT reads it directly, or the job copies from it.
READ, STAGE = "read", "stage"


@dataclass(frozen=True)
class StorageScheme:
    """A scheme of URLs.

    Attributes:
        protocol: protocol of a door with such URLs.
        name: scheme that Treehammer writes; aliases are replaced by it.
        client: client that opens such URLs.
        port: default port.
        tls: whether the connection is always encrypted.
    """

    protocol: str
    name: str
    client: str
    port: int = 0
    tls: bool = False


_FILE = StorageScheme("file", "file", FILE_CLIENT)
_ROOT = StorageScheme("root", "root", XROOTD_CLIENT, 1094)
_ROOTS = StorageScheme("root", "roots", XROOTD_CLIENT, 1094, tls=True)
_HTTP = StorageScheme("http", "http", HTTP_CLIENT, 80)
_HTTPS = StorageScheme("https", "https", HTTP_CLIENT, 443, tls=True)
#: davix, gfal and Rucio name them so.
_S3 = StorageScheme("s3", "s3", S3_CLIENT, 80)
_S3S = StorageScheme("s3", "s3s", S3_CLIENT, 443, tls=True)
_PELICAN = StorageScheme("pelican", "pelican", PELICAN_CLIENT, 443, tls=True)
#: Federation of ``osdf://``, whose URLs name none.
OSDF_FEDERATION = "osg-htc.org"

#: Scheme in URLs, '' for a path -> its properties.
SCHEMES: Mapping[str, StorageScheme] = {
    "": _FILE,
    "file": _FILE,
    "root": _ROOT,
    "xroot": _ROOT,
    "roots": _ROOTS,
    "xroots": _ROOTS,
    "https": _HTTPS,
    "davs": _HTTPS,
    "http": _HTTP,
    "dav": _HTTP,
    "s3": _S3,
    "s3s": _S3S,
    "pelican": _PELICAN,
    "osdf": _PELICAN,
}
#: Protocols of doors.
PROTOCOLS = tuple(dict.fromkeys(scheme.protocol for scheme in SCHEMES.values()))


@dataclass(frozen=True)
class SoftwareLimit:
    """An operation that a ROOT does not support.

    Attributes:
        operation: the operation.
        schemes: schemes of URLs, without aliases.
        provider: provider of the ROOT.
        series: series of its releases, e.g. ``6.40``; empty for all.
        reason: the missing feature, in words after the name of the release.
        with_credential: whether it concerns only doors that require a credential.
    """

    operation: str
    schemes: Tuple[str, ...]
    provider: str
    series: Tuple[str, ...]
    reason: str
    with_credential: bool = False


#: Every build is examined on the node after a failure; these are known before.  ROOT's wheels are built
#: without davix and curl.
LIMITS: Tuple[SoftwareLimit, ...] = (
    SoftwareLimit(
        READ, ("http", "https", "pelican"), "wheel", ("6.40",), "no class that reads HTTP"
    ),
    SoftwareLimit(
        READ,
        ("https", "pelican"),
        "wheel",
        ("6.37", "6.38", "6.39"),
        "no token or proxy over HTTPS, and no verification of certificates",
        with_credential=True,
    ),
    SoftwareLimit(READ, ("s3", "s3s"), "wheel", ("6.40",), "no class that reads S3"),
    SoftwareLimit(
        READ,
        ("s3s",),
        "wheel",
        ("6.37", "6.38", "6.39"),
        "no verification of certificates over HTTPS",
    ),
    SoftwareLimit(STAGE, ("root", "roots"), "none", (), "no XRootD client"),
    SoftwareLimit(STAGE, ("root", "roots"), "xrootd", (), "no ROOT, which copies the files"),
)

#: Alternatives to an operation.
REMEDIES = {
    READ: "Stage the files (access = 'staged'), or read through a root:// or roots:// door.",
    STAGE: "Name a ROOT release, or stage through an http:// or https:// door.",
}


def find_scheme(url: str) -> Optional[StorageScheme]:
    """Return the scheme of a URL or path; None for an unknown one."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return _FILE
    return SCHEMES.get(scheme.lower())


def normalize_url(url: str) -> str:
    """Replace aliases, such as ``davs://`` by ``https://`` and ``file://`` by the path alone."""
    scheme, separator, address = url.partition("://")
    storage_scheme = SCHEMES.get(scheme.lower())
    if not separator or storage_scheme is None:
        return url
    if scheme.lower() == "osdf":
        return f"pelican://{OSDF_FEDERATION}/{address.lstrip('/')}"
    return urlsplit(url).path if storage_scheme is _FILE else f"{storage_scheme.name}://{address}"


def list_aliases(protocol: str) -> Tuple[str, ...]:
    """List the schemes of a door's protocol, the usual one first."""
    return tuple(name for name, scheme in SCHEMES.items() if scheme.protocol == protocol and name)


def find_limit(operation: str, url: str, software: SoftwareRequest, *, has_credential: bool) -> str:
    """Describe why a software does not support an operation on a URL; '' if it may."""
    scheme = find_scheme(url)
    for limit in LIMITS:
        if (
            limit.operation == operation
            and scheme is not None
            and scheme.name in limit.schemes
            and limit.provider == software.provider
            and (not limit.series or software.version.rpartition(".")[0] in limit.series)
            and (has_credential or not limit.with_credential)
        ):
            name = f"root = '{software.request}'"
            if software.provider == "wheel":
                name = f"ROOT {software.version} from PyPI"
            return f"{name}: {limit.reason}. {REMEDIES[operation]}"
    return ""


def describe_read_limits(url: str) -> str:
    """Name the ROOT releases that do not read a door's URLs directly; '' without any."""
    scheme = find_scheme(url)
    limits = [x for x in LIMITS if scheme and x.operation == READ and scheme.name in x.schemes]
    if not limits:
        return ""
    parts = "; ".join(f"{', '.join(x.series)}: {x.reason}" for x in limits)
    return f"ROOT from PyPI: {parts}. {REMEDIES[READ]}"


#: Variables that name a folder of authorities with hashed names, and bundles of authorities.
CERT_DIR_VARIABLE = "X509_CERT_DIR"
BUNDLE_VARIABLES = ("X509_CERT_FILE", "SSL_CERT_FILE")
PROXY_VARIABLE = "X509_USER_PROXY"
#: Folder that grid clients use without :data:`CERT_DIR_VARIABLE`.
USUAL_CERT_DIR = "/etc/grid-security/certificates"


def make_tls_context(env: Mapping[str, str]) -> ssl.SSLContext:
    """Make a context that verifies servers and presents the proxy of ``env``, if it names one.

    Authorities are those of the system, of the bundles, and of the folder of grid authorities.

    Raises:
        OSError: a bundle or the proxy cannot be used.
    """
    import ssl  # commands that open no connection start without it

    context = ssl.create_default_context()
    for name in BUNDLE_VARIABLES:
        if env.get(name):
            try:
                context.load_verify_locations(cafile=env[name])
            except OSError as error:  # it names no file
                raise OSError(f"{name}={env[name]}: {error.strerror or error}") from error
    folder = env.get(CERT_DIR_VARIABLE) or USUAL_CERT_DIR
    if os.path.isdir(folder):
        context.load_verify_locations(capath=folder)
    if env.get(PROXY_VARIABLE):
        context.load_cert_chain(env[PROXY_VARIABLE])
    return context
