"""Frozen history of the schema: revisions never import what they describe.

For a new column: add a file to ``versions`` with the next number, ``op.add_column`` and the column's
type spelled out, and raise :data:`treehammer.sql.core.schema_upgrade.REVISION`.  The tests compare the head with
the catalogue.
"""
