"""The local batch system: jobs on this machine."""
