"""Runs in the processes of `rankup verify`: both scripts, unchanged, for a few steps on the CPU.

One process imports torch once (`server`) and forks every rank of every run from there. A rank
records in its journal what it drew, computed, printed and wrote; the parent compares.
"""
