"""One training loop for every strategy: the same run on any number of ranks."""
