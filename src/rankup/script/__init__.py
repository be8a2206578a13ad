"""Analysis of a user's script from its text: it is neither imported nor run.

file = source.read(Path("train.py"))
if file.error is None and file.concerns_training:
    file.tree                    # Python's own `ast`
    file.names.dotted(node)      # "torch.optim.Adam", through imports and renames
    flow = Flow([file, *source.local_modules(file)])
    flow.origins(file, node)     # where a value comes from: DDP(model) -> Net()
"""
