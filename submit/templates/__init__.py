"""Submit templates, the engine that renders them, and quoting."""
