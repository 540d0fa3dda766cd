"""A campaign from request to resume, rerun and purge."""
