"""A user's own model and loop on the ranks of a mesh: `parallelize`, and what it is made of."""
