"""Executions as samples, and the pairs made from them."""
