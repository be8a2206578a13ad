"""What differs in a job of many ranks: no network, nobody stops alone; what cannot be dealt."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...script.flow import argument, call_name, first_argument
from ...script.names import walk
from ...script.roles import Script
from ...script.source import File
from ...script.torch_names import STEP_SCHEDULES, last, root, words
from .facts import loops_in, string, true
from .rule import Hit, Rule

_DOWNLOADS = words(
    "untar_data urlretrieve load_state_dict_from_url download_url snapshot_download "
    "hf_hub_download download_and_extract_archive"
)
_HUB_ROOTS = ("transformers", "datasets", "diffusers", "huggingface_hub", "torchvision", "timm")
_ENVIRONMENTS = ("gym", "gymnasium", "stable_baselines3", "pettingzoo", "procgen", "envpool")
_FIRST = re.compile(r"rank0_first|main_process_first|rank_zero_first|on_login_node|local_rank")


def downloads(file: File, script: Script) -> Iterator[Hit]:
    """RK177: compute nodes have no network."""
    for call in file.names.all(ast.Call):
        what = _fetched(file, call)
        if what and not _ahead(file, call):
            yield Hit(
                call,
                f"{what} in the job: compute nodes have no network, and ranks would race",
                "`rankup fetch SCRIPT` on the login node; rankup.rank0_first(…) for the rest",
            )


def _fetched(file: File, call: ast.Call) -> str:
    """What a call brings from the network, if it may."""
    dotted, name = file.names.called(call), call_name(call)
    if name in _DOWNLOADS:
        return f"{name} downloads"
    if true(argument(call, "download")):
        return "download=True"
    if dotted in ("torch.hub.load", "torch.hub.download_url_to_file"):
        return "torch.hub downloads"
    if root(dotted) not in _HUB_ROOTS:
        return ""
    if true(argument(call, "local_files_only")):
        return ""
    if name in ("from_pretrained", "load_dataset", "load_metric"):
        given = first_argument(call)
        value = string(given)
        if value is None or value.startswith((".", "/", "~")) or value in ("json", "csv", "text"):
            return ""
        return f"{name}({value!r}) downloads"
    if true(argument(call, "pretrained")):
        return "pretrained=True downloads"
    weights = argument(call, "weights")
    if weights is not None and file.code(weights) != "None":
        return "weights= downloads"
    return ""


def _ahead(file: File, call: ast.Call) -> bool:
    """Whether rank 0 goes first, or only a login node comes here."""
    for up in (call, *file.names.up(call)):
        if isinstance(up, ast.With):
            text = " ".join(file.code(one.context_expr) for one in up.items)
        elif isinstance(up, ast.If):
            text = file.code(up.test)
        elif isinstance(up, ast.Call):
            text = file.code(up.func)
        else:
            continue
        if _FIRST.search(text):
            return True
    return False


def schedule_length(file: File, script: Script) -> Iterator[Hit]:
    """RK179: a schedule for a number of steps that is counted by hand."""
    for call in file.names.all(ast.Call):
        if call_name(call) not in STEP_SCHEDULES and "schedule" not in call_name(call):
            continue
        for name in ("num_training_steps", "total_steps", "t_total"):
            given = argument(call, name)
            if given is None:
                continue
            texts = [file.code(given)]
            texts += [one.file.code(one.node) for one in script.flow.origins(file, given)]
            if any(re.search(r"len\(.*\)\s*//?.*batch", one) for one in texts) and not any(
                "world" in one for one in texts
            ):
                yield Hit(
                    given,
                    "steps counted from the data set and the batch size: with a batch per GPU "
                    "there are fewer",
                    "count len(loader) after the data are dealt",
                )
                break


def stops_alone(file: File, script: Script) -> Iterator[Hit]:
    """RK181: one rank leaves, and the others wait for it."""
    for node in file.names.all(ast.Try):
        if not any(
            isinstance(one, ast.Call) and call_name(one) == "backward" for one in walk(*node.body)
        ):
            continue
        for handler in node.handlers:
            if _goes_on(file, handler):
                yield Hit(
                    handler,
                    "catches what one rank fails with, and goes on: the others wait for its part",
                    "raise again, so that the job ends",
                )
    if script.distributed and any("all_reduce" in one.text for one in script.files):
        return
    for loop in loops_in(file, script.train_loops):
        for test in walk(loop.node):
            if isinstance(test, ast.If) and _is_nan(file, test.test) and _leaves(test.body):
                yield Hit(
                    test,
                    "leaves the step by this rank's own loss: the others wait for its part",
                    "let all ranks decide together: rankup.all_reduce(bad, op='max')",
                )


def _goes_on(file: File, handler: ast.ExceptHandler) -> bool:
    caught = file.code(handler.type) if handler.type is not None else "everything"
    if caught in ("StopIteration", "ImportError", "KeyError", "ValueError", "FileNotFoundError"):
        return False
    return not any(
        isinstance(one, ast.Raise)
        or (isinstance(one, ast.Call) and call_name(one) in ("exit", "_exit", "abort"))
        for one in walk(*handler.body)
    )


def _is_nan(file: File, test: ast.expr) -> bool:
    return re.search(r"isnan\(|isfinite\(|isinf\(", file.code(test)) is not None


def _leaves(body: list[ast.stmt]) -> bool:
    return any(
        isinstance(one, (ast.Break, ast.Continue, ast.Return))
        or (isinstance(one, ast.Call) and call_name(one) in ("exit", "_exit"))
        for one in walk(*body)
    )


def not_data_parallel(file: File, script: Script) -> Iterator[Hit]:
    """RK191: training that is not over batches of independent samples."""
    for optimizer in script.optimizers:
        if optimizer.file is file and last(optimizer.dotted) == "LBFGS":
            yield Hit(
                optimizer.node,
                "LBFGS evaluates the whole loss several times per step: ranks would part",
                "another optimizer, or one GPU",
            )
    if file is not script.file:
        return
    for call in file.names.all(ast.Call):
        dotted = file.names.called(call)
        if root(dotted) in _ENVIRONMENTS and call_name(call).startswith("make"):
            yield Hit(
                call,
                "reinforcement learning in one environment: there are no batches to deal",
                "run one environment per rank by hand, with a seed of its own",
            )
            return
    for loop in loops_in(file, script.train_loops):
        if not loop.loaders and re.search(r"\[[^\]]*train_mask\]|edge_index", file.code(loop.node)):
            yield Hit(
                loop.node,
                "trains on the whole graph at once: there are no batches to deal",
                "sample neighbours into batches (NeighborLoader) first",
            )


RULES = (
    Rule("RK177", "download-in-job", "warning", downloads, frameworks=True),
    Rule("RK179", "schedule-length", "warning", schedule_length),
    Rule("RK181", "one-rank-stops", "error", stops_alone),
    Rule("RK191", "not-data-parallel", "error", not_data_parallel, frameworks=True),
)
