"""What is recorded: worker and payload kit (on the node), metric catalogue, measurement record."""
