"""The fixes of a port, each with a name and in a file with its kin."""
