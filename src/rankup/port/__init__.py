"""From a single-GPU script to many ranks: what it is made of, what stands in the way, the port.

The user's script is read here, never imported or run.
"""
