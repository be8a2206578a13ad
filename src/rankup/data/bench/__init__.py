"""`rankup bench-data`: how fast a file feeds a training loop, and which part limits.

`measure` times the parts one by one and the Loader as a whole, with the transform that `chosen`
loads; `verdict` judges the figures, and `command` has the order of it and prints.
"""
