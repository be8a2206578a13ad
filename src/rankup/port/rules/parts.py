"""Values of a rank's part of a batch that stay so: `check` and `port` say it at their line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...script import roles
from ...script.flow import argument, call_name, given, literal, method_calls
from ...script.names import assigned, mentioned, words_in
from ...script.roles import LoopNode
from ...script.source import File
from ...script.torch_names import words
from ..rewrite.context import Context
from ..rewrite.losses import differentiated
from ..rewrite.means import NotSeen, check_mean
from ..rewrite.script import ForNode
from ..rewrite.training import Loop, Training, training_in
from .facts import single, starred
from .rule import Hit, rule

_POOLS = words("set2set readout scatter_mean scatter_add scatter sum_nodes mean_nodes")
_REDUCES = words("mean sum std var median quantile max min amax amin item kthvalue topk norm")
_AVERAGED = "each rank's value is of its part of a batch, and ranks average them by samples"


@rule("RK120", "warning", "samples of a batch mixed with each other")
def mixed(file: File, script: roles.Script) -> Iterator[Hit]:
    """`torch.randperm` in a training step: mixup, permuted views.

    Each rank mixes the samples of its part of a batch: as random as on one GPU, but other pairs.

    ```diff
     for x, y in loader:
    -    mixed = 0.7 * x + 0.3 * x[torch.randperm(len(x))]
    +    mixed = 0.7 * x + 0.3 * x.flip(0)
         F.cross_entropy(model(mixed), y).backward()
    ```

    Says so in its report; nothing is to be done where any pairs do.
    """
    if not single(script):
        return
    training = training_in(script, file)
    steps = {
        call
        for loop in training.loops
        if loop.trains
        for call in training.script.inside(loop.node.body, ast.Call, deep=False)
    }
    reached = {training.script.called(call) for call in steps} - {None}
    for call in file.names.all(ast.Call):
        drawn = file.names.called(call) == "torch.randperm" and call.args
        if drawn and (call in steps or training.script.scope(call) in reached):
            yield Hit(
                call,
                "the samples of this rank's part of a batch are put together among themselves: as "
                "random as on one GPU, but other pairs",
                "do nothing where any pairs will do",
                comment=False,
            )


@rule("RK129", "warning", "a loss not seen to be a mean")
def no_mean(file: File, script: roles.Script) -> Iterator[Hit]:
    """A loss that is not seen to be a mean, followed through the functions and models of the
    repository; and a state that is made of each batch and is part of the next loss.

    Ranks average gradients by samples. That is exact where the loss is a mean or a sum over
    samples, not for a ratio of sums, a maximum, or the logarithm of a mean.

    ```diff
     for x, y in loader:
    -    loss = torch.log((model(x) - y).pow(2).mean())
    +    loss = F.mse_loss(model(x), y)
         loss.backward()
    ```

    Leaves a remark at the loss.
    """
    if not single(script):
        return
    training, said = training_in(script, file), set[ast.AST]()
    for call in training.backwards:
        loss = differentiated(call)
        for place, message, todo in _not_seen(training, loss) if loss is not None else ():
            own = place.script is training.script
            node = place.node if own else _line_of(training, loss, call)
            statement = training.script.statement(node)
            if statement not in said:
                said.add(statement)
                line = place.script.file.short_place(place.node)
                yield Hit(node, message if own else f"{message} ({line})", todo)
        if loss is not None and _over_nodes(training) and not said:
            yield Hit(
                _line_of(training, loss, call),
                "where this is a mean over the nodes of a batch of graphs, ranks average it by "
                "graphs",
                "rankup.count(number of nodes) before backward(), of which ranks have others",
            )
    yield from _carried(training)


def _over_nodes(training: Training) -> bool:
    """True where batches are of graphs that nothing pools."""
    script = training.script
    made = [script.name(call.func) for call in training.loader_calls]
    names = {
        call_name(call).lower() for file in script.flow.files for call in file.names.all(ast.Call)
    }
    graphs = any(one.startswith(("torch_geometric.", "dgl.")) for one in made)
    return graphs and not any("pool" in one or one in _POOLS for one in names)


def _carried(training: Training) -> Iterator[Hit]:
    """A state that is made of a batch, and that the loss of the next batch is made with."""
    script = training.script
    for loop in training.loops:
        names = list(script.inside(loop.node, ast.Name))
        stored = [one.id for one in names if isinstance(one.ctx, ast.Store)]
        once = {one for one in stored if stored.count(one) == 1}
        local = (training.derived(loop) - loop.losses) & _feeding(training, loop) & once
        for one in script.inside(loop.node.body, ast.Assign, ast.AugAssign, deep=False):
            assert isinstance(one, ast.Assign | ast.AugAssign)
            if not any(call_name(call) in _REDUCES for call in script.inside(one.value, ast.Call)):
                continue
            read = [name for name in names if script.span(name)[0] < script.span(one)[1]]
            before = {name.id for name in read if isinstance(name.ctx, ast.Load)}
            for name in sorted(mentioned(*assigned(one)) & local & before):
                yield Hit(
                    one,
                    f"`{name}` goes from batch to batch and is made of this rank's part: ranks go "
                    "apart in it",
                    "put together what it is made of (rankup.all_reduce)",
                )


def _feeding(training: Training, loop: Loop) -> set[str]:
    """The names that the losses of a loop are made of."""
    found, assigns = set(loop.losses), training.script.inside(loop.node.body, ast.stmt, deep=False)
    made = [
        (mentioned(*assigned(one)), mentioned(one.value))
        for one in assigns
        if isinstance(one, ast.Assign | ast.AugAssign)
    ]
    while more := {name for given, of in made if given & found for name in of} - found:
        found |= more
    return found


def _not_seen(training: Training, loss: ast.expr) -> Iterator[tuple[NotSeen, str, str]]:
    try:
        for together in check_mean(training, loss):
            yield (
                together,
                "the model takes a batch together, where its first dimension is the samples'",
                "each rank those of its part",
            )
    except NotSeen as place:
        yield place, "not seen to be a mean over the samples", _AVERAGED


def _line_of(training: Training, loss: ast.expr | None, call: ast.Call) -> ast.AST:
    """The statement that gives a loss its value."""
    script = training.script
    made = [
        one
        for one, _ in script.assigned(script.dotted(loss), script.scope(call))
        if script.line(one) <= script.line(call)
    ]
    return max(made, key=script.line) if made else call


@rule("RK137", "warning", "unfrozen behind the wrap")
def unfrozen(file: File, script: roles.Script) -> Iterator[Hit]:
    """`requires_grad_(True)` and `requires_grad = True` of a model, in the loop that trains it.

    The wrapper decides once which gradients are exchanged: later layers part, silently.

    ```diff
    +optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
     for epoch in range(9):
         if epoch == 3:
    -        model.requires_grad_(True)
    +        optimizer.param_groups[0]["lr"] = 0.1
         for x, y in loader:
             F.cross_entropy(model(x), y).backward()
    ```

    Leaves a remark at the place.
    """
    training = training_in(script, file)
    models = {model.name.split(".")[0] for model in training.models}
    found: list[ast.AST] = [
        one
        for one in file.names.all(ast.Assign)
        if file.code(one.targets[0]).endswith(".requires_grad") and literal(one.value) is True
    ]
    found += [
        call
        for call, _ in method_calls(file.names.all(ast.Call), "requires_grad_")
        if all(literal(one) is True for one in given(call))
    ]
    for node in found:
        above = [one for one in file.names.up(node) if isinstance(one, LoopNode)]
        named = {
            name
            for place in (node, *above[:1])
            for name in words_in(place.iter if isinstance(place, ForNode) else node)
        }
        if named & models and any(training.trains(one) for one in above):
            yield Hit(
                node,
                "what is unfrozen behind rankup.wrap exchanges no gradients",
                "let it train from the beginning, with a learning rate of 0 until now",
            )


@rule("RK173", "warning", "batches of which ranks have no equal parts")
def unequal_batches(file: File, script: roles.Script) -> Iterator[Hit]:
    """A training loader whose batches have one sample, by `batch_size=1` or by default;
    `batch_size=None`; `zip` of loaders with batches of different sizes.

    Each rank takes its part of every batch: of one sample rank 0 has all.

    ```diff
    -loader = DataLoader(data)
     for x, y in loader:
         F.cross_entropy(model(x), y).backward()
    ```

    Says so in its report.
    """
    if not single(script):
        return
    training = training_in(script, file)
    loops = [one for one in training.loops if one.trains]
    trained = {loader for loop in loops for loader in training.loaders_of(loop)}
    for call in training.loader_calls:
        size = argument(call, "batch_size", 1)
        chosen = argument(call, "batch_sampler") is not None or starred(call)
        if size is not None and file.code(size) == "None":
            yield Hit(
                call, "batch_size=None has no batches for rankup.shard to cut", "give a number"
            )
        elif call in trained and not chosen and (size is None or _one(script, size)):
            yield Hit(
                call,
                "a batch of one sample is rank 0's, and all other ranks are idle",
                "give batch_size, of which each rank takes its part, or port with --batch per-gpu",
                _unless_per_gpu,
                comment=False,
            )
    heads = [one.node.iter for one in loops if isinstance(one.node, ForNode)]
    for call in (call for head in heads for call in training.script.inside(head, ast.Call)):
        loaders = [training.loader_of(arg) for arg in given(call)]
        made = [one for one in loaders if isinstance(one, ast.Call)]
        sizes = [argument(one, "batch_size", 1) for one in made]
        if call_name(call) == "zip" and len({file.code(one) if one else "1" for one in sizes}) > 1:
            yield Hit(
                call,
                "gradients and means are weighed by this rank's part of the last loader's batch",
                "not quite those of one GPU at a short batch of another loader",
                comment=False,
            )


def _unless_per_gpu(context: Context) -> str | None:
    return "" if context.options.batch == "per-gpu" else None


def _one(script: roles.Script, size: ast.expr) -> bool:
    """Return True where a batch size is 1, or is by the default of the command line's option."""
    flow = script.flow
    origins = flow.origins(script.file, size)
    if origins and all(literal(one.node) == 1 for one in origins):
        return True
    named = {one.node.attr for one in origins if isinstance(one.node, ast.Attribute)}
    return any(
        literal(argument(call, "default")) == 1 and _option(call) in named
        for file in flow.files
        for call in file.names.all(ast.Call)
        if call_name(call) == "add_argument"
    )


def _option(call: ast.Call) -> str:
    """`batch_size` of `add_argument("-b", "--batch-size")`."""
    texts = [literal(one) for one in (*call.args, argument(call, "dest"))]
    names = [one for one in texts if isinstance(one, str) and not re.fullmatch("-[^-]", one)]
    return names[-1].lstrip("-").replace("-", "_") if names else ""
