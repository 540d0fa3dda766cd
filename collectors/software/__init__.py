"""What :mod:`treehammer.collectors.software.providers` is made of: one module for each way to get a ROOT."""
