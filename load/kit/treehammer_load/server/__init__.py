"""Server side of a load: calls from a server's log, and figures of its machine."""
