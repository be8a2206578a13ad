"""What runs in the processes of `rankup verify`: both scripts, unchanged, for a few steps on CPU.

One process imports torch once (`zygote`) and forks every rank of every run from there. A rank tells
in its journal what it drew, computed, printed and wrote; the parent compares.
"""
