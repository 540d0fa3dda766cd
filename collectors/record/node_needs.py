"""Needs of jobs on a node: names in ``node_lacks``, and the sentence for each that is missing."""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple, Optional, Tuple


class NodeNeed(NamedTuple):
    """Something that jobs need on a node.

    Attributes:
        title: what it is, as the object of "the node lacks".
        remedy: what to do at the site, in the imperative; ``{site}`` is its name.
        is_required: whether jobs fail without it, or some of them.
    """

    title: str
    remedy: str
    is_required: bool = True


PYTHON, SCRATCH, EXEC, DISK, MEMORY = "python", "scratch", "exec", "disk", "memory"
HOME, COMPILER, HEADERS = "home", "compiler", "headers"
NETWORK, DOOR, SERVICE = "network", "door", "service"

#: Name -> need. The first is that of the script before the worker's archive.
NODE_NEEDS: Mapping[str, NodeNeed] = {
    PYTHON: NodeNeed(
        "Python 3.9 or later",
        "install one on the nodes, or name one by python or python_views in [sites.{site}] of sites.toml",
    ),
    SCRATCH: NodeNeed("a folder to write to", "let jobs write in the folder in which they start"),
    EXEC: NodeNeed(
        "a scratch folder that runs programs",
        "mount the scratch of the nodes without noexec, as ROOT's interpreter compiles the loop instead of "
        "a compiler, and programs of tests do not start",
        is_required=False,
    ),
    DISK: NodeNeed(
        "free disk space",
        "clean the scratch of the nodes, or raise request_disk by submit in [sites.{site}]",
    ),
    MEMORY: NodeNeed(
        "memory",
        "give jobs the memory that they request, or raise memory_mb in ceilings of [sites.{site}]",
    ),
    HOME: NodeNeed(
        "a home folder", "the worker gives the payload one in its sandbox", is_required=False
    ),
    COMPILER: NodeNeed(
        "a C++ compiler",
        "install g++ on the nodes, as ROOT's interpreter compiles the loop instead, and tests cannot build "
        "libraries",
        is_required=False,
    ),
    HEADERS: NodeNeed(
        "C++ headers, without which ROOT's interpreter compiles nothing",
        "install gcc-c++ (or gcc with libstdc++-devel), glibc-devel and kernel-headers (Debian: g++) on the "
        "nodes, or use a ROOT that brings its compiler by software in [sites.{site}]",
    ),
    NETWORK: NodeNeed("a network", "give jobs a route to the door, or read files of the node"),
    DOOR: NodeNeed("a way to the door", "open the route and the firewall from the nodes to it"),
    SERVICE: NodeNeed(
        "a way to the results service",
        "open the firewall from the nodes to it; until then measurements return with the job",
        is_required=False,
    ),
}


def describe_lack(name: str, finding: str, site: str) -> str:
    """Describe what the nodes of a site lack, and the remedy, in one sentence."""
    need = NODE_NEEDS[name]
    return f"{site}: the node lacks {need.title} ({finding}): {need.remedy.format(site=site)}."


_LACK = re.compile(r"the node lacks (?P<title>.+?) \(.*\): (?P<remedy>.*?)\.(?: \(|$)", re.DOTALL)


def parse_lack(message: str) -> Optional[Tuple[str, str]]:
    """Return name and remedy of the need that a message of the worker describes; None for others."""
    match = _LACK.search(message)
    if match is None:
        return None
    names = (name for name, need in NODE_NEEDS.items() if need.title == match["title"])
    return next(names, ""), match["remedy"]
