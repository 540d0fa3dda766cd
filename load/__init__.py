"""Load tests of storage: generator, engines, common starts, benchmark, their records and pages."""
