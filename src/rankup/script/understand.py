"""From a script to its roles: loops first, then what goes through them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .effects import find_sites
from .flow import Flow, call_name
from .loops import find_loops, is_backward
from .models import find_models, find_optimizers, find_schedulers
from .names import Function, children
from .roles import Script
from .source import File, imports_in, local_modules
from .torch_names import FRAMEWORKS, HF_TRAINERS, last, root


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


def files_to_port(script: Script) -> tuple[File, ...]:
    """The script, the modules that train for it and some others, and those that import these."""
    others = script.files[1:]
    found = set(script.also)
    for file in others:
        backwards = [call for call in file.names.all(ast.Call) if is_backward(call)]
        if any(script.comes_to(file, call) for call in backwards):
            found.add(file)
        if file.path.stem != "__init__" and imports_of(script, file, script.file):
            found.add(file)  # what it takes from the script has to come from the port
    if not found:
        return (script.file,)
    imports = {file: set(script.flow.modules_named(file)) for file in script.files}
    while more := {one for one in others if imports[one] & found} - found:
        found |= more
    named = {script.file}  # a package that only runs on the way to its module stays as it is
    while more := {other for one in named for other in imports[one]} - named:
        named |= more
    return (script.file, *(one for one in others if one in found & named))


def imports_of(script: Script, file: File, module: File) -> list[ast.stmt]:
    """The imports of a file that name a module, where the script comes to them and they run."""
    return [
        node
        for node in imports_in(file)
        if module in script.flow.modules_named_by(file, node)
        and script.comes_to(file, node)
        and not any(
            isinstance(up, ast.If) and "TYPE_CHECKING" in file.code(up.test)
            for up in file.names.up(node)
        )
    ]


def find_reached(flow: Flow) -> set[ast.AST]:
    """The functions, classes and methods that a script comes to."""
    found: set[ast.AST] = set()
    waiting: list[tuple[File, ast.AST]] = [(file, file.tree) for file in flow.files]
    while waiting:
        file, node = waiting.pop()
        for one in _run_with(file, node, file is flow.files[0]):
            named = isinstance(one, ast.Name) or (
                isinstance(one, ast.Attribute) and file.names.dotted(one)
            )
            definition = flow.definition(file, one) if named else None
            if definition is None or definition[1] in found:
                continue
            where, body = definition
            found.add(body)
            if isinstance(body, ast.ClassDef):  # an instance may be asked for all of it
                for at, owner in flow.family(where, body):
                    found |= set(owner.body)
                    waiting += [(at, method) for method in owner.body]
            else:
                waiting.append((where, body))
    return found


def _run_with(file: File, node: ast.AST, script: bool) -> Iterator[ast.AST]:
    """The nodes that run with a module or a function, without the bodies of functions in it.

    Of a module that is imported not what it does as a script.
    """
    stack = list(children(node))
    while stack:
        one = stack.pop()
        if isinstance(one, Function | ast.ClassDef):
            stack += one.decorator_list
            stack += one.bases if isinstance(one, ast.ClassDef) else []
            continue
        if not script and file.guards(one):
            continue
        yield one
        stack += children(one)
