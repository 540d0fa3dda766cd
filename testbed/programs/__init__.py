"""Programs of a testbed that run by themselves, with the standard library alone."""
