"""A run while it goes on: read from its growing files, shown in a terminal."""
