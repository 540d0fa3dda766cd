"""Local batch system: jobs on this machine."""
