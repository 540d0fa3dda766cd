"""Names of batch systems, as they are stored and sent."""

from __future__ import annotations

#: The batch system of the submitting machine, and the name of its site.
LOCAL_BATCH = "local"
#: Prefix of an HTCondor pool's name.
HTCONDOR_PREFIX = "htcondor@"
#: Prefix of a batch system whose jobs another installation submitted and tracks.
EXTERNAL_PREFIX = "external@"
