"""Context, tables and assets that several pages share."""
