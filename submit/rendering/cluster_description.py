"""The submit description of a site class: what HTCondor is told of all its jobs."""

from __future__ import annotations

import getpass
import math
import socket
from functools import cache

from treehammer.collectors.job_spec import RETRY_EXIT_CODE
from treehammer.collectors.software.setup_scripts import CVMFS_VARIABLE
from treehammer.submit.batch.htcondor.known_commands import check_description, check_site_commands
from treehammer.submit.planning.job_clusters import JobCluster
from treehammer.submit.planning.plan import Plan
from treehammer.submit.templates.template_engine import (
    HTCONDOR_TEMPLATE,
    SHIPPED_TEMPLATES,
    render_template,
)

#: Starts of a job until it is given up.
MAX_GRID_ATTEMPTS = 3
#: Seconds that a job waits for a machine, and that one held by a person stays.
IDLE_LIMIT_S = 24 * 3600
#: Seconds that a job stays held for anything else that waiting does not cure.
HOLD_LIMIT_S = 600
#: Seconds before files that did not get through are tried again.
RETRY_PAUSE_S = 30
#: Seconds that a worker which is asked to stop has to end its payload and write what it has.
VACATE_GRACE_S = 60
#: The most memory, in MB, that a job asks a site for: what its slots commonly have for a core.  A
#: site with more says so by its own request_memory.
REQUEST_MEMORY_MB = 2000

#: What every job finds in its environment, which HTCondor leaves empty.  The XRD_ ones give up a
#: door that is dead within two minutes; by themselves XRootD's clients try for half an hour.
JOB_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "XRD_APPNAME": "treehammer",
    "XRD_CONNECTIONWINDOW": "30",
    "XRD_CONNECTIONRETRY": "2",
    "XRD_REQUESTTIMEOUT": "120",
    "XRD_STREAMTIMEOUT": "60",
    "XRD_TIMEOUTRESOLUTION": "5",
}


@cache
def submitter_contact() -> str:
    """Whom an administrator may ask about a job: user and host of the submission."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        user = "unknown"
    return f"{user}@{socket.getfqdn()}"


def render_cluster_description(plan: Plan, made: JobCluster) -> str:
    """The submit description of a site class, checked.

    Raises:
        ConfigError: a template is wrong, or a submit command does not exist.
    """
    site = made.site
    check_site_commands(site.submit, f"site {site.name}: submit")
    environment = JOB_ENVIRONMENT | plan.options.credentials.environment()
    if site.cvmfs:
        environment[CVMFS_VARIABLE] = site.cvmfs
    values = {
        "campaign": {"id": plan.campaign_id, "name": plan.campaign_name},
        "site": site,
        "doors": made.doors,
        "jobs": made.jobs,
        "contact": submitter_contact(),
        "environment": environment,
        "memory_mb": min(plan.pinned_test.definition.memory_limit_mb, REQUEST_MEMORY_MB),
        "disk_kb": math.ceil(made.disk_bytes / 1024),
        "in_flight": made.in_flight,
        "delay": plan.options.pace.delay_expression(made.jobs, made.in_flight),
        "limits": {
            "attempts": MAX_GRID_ATTEMPTS,
            "idle_s": IDLE_LIMIT_S,
            "wall_s": round(made.wall_s),
            "held_s": HOLD_LIMIT_S,
            "pause_s": RETRY_PAUSE_S,
            "vacate_s": VACATE_GRACE_S,
            "temporary": RETRY_EXIT_CODE,
        },
    }
    folder = site.templates or SHIPPED_TEMPLATES
    text = render_template(HTCONDOR_TEMPLATE, values, folder=folder, where=f"site {site.name}")
    check_description(text, f"site {site.name}: {folder / HTCONDOR_TEMPLATE}")
    return text
