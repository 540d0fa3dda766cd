"""A grid in a box: HTCondor, XRootD, later Rucio and PostgreSQL, on one machine."""
