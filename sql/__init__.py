"""Results database: schema, migrations, store, queries, exports."""
