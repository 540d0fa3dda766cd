"""First page of a published site."""
