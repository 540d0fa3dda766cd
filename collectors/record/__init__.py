"""The measurement record: metric catalogue, plausibility rules and failure classes."""
