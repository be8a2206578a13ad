"""From a script to its roles: loops first, then what goes through them."""

from __future__ import annotations

from .effects import find_devices, find_losses, find_sites
from .flow import Flow
from .libraries import frameworks, runtimes
from .loops import find_loops
from .models import find_loaders, find_models, find_optimizers, find_schedulers
from .roles import Script
from .source import File, local_modules


def understand(file: File, known: dict[str, File] | None = None) -> Script:
    """Models, loaders, loops and files of a script and of the local modules that it imports.

    A source that cannot be parsed, or that is about something else, has no roles at all.

    Args:
        known: files that were read before, by their real path.
    """
    if not file.concerns_training or file.error is not None:
        return Script(file, (file,), Flow([file]))
    files = (file, *local_modules(file, known))
    flow = Flow(files)
    optimizers = find_optimizers(flow)
    models = find_models(flow, optimizers)
    train, evaluation, loaders = find_loops(flow, models)
    train_loaders, eval_loaders = find_loaders(loaders)
    return Script(
        file,
        files,
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
