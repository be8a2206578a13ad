"""Trainings that are not over batches of independent samples, which ranks could share."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...script.flow import Flow, Origin, argument, call_name, given, is_none, method_calls
from ...script.models import given_later
from ...script.names import Function, elements, mentioned, stored, targets_of, walk
from ...script.roles import Loop, LoopNode, Role, Script
from ...script.source import File
from ...script.torch_names import ENVIRONMENTS, LOADERS, last
from ..match import Pattern
from ..rewrite.script import ForNode
from ..rewrite.training import Training, training_in
from .facts import single, true
from .rule import Hit, rule

_GRAPHS = {"torch_geometric", "dgl"}
_STREAM = "has no positions by which rankup.shard could cut its batches"
_MAP_STYLE = (
    "take a data set with `__len__` and a `__getitem__` that goes by its index, or pack it, "
    "`rankup pack`: rankup.data.PackedDataset is one"
)
_LOADER = "give the data a torch DataLoader"
# What a person does where port cannot see what it needs.
BY_HAND = (
    "rankup.setup() before all else in the script that is started, model = rankup.wrap(model) "
    "where the model is made, and `for … in rankup.shard(loader):` where it is trained"
)
_NO_MODEL = (
    "this optimizer trains a tensor that no model holds, and ranks exchange models' gradients"
)
_HOLD = "make it the model's: `model.w = torch.nn.Parameter(…)`, and give model.parameters()"
_CLOSURES = Pattern("torch.optim.LBFGS()", "torch.optim.lbfgs.LBFGS()")
_LISTS = 3  # lists in lists
_CHAIN = 20
_TORCHTEXT = {"BucketIterator", "BPTTIterator"}
_STREAMS = {"IterableDataset", "IterDataPipe"}
_READS_ON = {"next", "__next__", "readline", "popleft"}
_PIPES = {"IterableWrapper", "WebDataset", "WebLoader", "DataPipeline"}
Reason = tuple[str, str]  # the message and what to do


@rule("RK191", "error", "cannot be data-parallel as it stands", frameworks=True)
def not_data_parallel(file: File, script: Script) -> Iterator[Hit]:
    """LBFGS; reinforcement learning in an environment; batches that come from no torch DataLoader:
    a graph, a stream, a pipe, a torchtext iterator, slices cut by hand; a batch sampler that
    chooses what is together; a state made for the size of the whole batch; a batch that is None;
    a backward for each sample of a batch; an optimizer of a tensor that no model holds.

    There are no batches of independent samples that ranks could share.

    ```diff
    -optimizer = torch.optim.LBFGS(model.parameters())
    +optimizer = torch.optim.AdamW(model.parameters())
    ```

    Refuses, with this reason.
    """
    for match in _CLOSURES.find(file):
        yield Hit(
            match.call,
            "LBFGS evaluates its closure a number of times that depends on the values",
            "take another optimizer, or port it by hand",
        )
        return
    if file not in script.to_port or not single(script):
        return
    for node in _loose(script, file):
        yield Hit(node, _NO_MODEL, _HOLD)
        return
    training = training_in(script, file)
    if training.backwards:
        for find in (_environment, _unsharded, _state_of_a_batch, _none, _by_samples, _no_loader):
            hit = find(training)
            if hit is not None:
                yield hit
                return


def _loose(script: Script, file: File) -> Iterator[ast.AST]:
    """The names in a file by which an optimizer is given a tensor that is no model's."""
    flow = script.flow
    waiting: list[tuple[File, ast.AST, int]] = [
        (one.file, part, 0)
        for one in script.optimizers
        for part in given(one.node)[:1]  # type: ignore[arg-type]
    ]
    waiting += [(where, part, 0) for where, call in given_later(flow) for part in given(call)]
    while waiting:
        where, node, depth = waiting.pop(0)
        for part in walk(node):
            if not isinstance(part, ast.Name | ast.Attribute):
                continue
            for one in flow.origins(where, part):
                if where is file and _is_loose(script, one) and not _held(where, part):
                    yield part
                if depth < _LISTS and isinstance(one.node, ast.List | ast.Tuple | ast.Dict):
                    waiting.append((one.file, one.node, depth + 1))
            if depth < _LISTS:
                waiting += [(where, one, depth + 1) for one in _more(where, part)]


def _is_loose(script: Script, made: Origin) -> bool:
    """True of `nn.Parameter(…)` and `torch.zeros(2, requires_grad=True)` outside of a model."""
    if not isinstance(made.node, ast.Call):
        return False
    dotted, around = made.file.names.called(made.node), (call for _, call in made.through)
    grows = true(argument(made.node, "requires_grad")) or any(
        call_name(one) == "requires_grad_" for one in around
    )
    parameter = dotted in ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
    if not parameter and not (grows and dotted.startswith("torch.") and "nn" not in dotted):
        return False
    owner = made.file.names.enclosing(made.node, ast.ClassDef)
    return not (isinstance(owner, ast.ClassDef) and script.flow.member(made.file, owner, "forward"))


def _held(file: File, node: ast.expr) -> bool:
    """True of what is given to a model as well: `model.w = w`, `ParameterList([w])`."""
    code = file.code(node)
    put = [
        part
        for call in file.names.all(ast.Call)
        if call_name(call) in ("register_parameter", "ParameterList", "ParameterDict", "setattr")
        for part in walk(*given(call))
    ]
    put += [
        one.value
        for one in file.names.all(ast.Assign)
        if any(isinstance(target, ast.Attribute) for target in one.targets)
    ]
    return any(isinstance(one, ast.Name) and one.id == code for one in put)


def _more(file: File, name: ast.expr) -> Iterator[ast.expr]:
    """Return what is put into a list: by `append`, `extend` and `+=`."""
    code = file.code(name)
    for call, owner in method_calls(file.names.all(ast.Call), "append", "extend"):
        if file.code(owner) == code:
            yield from given(call)
    for one in file.names.all(ast.AugAssign):
        if file.code(one.target) == code and isinstance(one.op, ast.Add):
            yield one.value


def _environment(training: Training) -> Hit | None:
    script = training.script
    environments = script.modules & ENVIRONMENTS
    if not environments or training.loader_calls:
        return None
    calls = script.all(ast.Call)
    steps = [one for one in calls if re.search(r"env(s|ironment)?\.step$", script.code(one.func))]
    return Hit(
        steps[0] if steps else script.tree.body[0],
        f"reinforcement learning with {sorted(environments)[0]}: there are no batches to share",
        "run an environment per rank with a seed of its own, and decide about the replay buffer",
    )


def _none(training: Training) -> Hit | None:
    """`if batch is None: continue`: of one rank's part of a batch, and not of another's."""
    for loop in training.loops:
        target = loop.node.target if loop.trains and isinstance(loop.node, ForNode) else None
        if isinstance(target, ast.Tuple) and loop.index is not None and len(target.elts) == 2:
            target = target.elts[1]
        for one in training.script.inside(loop.node.body, ast.Compare, deep=False):
            same = isinstance(target, ast.Name) and training.script.dotted(one.left) == target.id
            if same and is_none(one.comparators[0]):
                return Hit(
                    one,
                    "a batch may be None here: of one rank's part of it, and not of another's",
                    "leave samples out in the data set, before they are put together",
                )
    return None


def _by_samples(training: Training) -> Hit | None:
    """A backward in `for i in range(len(x)):`: ranks have different numbers of samples."""
    script = training.script
    for loop in training.loops:
        if not loop.trains or not isinstance(loop.node, ForNode):
            continue
        counts = {
            f"range({form.format(name)})"
            for name in stored(loop.node.target)
            for form in ("len({})", "{}.size(0)", "{}.shape[0]")
        }
        for inner in script.inside(loop.node.body, ast.For, deep=False):
            if script.code(inner.iter) in counts and training.trains(inner.body):
                return Hit(
                    inner,
                    "a backward for each sample of a batch: ranks have different numbers of them",
                    "one backward for the batch, or a loader with batch_size=1",
                )
    return None


def _no_loader(training: Training) -> Hit | None:
    """Batches that come from no DataLoader, and are not drawn by a function either."""
    script = training.script
    graphs = script.modules & _GRAPHS
    over = [one.source for one in training.loops if one.source is not None]
    loops = any(training.loader_of(one) is not None for one in over)
    if training.loader_calls or loops or _steps_alone(training):
        return None
    if _draws_batches(training) and not graphs:
        return None
    node = training.backwards[0]
    for loop in training.loops:
        unknown = script.dotted(loop.source) if loop.trains else ""
        if unknown:
            return Hit(
                node,
                f"the batches come from `{unknown}`, which is not seen to be a torch DataLoader, "
                "and rankup.shard takes those alone",
                f"{_LOADER}; where another script gives it, port that. By hand: {BY_HAND}",
            )
    return Hit(
        node,
        "no DataLoader: the backward at this line sees all data at once (a whole graph), or "
        "batches that are cut by hand",
        f"{_LOADER}, or draw batches in a function by torch.randint; where a state goes on from "
        "batch to batch give each rank columns of its own first, `data[:, rank::world_size]`",
    )


def _steps_alone(training: Training) -> bool:
    """True of a file that has steps alone: the loops that make them stand in other files."""
    script = training.script
    functions = {script.scope(one) for one in training.backwards}
    loops = any(isinstance(up, LoopNode) for one in training.backwards for up in script.above(one))
    return not loops and all(
        isinstance(one, Function)
        and any(
            isinstance(up, LoopNode)
            for where, call in script.callers(one)
            for up in where.above(call)
            if where is not script
        )
        for one in functions
    )


def _draws_batches(training: Training) -> bool:
    script = training.script
    return any(
        script.name(call.func) in ("torch.randint", "numpy.random.randint")
        and isinstance(script.scope(call), Function)
        for call in script.all(ast.Call)
    )


def _unsharded(training: Training) -> Hit | None:
    """A loop that trains over what `rankup.shard` cannot cut: no loader, or a stream."""
    script = training.script
    for loop in training.loops:
        for origin in script.flow.origins(script.file, loop.source) if loop.source else ():
            if not loop.trains or not isinstance(origin.node, ast.Call):
                continue
            reason = _other_than_a_loader(script.flow, origin.file, origin.node)
            if reason is None:
                continue
            if origin.file is script.file:
                return Hit(origin.node, *reason)
            place = origin.file.short_place(origin.node)
            return Hit(loop.node, f"{reason[0]} ({place})", reason[1])
    return None


def _other_than_a_loader(flow: Flow, file: File, call: ast.Call) -> Reason | None:
    """Return why the batches that a call makes cannot be sharded; None where they may be."""
    reason = _maker(flow, file, call)
    if reason is not None or call_name(call) not in LOADERS:
        return reason
    for origin in data_of(flow, file, call):
        reason = _maker(flow, origin.file, origin.node)  # type: ignore[arg-type]
        if reason is not None:
            return reason
    if stream_of(flow, Origin(file, call)):
        return f"a data set that is a stream {_STREAM}", _MAP_STYLE
    batches = argument(call, "batch_sampler")
    owner = flow.class_of(file, batches) if batches is not None else None
    if owner is not None:
        return (
            f"{owner[1].name} chooses what is together in a batch, as an episode's is",
            "where batches are only groups, give the DataLoader a `sampler` and `batch_size`",
        )
    return None


def stream_of(flow: Flow, loader: Role | Origin) -> str:
    """The name of the stream that a loader reads; empty where it reads none."""
    for origin in data_of(flow, loader.file, loader.node):
        owner = flow.class_of(origin.file, origin.node)
        streams = owner and any(last(base) in _STREAMS for base in flow.bases(*owner))
        if owner and (streams or _reads_on(flow, *owner)):
            return owner[1].name
        if true(argument(origin.node, "streaming")):  # type: ignore[arg-type]
            return "a streaming data set"
    return ""


def _reads_on(flow: Flow, file: File, owner: ast.ClassDef) -> bool:
    """True of a data set that gives what comes next in a file, whichever sample it is asked for."""
    found = flow.member(file, owner, "__getitem__")
    if found is None or len(found[1].args.args) < 2:
        return False
    index, body = found[1].args.args[1].arg, walk(*found[1].body)
    called = {call_name(one) for one in body if isinstance(one, ast.Call)}
    return index not in mentioned(*found[1].body) and bool(called & _READS_ON)


def data_of(flow: Flow, file: File, loader: ast.AST) -> list[Origin]:
    """The calls that make the data set of a loader."""
    data = argument(loader, "dataset", 0) if isinstance(loader, ast.Call) else None
    made = flow.origins(file, data) if data is not None else ()
    return [one for one in made if isinstance(one.node, ast.Call)]


def _maker(flow: Flow, file: File, call: ast.Call) -> Reason | None:
    """Return why a library's batches cannot be sharded: `IterableWrapper(x).map(f).batch(8)`."""
    chain: ast.AST = call
    for _ in range(_CHAIN):
        dotted = file.names.dotted(chain)
        if dotted.startswith("torchtext.") or last(dotted) in _TORCHTEXT:
            return (
                "a torchtext iterator makes the batches, and rankup.shard cuts a DataLoader's",
                "make one with a collate_fn that pads, maybe with a sampler by length",
            )
        if dotted.startswith("torchdata.") or last(dotted) in _PIPES:
            return f"a pipe {_STREAM}", _MAP_STYLE
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


def _state_of_a_batch(training: Training) -> Hit | None:
    """A state that goes from batch to batch and is made for the size of the whole batch."""
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
            if any(script.code(one) in sizes for arg in given(value) for one in elements(arg)):
                return Hit(
                    value,
                    f"`{kept}` goes from batch to batch and is made for the whole batch's size",
                    f"make it in the loop: `{script.code(value.func)}(x.size(0))`, or port by hand",
                )
    return None


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
