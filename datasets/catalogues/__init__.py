"""The folder catalogue, and how its datasets are added, verified and rewritten."""
