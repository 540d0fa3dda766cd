"""What is remembered: schema, migrations, store, queries, exports."""
