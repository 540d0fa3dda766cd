"""Measurement of any command from outside: processes, files and reads; ``treehammer run``."""
