"""The schema, one revision per change."""
