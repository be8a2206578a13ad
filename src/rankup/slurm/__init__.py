"""Slurm: what is said to its commands and how their answers are read. No torch.

`client` is the only place that starts a Slurm command; `job` tells in plain words what became of
a job, from whichever source still knows it.
"""
