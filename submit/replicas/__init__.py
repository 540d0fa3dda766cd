"""Selection, placement and verification of replicas."""
