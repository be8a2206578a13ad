"""Who is who in a training script: model, optimizer, loaders, loops, what is saved.

    source = read(Path("train.py"))              # port/source.py
    roles = understand(source)                   # reads the local modules that it imports as well

    roles.trains                                 # False: nothing to check, nothing to port
    roles.frameworks                             # {"lightning"}: somebody else does it
    roles.runtimes                               # {"rankup"}: ported already

    for model in roles.models:                   # Role
        model.name                               # "model", "self.net": as the script calls it
        model.made                               # what makes it: Net() of `Net().to(device)`
        model.source, model.place                # the file it is made in, "FILE:LINE:COLUMN"
        model.target                             # what it is assigned to (cst.Name), or None
        model.statement, model.function, model.class_   # where that is
        model.confidence                         # 1.0: seen in an optimizer; below 0.5: a guess

    for loop in roles.train_loops:               # Loop: reaches .backward()
        loop.node                                # cst.For or cst.While, in loop.source
        loop.iterated                            # what is the loader there: `loader` of
                                                 # `for i, b in enumerate(tqdm(loader))`
        loop.loaders                             # Roles: where it is made
        loop.backwards                           # the .backward() calls, as (source, call)

    roles.of(source, node)                       # the Roles that an expression may be
    roles.flow.origins(source, node)             # where its value comes from, and through what:
                                                 # Origin: DDP(model) -> Net()

A loader made in another file, passed in or taken out of a dict is found by `loop.loaders` where its
making can be seen; where it cannot, its Role has the expression itself as `made` (a parameter, a
foreign call) and a confidence below 1: then `shard(...)` belongs around `loop.iterated`.
"""

from __future__ import annotations

from .flow import Flow
from .kinds import Count, Loop, Role, Roles, Site
from .pieces import Origin
from .understand import understand

__all__ = ["Count", "Flow", "Loop", "Origin", "Role", "Roles", "Site", "understand"]
