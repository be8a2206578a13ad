"""`rankup plan`: time, memory and cost of a training run, predicted before it waits in a queue.

Pure functions of a `Shape` (the model), a `Layout` (how it is spread) and a `Machine`; no torch.
"""
