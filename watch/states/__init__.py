"""States of sites, doors and storages, by rules."""
