"""From a script to its roles: loops first, then what goes through them."""

from __future__ import annotations

import ast

from .effects import find_sites
from .flow import Flow, call_name
from .loops import find_loops
from .models import find_models, find_optimizers, find_schedulers
from .roles import Script
from .source import File, local_modules
from .torch_names import FRAMEWORKS, RUNTIMES, last, root


def understand(file: File, known: dict[str, File] | None = None) -> Script:
    """Models, loaders, loops and files of a script and of the local modules that it imports.

    A source that cannot be parsed, or is about something else with all of its modules, has no roles
    at all.

    Args:
        known: files that were read before, by their real path.
    """
    if file.error is not None:
        return Script(file, (file,), Flow([file]))
    flow = Flow([file, *local_modules(file, known)])
    if not any(one.concerns_training for one in flow.files):
        return Script(file, flow.files, flow)
    optimizers = find_optimizers(flow)
    models = find_models(flow, optimizers)
    return Script(
        file,
        flow.files,
        flow,
        frameworks(flow),
        runtimes(flow),
        models,
        optimizers,
        find_schedulers(flow),
        *find_loops(flow, models),
        *find_sites(flow),
    )


def frameworks(flow: Flow) -> frozenset[str]:
    """Those that do the training: what is imported and used, not what is only imported."""
    found: set[str] = set()
    for file in flow.files:
        names = file.names
        roots = {root(name) for name in names.imported if not name.startswith(".")}
        called = {names.called(call) for call in names.all(ast.Call)}
        methods = {one for call in names.all(ast.Call) if (one := call_name(call)).islower()}
        parts = {".".join(one.split(".")[:2]) for one in (*called, *names.imported)}
        for name, (packages, words) in FRAMEWORKS.items():
            made = {last(one) for one in called if root(one) in packages}
            if roots & packages and words & (made | methods | parts):
                found.add(name)
    return frozenset(found)


def runtimes(flow: Flow) -> frozenset[str]:
    """The libraries that join the ranks: `torch`, `rankup`, `course`, `horovod`, `deepspeed`, …"""
    names = {
        file.names.called(call) or call_name(call)
        for file in flow.files
        for call in file.names.all(ast.Call)
    }
    return frozenset(kind for kind, called in RUNTIMES.items() if any(map(called.fullmatch, names)))
