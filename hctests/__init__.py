"""What is measured: shipped tests, the test.toml schema, the matrix, the Git source."""
