"""Runs a user's script under observation: in a copy of its project, with hooks, to its first step.

The parent side has the copy (`copies`), the child (`watch`), its processes, its journal (`events`)
and its network namespace; `inside` runs in the script's own process.
"""
