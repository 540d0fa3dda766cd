"""What travels to the node beside the worker: the package ``treehammer_kit`` for payloads."""
