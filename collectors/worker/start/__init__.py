"""Common start of jobs that load a storage together."""
