"""Components of a testbed: pool, storage, Rucio, database and services."""
