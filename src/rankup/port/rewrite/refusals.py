"""What needs no rewrite, or another one first, and why."""

from __future__ import annotations

import ast

from ...script.loops import is_backward
from ..rules.unfit import TWO_FILES
from .script import Script

_LAUNCHED = {
    "transformers.Trainer": "a Hugging Face Trainer",
    "transformers.Seq2SeqTrainer": "a Hugging Face Trainer",
    "trl.SFTTrainer": "a Hugging Face Trainer (trl)",
    "accelerate.Accelerator": "accelerate",
}
_LIGHTNING = {"lightning", "pytorch_lightning", "lightning_fabric"}


def framework(script: Script) -> str | None:
    """The reason why a script needs no rewrite: a framework joins its ranks."""
    for call in script.all(ast.Call):
        name = script.name(call.func)
        if name in _LAUNCHED:
            return (
                f"the script uses {_LAUNCHED[name]}, which joins the ranks that torchrun starts by "
                "itself: start it as it is with `rankup run`; its batch sizes count per GPU"
            )
        if name.split(".")[0] in _LIGHTNING and name.split(".")[-1] in ("Trainer", "Fabric"):
            return (
                "the script uses Lightning, which needs launch settings alone: "
                f'`{name.split(".")[-1]}(devices="auto", num_nodes=int(os.environ.get('
                '"SLURM_JOB_NUM_NODES", 1)), strategy="ddp")`, started with `rankup run`'
            )
    return None


def fastai(script: Script) -> bool:
    """True of a script that imports fastai."""
    return bool(script.modules & {"fastai", "fastbook"})


def distributed(script: Script) -> tuple[int, str] | None:
    """The line and the reason, where a script is distributed already by another's hand."""
    for call in script.all(ast.Call):
        name = script.name(call.func)
        last = name.split(".")[-1]
        if last in ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard") or (
            last == "init_process_group" or last == "DistributedSampler"
        ):
            return script.line(call), f"{last}(…) makes the script distributed already"
        if name in ("deepspeed.initialize", "horovod.torch.init", "ray.train.torch.prepare_model"):
            return script.line(call), f"{name}(…) makes the script distributed already"
    return None


def own_name(script: Script) -> int | None:
    """The line where a script gives the name `rankup` to something else."""
    lines = [
        script.line(one.target)
        for scope in script.file.names.scopes
        for one in script.file.names.members(scope).get("rankup", ())
        if not (
            one.kind == "import" and isinstance(one.node, ast.Import) and one.dotted == "rankup"
        )
    ]
    return min(lines, default=None)


def trained_in(script: Script) -> str:
    """The file of the repository that trains, and what to do; empty where there is none."""
    for file in script.flow.files:
        for call in file.names.all(ast.Call):
            if is_backward(call):
                return f"It trains in {file.short_place(call)}; {TWO_FILES}"
    return ""
