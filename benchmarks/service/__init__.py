"""Benchmarks of the results service, its database and the submission to HTCondor."""
