"""Suite that asv runs in each of the two environments."""
