"""Imported and not used by the scripts."""
