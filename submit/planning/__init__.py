"""Planning: jobs, costs, ceilings, pacing and credentials."""
