"""Workspace, processes and lifecycle of a testbed."""
