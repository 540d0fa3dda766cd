"""Sites: sites.toml, doors, probes and import from CRIC."""
