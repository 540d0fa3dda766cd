"""Load tests of storage: generator, common starts, benchmark, their records and pages."""
