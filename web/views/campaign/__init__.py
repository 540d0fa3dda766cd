"""Pages of campaigns and their jobs."""
