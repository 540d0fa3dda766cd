"""The part that runs on the node: sets up ROOT, runs the payload, accounts for its process tree."""
