"""A grid in a box: HTCondor, XRootD, Rucio and PostgreSQL on one machine."""
