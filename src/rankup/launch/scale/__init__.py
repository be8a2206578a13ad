"""`rankup scale`: the same run on more and more GPUs, and what that gave."""
