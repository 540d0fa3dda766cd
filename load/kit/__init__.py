"""Load generator, which travels to nodes with the payload kit."""
