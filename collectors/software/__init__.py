"""Providers of ROOT: one module for each way to get a ROOT."""
