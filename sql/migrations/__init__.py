"""Schema history: each revision is frozen and never imports the tables that it creates.

To add a column, add a file with the next number to ``versions`` that calls ``op.add_column`` with the
type spelled out, and raise :data:`treehammer.sql.engine.database_setup.REVISION`. A test compares
the result of all revisions with :mod:`treehammer.sql.core.schema`.
"""
