"""Context, tables and static files shared by several pages."""
