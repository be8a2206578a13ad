"""A name to import."""
