"""What must not, or need not, be made data-parallel by a rewrite, and why."""

from __future__ import annotations

import ast
import re

from ...script.flow import Flow, argument, call_name, given, literal
from ...script.loops import is_backward
from ...script.names import Function
from ...script.source import File
from ...script.torch_names import ENVIRONMENTS, LOADERS
from ..rules.similar import coupled
from .expressions import targets_of, unpacked, words
from .script import ForNode, Script, Where
from .training import Loop, Training

_GRAPHS = {"torch_geometric", "dgl"}
_CONTRASTIVE = (
    "a contrastive loss compares the samples of a batch with each other; on a part of "
    "the batch each rank would see fewer negatives, another objective. Gather the "
    "embeddings first (torch.distributed.nn.functional.all_gather), then port"
)
_STREAM = (
    "has no positions by which rankup.shard could cut its batches: take a data set with "
    "`__len__` and `__getitem__`, or let it give every world_size-th item from the rank on by hand"
)
# What a person does where one file starts and another one trains.
TWO_FILES = (
    "port changes one file alone. By hand: rankup.setup() before all else in the script that is "
    "started, model = rankup.wrap(model) where the model is made, and `for … in "
    "rankup.shard(loader):` where it is trained"
)
_CHAIN = 20
_TORCHTEXT = {"BucketIterator", "BPTTIterator"}
_PIPES = {"IterableWrapper", "WebDataset", "WebLoader", "DataPipeline"}
_LAUNCHED = {
    "transformers.Trainer": "a Hugging Face Trainer",
    "transformers.Seq2SeqTrainer": "a Hugging Face Trainer",
    "trl.SFTTrainer": "a Hugging Face Trainer (trl)",
    "accelerate.Accelerator": "accelerate",
}
_LIGHTNING = {"lightning", "pytorch_lightning", "lightning_fabric"}


def framework(script: Script) -> str | None:
    """What a script needs instead of a rewrite, where a framework does the parallel part."""
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
    """Whether a fastai `Learner` trains."""
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


def unfit(training: Training) -> tuple[int, str] | None:
    """The line and the reason, where the training itself does not split over ranks."""
    script = training.script
    for call in script.all(ast.Call):
        name = script.name(call.func)
        if name.endswith(".LBFGS"):
            return script.line(call), (
                "LBFGS searches along lines by evaluating its closure a number of times that "
                "depends on the values: take another optimizer, or port it by hand"
            )
    environments = script.modules & ENVIRONMENTS
    if environments and not training.loader_calls:
        line = next((script.line(c) for c in script.all(ast.Call) if _steps(script, c)), 1)
        return line, (
            f"reinforcement learning with {sorted(environments)[0]}: the data come out of an "
            "environment, which needs one per rank with its own seed and a decision about the "
            "replay buffer; this is no change of loaders"
        )
    found = _contrastive(training) or _unsharded(training) or _state_of_a_batch(training)
    if found is not None:
        return found
    if not training.loader_calls and not _loops_over_loader(training):
        graphs = script.modules & _GRAPHS
        whole = graphs or not _draws_batches(training)
        if whole:
            line = script.line((training.backwards or training.elsewhere)[0])
            if not training.backwards:
                called = script.code(training.elsewhere[0].func)
                return line, (
                    f"no DataLoader: what `{called}` trains on is made in no torch DataLoader that "
                    "this script names, and rankup.shard deals those of a torch DataLoader alone. "
                    "Give the data one"
                )
            cut = by_hand(training)
            if cut is not None:
                return cut
            what = "a full-batch graph" if graphs or "adj" in script.text else "no DataLoader"
            unknown = _batches_of(training)
            if "." in unknown or _given_by_another(training, unknown):
                return line, (
                    f"the batches come from `{unknown}`, which this file does not make; {TWO_FILES}"
                )
            if unknown:
                return line, (
                    f"no DataLoader: the batches come from `{unknown}`, and rankup.shard deals "
                    "those of a torch DataLoader alone. Give the data one"
                )
            return line, (
                f"{what}: the backward at this line sees all data at once, so there are no batches "
                "to deal over ranks. Give the data a DataLoader, or draw batches in a function"
            )
    return None


def _loops_over_loader(training: Training) -> bool:
    return any(
        loop.source is not None and training.loader_of(loop.source) is not None
        for loop in training.loops
    )


def _batches_of(training: Training) -> str:
    """What the innermost loop around the training goes over, if that may be batches."""
    for loop in training.loops:
        if loop.trains and (written := training.script.dotted(loop.source)):
            return written
    return ""


def _given_by_another(training: Training, name: str) -> bool:
    """True of a parameter of a function that trains and that this file calls nowhere."""
    script = training.script
    return any(
        isinstance(scope := script.scope(loop.node), Function)
        and name in script.parameters(scope)
        and not script.calls_of.get(scope)
        for loop in training.loops
        if loop.trains and training.script.dotted(loop.source) == name
    )


def trained_in(script: Script) -> str:
    """The file of the repository that trains, and what to do; empty where there is none."""
    for file in script.whole_flow.files:
        for call in file.names.all(ast.Call):
            if is_backward(file, call):
                place = f"{file.path.name}:{file.line(call)[0]}"
                return f"It trains in {place}; {TWO_FILES}"
    return ""


def _draws_batches(training: Training) -> bool:
    script = training.script
    return any(
        script.name(call.func) in ("torch.randint", "numpy.random.randint")
        and isinstance(script.scope(call), Function)
        for call in script.all(ast.Call)
    )


def _steps(script: Script, call: ast.Call) -> bool:
    return re.search(r"env(s|ironment)?\.step$", script.code(call.func)) is not None


def _contrastive(training: Training) -> tuple[int, str] | None:
    """Where samples of a batch are compared with each other."""
    for node, elsewhere in coupled(training):
        return training.script.line(node), _CONTRASTIVE + (f" ({elsewhere})" if elsewhere else "")
    return None


def _unsharded(training: Training) -> tuple[int, str] | None:
    """Where a loop that trains goes over what `rankup.shard` cannot cut: no loader, or a stream."""
    script = training.script
    flow = script.whole_flow
    for loop in training.loops:
        if not loop.trains or loop.source is None:
            continue
        for origin in flow.origins(script.file, loop.source):
            if not isinstance(origin.node, ast.Call):
                continue
            reason = _other_than_a_loader(flow, origin.file, origin.node)
            if reason is None:
                continue
            line = script.line(loop.node)
            if origin.file is script.file:
                return script.line(origin.node), reason
            place = f"{origin.file.path.name}:{origin.file.line(origin.node)[0]}"
            return line, f"{reason} ({place})"
    return None


def _other_than_a_loader(flow: Flow, file: File, call: ast.Call) -> str | None:
    """Why the batches of what a call makes cannot be sharded; None where they may be."""
    reason = _maker(flow, file, call)
    if reason is not None or call_name(call) not in LOADERS:
        return reason
    data = argument(call, "dataset", 0)
    for origin in flow.origins(file, data) if data is not None else ():
        if not isinstance(origin.node, ast.Call):
            continue
        owner = flow.class_of(origin.file, origin.node)
        bases = {one.rpartition(".")[2] for one in flow.bases(*owner)} if owner else set()
        streams = bool(bases & {"IterableDataset", "IterDataPipe"})
        reason = _maker(flow, origin.file, origin.node)
        streaming = literal(argument(origin.node, "streaming")) is True
        if streams or streaming or reason is not None:
            return reason or f"a data set that is a stream {_STREAM}"
    batches = argument(call, "batch_sampler")
    owner = flow.class_of(file, batches) if batches is not None else None
    if owner is not None:
        return (
            f"{owner[1].name} chooses what is together in a batch, so that a part of one may mean "
            "something else, as with support and query of an episode. Where batches are only "
            "groups of samples, give the DataLoader a `sampler` and `batch_size` instead"
        )
    return None


def _maker(flow: Flow, file: File, call: ast.Call) -> str | None:
    """Why a library's batches cannot be sharded: `IterableWrapper(x).map(f).batch(8)`."""
    chain: ast.AST = call
    for _ in range(_CHAIN):
        dotted = file.names.dotted(chain)
        last = dotted.rpartition(".")[2]
        if dotted.startswith("torchtext.") or last in _TORCHTEXT:
            return (
                "a torchtext iterator makes the batches itself, and rankup.shard cuts those of a "
                "torch DataLoader: make one with a collate_fn that pads, and with a sampler by "
                "length where that is wanted"
            )
        if dotted.startswith("torchdata.") or last in _PIPES:
            return f"a pipe {_STREAM}"
        if isinstance(chain, ast.Call):
            chain = chain.func
        elif isinstance(chain, ast.Attribute):
            chain = chain.value
        else:
            made = flow.origins(file, chain)
            if not made or not isinstance(made[0].node, ast.Call):
                return None
            file, chain = made[0].file, made[0].node
    return None


def by_hand(training: Training) -> tuple[int, str] | None:
    """The line of such a loop, and what stands in the way there; None where there is none."""
    for loop in training.loops:
        if loop.trains and isinstance(loop.node, ForNode) and _cuts(training, loop.node):
            kept = _kept(training, loop)
            what = "no DataLoader: this loop cuts its batches out of the data by hand, "
            if kept:
                what += (
                    f"and `{kept}` goes on from each of them to the next. A rank would need the "
                    "same columns of all of them: cut the data for it first "
                    "(`data[:, rank::world_size]`), and evaluate likewise"
                )
            else:
                what += (
                    "and rankup.shard deals those of a torch DataLoader alone. Give the data one, "
                    "or draw the batches in a function"
                )
            return training.script.line(loop.node), what
    return None


def _cuts(training: Training, node: ForNode) -> bool:
    """Whether the counter of a loop over numbers says where to cut, here or one call away."""
    script = training.script
    over = unpacked(script, node.iter)
    if not isinstance(over, ast.Call) or script.name(over.func) not in ("range", "numpy.arange"):
        return False
    counters = words(node.target)
    if _sliced(training, node.body, counters):
        return True
    for call in script.inside(node.body, ast.Call, deep=False):
        function = script.called(call)
        if function is None:
            continue
        given = {
            name
            for name in script.parameters(function)
            if isinstance(value := script.given(function, name, call), ast.Name)
            and value.id in counters
        }
        if given and _sliced(training, function, given):
            return True
    return False


def _sliced(training: Training, where: Where, names: set[str]) -> bool:
    script = training.script
    return any(names & words(part) for part in script.inside(where, ast.Slice))


def _state_of_a_batch(training: Training) -> tuple[int, str] | None:
    """Where a state that goes from batch to batch is made for the size of the whole batch."""
    script = training.script
    sizes = {
        script.code(size)
        for call in training.loader_calls
        if (size := argument(call, "batch_size", 1)) is not None
    }
    for loop in training.loops:
        kept = _kept(training, loop) if loop.trains and training.sources(loop) else ""
        for _, value in training.script.assigned(kept, script.scope(loop.node)) if kept else ():
            if not isinstance(value, ast.Call) or loop.node in script.above(value):
                continue
            if any(script.code(one) in sizes for arg in given(value) for one in _each(arg)):
                return script.line(value), (
                    f"`{kept}` goes from each batch to the next and is made for the whole batch, "
                    "of which a rank has a part: make it in the loop, of the size of its batch "
                    f"(`{script.code(value.func)}(x.size(0))`), or port it by hand"
                )
    return None


def _each(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List) else [node]


def _kept(training: Training, loop: Loop) -> str:
    """A name that the model is given and gives back, such as the state of a recurrent one."""
    script = training.script
    for assign in script.inside(loop.node.body, ast.Assign, deep=False):
        if not isinstance(assign.value, ast.Call) or len(given(assign.value)) < 2:
            continue
        passed = {script.dotted(arg) for arg in given(assign.value)}
        for target in assign.targets:
            for one in targets_of(target):
                if isinstance(one, ast.Name) and one.id in passed:
                    return one.id
    return ""
