"""Worker on the node: sets up ROOT, runs the payload and accounts for its process tree."""
