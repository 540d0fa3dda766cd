"""Worker and payload kit (on the node), metric catalogue and measurement record."""
