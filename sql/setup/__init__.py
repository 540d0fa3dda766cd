"""Creation and upgrade of databases: migrations, and the check of the schema at opening."""
