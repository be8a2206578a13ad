"""doctor: the checks, and the command on a laptop and on Slurm."""
