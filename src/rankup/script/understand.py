"""From a script to its roles: loops first, then what goes through them."""

from __future__ import annotations

import ast

from .effects import find_sites
from .flow import Flow, call_name
from .loops import find_loops
from .models import find_models, find_optimizers, find_schedulers
from .roles import Script
from .source import File, local_modules
from .torch_names import FRAMEWORKS, HF_TRAINERS, last, root


def understand(file: File, known: dict[str, File] | None = None) -> Script:
    """Models, loaders, loops and files of a script and of the local modules that it imports.

    A source that cannot be parsed, or that is about something else, has no roles at all.

    Args:
        known: files that were read before, by their real path.
    """
    if file.error is not None:
        return Script(file, (file,), Flow([file]))
    flow = Flow([file, *local_modules(file, known)])
    if not file.concerns_training:
        return Script(file, flow.files, flow)
    optimizers = find_optimizers(flow)
    models = find_models(flow, optimizers)
    train, evaluation, train_loaders, eval_loaders = find_loops(flow, models)
    return Script(
        file,
        flow.files,
        flow,
        frameworks(flow),
        runtimes(flow),
        models,
        optimizers,
        find_schedulers(flow),
        train_loaders,
        eval_loaders,
        train,
        evaluation,
        *find_sites(flow),
    )


def frameworks(flow: Flow) -> frozenset[str]:
    """Those that do the training: what is imported and used, not what is only imported."""
    found: set[str] = set()
    for file in flow.files:
        names = file.names
        roots = {root(name) for name in names.imported if not name.startswith(".")}
        calls = [(call, names.called(call)) for call in names.all(ast.Call)]
        for name, packages in FRAMEWORKS.items():
            if roots & set(packages) and _trains(name, file.text, calls):
                found.add(name)
        if roots & {"transformers", "trl", "sentence_transformers"} and any(
            last(dotted) in HF_TRAINERS and root(dotted) in ("transformers", "trl")
            for _, dotted in calls
        ):
            found.add("hf-trainer")
        if (
            "fastai" not in found
            and any(call_name(call) in ("fine_tune", "fit_one_cycle") for call, _ in calls)
            and roots & {"fastai", "fastcore"}
        ):
            found.add("fastai")
    return frozenset(found)


def _trains(name: str, text: str, calls: list[tuple[ast.Call, str]]) -> bool:
    match name:
        case "fastai":
            methods = {"fit", "fine_tune", "fit_one_cycle", "fit_flat_cos", "fit_sgdr"}
            return any(call_name(call) in methods for call, _ in calls)
        case "lightning":
            made = {"Trainer", "Fabric", "LightningCLI"}
            return any(last(dotted) in made for _, dotted in calls)
        case "accelerate":
            return any(last(dotted) == "Accelerator" for _, dotted in calls)
        case "deepspeed":
            return any(dotted == "deepspeed.initialize" for _, dotted in calls)
        case "ray":
            return "ray.train" in text
        case "ignite":
            return "ignite.distributed" in text or "create_supervised_trainer" in text
        case "sb3":
            return any(call_name(call) == "learn" for call, _ in calls)
    return any(call_name(call) in ("fit", "train", "run", "boost") for call, _ in calls)


def runtimes(flow: Flow) -> frozenset[str]:
    """The libraries that join the ranks: `torch`, `rankup`, `course`, `horovod`, `deepspeed`, …"""
    found: set[str] = set()
    for file in flow.files:
        names = file.names
        for call in names.all(ast.Call):
            dotted, name = names.called(call), call_name(call)
            if name == "init_process_group" or dotted.endswith("distributed.init_device_mesh"):
                found.add("torch")
            elif dotted in ("rankup.setup", "rankup.parallelize"):
                found.add("rankup")
            elif dotted == "distributed_utils.setup":
                found.add("course")
            elif dotted.startswith("horovod.") and name == "init":
                found.add("horovod")
            elif dotted in ("deepspeed.initialize", "deepspeed.init_distributed"):
                found.add("deepspeed")
            elif name == "Accelerator" and root(dotted) == "accelerate":
                found.add("accelerate")
            elif dotted.startswith("idist.") or dotted == "ignite.distributed.Parallel":
                found.add("ignite")
            elif name == "distrib_ctx":
                found.add("fastai")
    return frozenset(found)
