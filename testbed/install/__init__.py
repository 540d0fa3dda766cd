"""Software of a testbed: Debian packages, native programs, PostgreSQL and Rucio."""
