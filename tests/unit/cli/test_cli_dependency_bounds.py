"""Lower bounds of requirements exclude versions with published holes."""

from __future__ import annotations

import configparser
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import pytest
from demo_checkout import REPOSITORY
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

#: First version without a published hole, and the advisories that it fixes; looked up in 2026-11.
#: Packages that others bring along have a row if they handle data from the network.
#: Add a row for a new advisory, then raise the bound in setup.cfg or pyproject.toml.
FIXED = {
    "authlib": ("1.6.12", "CVE-2026-27962, CVE-2026-28802, CVE-2026-41425, CVE-2026-44681"),
    "certifi": ("2024.7.4", "CVE-2024-39689"),
    "cryptography": ("50.0.0", "CVE-2026-26007, CVE-2026-39892, CVE-2026-69247, CVE-2026-69249"),
    "gitpython": ("3.1.59", "CVE-2026-42215, CVE-2026-67324, CVE-2026-78676, PYSEC-2026-3788"),
    "h11": ("0.16.0", "CVE-2025-43859"),
    "idna": ("3.15", "CVE-2024-3651, CVE-2026-45409"),
    "jinja2": ("3.1.6", "CVE-2024-56326, CVE-2025-27516"),
    "joserfc": ("1.7.2", "CVE-2026-27932, CVE-2026-49852, GHSA-5jhw-7jv7-qcqq"),
    "pillow": ("12.2.0", "CVE-2026-25990, CVE-2026-40192"),
    "pyarrow": ("23.0.1", "CVE-2023-47248, CVE-2026-25087"),
    "pydantic": ("2.4.0", "CVE-2024-3772"),
    "pyjwt": ("2.13.0", "CVE-2026-32597, CVE-2026-48523, CVE-2026-48526"),
    "pytest": ("9.0.3", "CVE-2025-71176"),
    "requests": ("2.33.0", "CVE-2024-47081, CVE-2026-25645"),
    "setuptools": ("83.0.0", "CVE-2025-47273, PYSEC-2026-3447"),
    "starlette": ("1.3.1", "CVE-2025-62727, CVE-2026-48710, CVE-2026-54282, CVE-2026-54283"),
    "urllib3": ("2.7.0", "CVE-2025-66418, CVE-2026-21441, CVE-2026-44431, CVE-2026-44432"),
    "uv": ("0.9.6", "CVE-2025-54368, CVE-2025-13327"),
    "uvicorn": ("0.11.7", "CVE-2020-7694, CVE-2020-7695"),
    "werkzeug": ("3.1.6", "CVE-2026-21860, CVE-2026-27199"),
}
#: Requirements that only hold annotations for the type checker.
UNBOUND = {"pandas-stubs", "scipy-stubs", "types-jsonschema", "types-psutil"}


def list_requirements() -> Iterator[tuple[str, Requirement]]:
    """Yield each requirement with its section."""
    declared = configparser.ConfigParser(interpolation=None)
    declared.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]
    sections = {
        "build": build["requires"],
        "install": declared["options"]["install_requires"].splitlines(),
        **{name: text.splitlines() for name, text in declared["options.extras_require"].items()},
    }
    for section, lines in sections.items():
        for line in lines:
            if line and not line.startswith("treehammer["):
                yield section, Requirement(line)


def lowest(requirement: Requirement) -> Version | None:
    bounds = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
    return max(bounds, default=None)


def test_every_requirement_has_a_lower_bound() -> None:
    unbound = {item.name for _, item in list_requirements() if lowest(item) is None}
    assert unbound == UNBOUND


@pytest.mark.parametrize("name", FIXED)
def test_lower_bounds_exclude_known_holes(name: str) -> None:
    fixed, advisories = FIXED[name]
    bounds = {
        section: lowest(item)
        for section, item in list_requirements()
        if canonicalize_name(item.name) == name
    }
    assert bounds, f"no requirement bounds {name}: add one to setup.cfg"
    too_low = {
        section: str(bound)
        for section, bound in bounds.items()
        if bound is None or bound < Version(fixed)
    }
    assert not too_low, f"{name} {too_low} permits {advisories}; require {fixed}"


def test_installed_versions_meet_the_bounds() -> None:
    for _, item in list_requirements():
        try:
            installed = version(item.name)
        except PackageNotFoundError:
            continue
        assert item.specifier.contains(installed, prereleases=True), f"{item} but {installed}"
