"""Authentication, database access and request handling shared by API and pages."""
