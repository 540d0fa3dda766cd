"""Definition of a test: test.toml, its model, axes, variants, identity and checks."""
