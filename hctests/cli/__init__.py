"""Commands of the hctests package."""
