"""From a script to its roles: loops first, then what goes through them."""

from __future__ import annotations

from ..source import Source, neighbours
from .flow import Flow
from .kinds import Roles
from .loops import find_loops
from .others import find_devices, find_losses, find_sites
from .surroundings import frameworks, runtimes
from .trained import find_loaders, find_models, find_optimizers, find_schedulers


def understand(source: Source) -> Roles:
    """Who is who in a script, over the modules of its own folder that it imports.

    A source that cannot be parsed, or that is about something else, has no roles at all.
    """
    if not source.concerns_training or source.trouble is not None:
        return Roles(source, (source,), Flow([source]))
    sources = (source, *neighbours(source))
    flow = Flow(sources)
    optimizers = find_optimizers(flow)
    models = find_models(flow, optimizers)
    train, evaluation, loaders = find_loops(flow, models)
    train_loaders, eval_loaders = find_loaders(loaders)
    return Roles(
        source,
        sources,
        flow,
        frameworks(flow),
        runtimes(flow),
        models,
        optimizers,
        find_schedulers(flow),
        train_loaders,
        eval_loaders,
        find_losses(flow),
        find_devices(flow),
        train,
        evaluation,
        *find_sites(flow),
    )
