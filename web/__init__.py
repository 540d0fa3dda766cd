"""Web service: pages, JSON API, figures and reports."""
