"""Where it runs: sites, planning, templates, batch systems, tracking."""
