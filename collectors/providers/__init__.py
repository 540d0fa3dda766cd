"""What :mod:`treehammer.collectors.software` is made of: one module for each way to get a ROOT."""
