"""Submit descriptions of clusters."""

from __future__ import annotations

import getpass
import math
import socket
from functools import cache

from treehammer.collectors.job_spec import PAIRED, RETRY_EXIT_CODE
from treehammer.collectors.software.setup_scripts import CVMFS_VARIABLE
from treehammer.collectors.tls_context import CERT_DIR_VARIABLE
from treehammer.submit.batch.htcondor import job_policy
from treehammer.submit.batch.htcondor.known_commands import check_description, check_site_commands
from treehammer.submit.planning.job_clusters import JobCluster
from treehammer.submit.planning.plan import Plan
from treehammer.submit.sites.site_model import token_pool_environment
from treehammer.submit.templates.template_engine import (
    HTCONDOR_TEMPLATE,
    SHIPPED_TEMPLATES,
    render_template,
)

#: Environment of every job; HTCondor starts jobs with an empty one.  With the XRD_ variables, XRootD
#: clients give up on a dead door within two minutes instead of half an hour.
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
    """Return user and host of the submission, as a contact for administrators."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user ID without a name
        user = "unknown"
    return f"{user}@{socket.getfqdn()}"


def render_cluster_description(plan: Plan, cluster: JobCluster) -> str:
    """Render and check the submit description of a cluster.

    Raises:
        ConfigError: a template is invalid, or a submit command does not exist.
    """
    site = cluster.site
    check_site_commands(site.submit, f"site {site.name}: submit")
    environment = JOB_ENVIRONMENT | plan.options.credentials.environment()
    environment |= token_pool_environment(
        access.door for access in plan.jobs.accesses if access.site.name == site.name
    )
    if site.cert_dir:
        environment[CERT_DIR_VARIABLE] = site.cert_dir
    if site.cvmfs:
        environment[CVMFS_VARIABLE] = site.cvmfs
    values = {
        "campaign": {"id": plan.campaign_id, "name": plan.campaign_name},
        "site": site,
        "doors": cluster.doors,
        "jobs": cluster.jobs,
        "contact": submitter_contact(),
        "environment": environment,
        "cpus": cluster.cpus,
        "memory_mb": _request_memory_mb(plan),
        "disk_kb": math.ceil(cluster.disk_bytes / 1024),
        "in_flight": cluster.in_flight,
        "delay": plan.options.pace.delay_expression(cluster.jobs, cluster.in_flight),
        "limits": {
            "attempts": job_policy.MAX_GRID_ATTEMPTS,
            "idle_s": job_policy.IDLE_LIMIT_S,
            "wall_s": round(cluster.wall_s),
            "lease_s": job_policy.lease_duration_s(round(cluster.wall_s)),
            # Copy programs of load tests write as many files as the test requests.
            "disk": plan.pinned_test.definition.load is None,
            "held_s": job_policy.HOLD_LIMIT_S,
            "pause_s": job_policy.RETRY_PAUSE_S,
            "vacate_s": job_policy.VACATE_GRACE_S,
            "temporary": RETRY_EXIT_CODE,
        },
    }
    folder = site.templates or SHIPPED_TEMPLATES
    text = render_template(HTCONDOR_TEMPLATE, values, folder=folder, where=f"site {site.name}")
    check_description(text, f"site {site.name}: {folder / HTCONDOR_TEMPLATE}")
    return text


def _request_memory_mb(plan: Plan) -> int:
    definition = plan.pinned_test.definition
    if definition.mode == PAIRED:  # two payloads live at once
        most = job_policy.REQUEST_MEMORY_MB + job_policy.SECOND_PROCESS_MEMORY_MB
        return min(2 * definition.memory_limit_mb, most)
    return min(definition.memory_limit_mb, job_policy.REQUEST_MEMORY_MB)
