"""Payload kit: the package ``treehammer_kit``, sent to the node beside the worker."""
