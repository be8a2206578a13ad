"""The model behind its wrapper: forward, attributes, buffers, order."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from ...script.flow import (
    Origin,
    call_name,
    first_argument,
    given,
    literal,
    method_calls,
)
from ...script.loops import gradients_off
from ...script.models import with_parameters
from ...script.names import calls_in
from ...script.roles import LoopNode, Script
from ...script.source import File
from ...script.torch_names import words
from ..match import Pattern
from ..rewrite.context import Context
from ..rewrite.training import Training, training_in
from .facts import (
    anywhere,
    either_or,
    guard,
    wrapped,
)
from .rule import Hit, rule

# What a module has by itself, or what DistributedDataParallel hands on.
_OF_MODULES = words(
    "train eval parameters named_parameters state_dict load_state_dict zero_grad to cuda cpu half "
    "float double bfloat16 apply children named_children modules named_modules buffers "
    "named_buffers requires_grad_ training forward module register_forward_hook device "
    "register_forward_pre_hook register_full_backward_hook add_module no_sync join share_memory "
    "get_parameter get_submodule type compile set_extra_state get_extra_state "
    "register_backward_hook register_comm_hook require_backward_grad_sync"
)
_SILENT = _OF_MODULES | {"__class__", "__dict__", "config", "save_pretrained"}
_MODULE = re.compile(r"class\s+\w+\([\w., ]*\bModule\b")
_BUFFERS = re.compile(r"register_buffer|BatchNorm|torchvision|timm|transformers|hub\.load")
_WITH_BATCH_NORM = re.compile(r"(?:Lazy)?BatchNorm[123]d|resnet\d+")
_TO_CPU = Pattern("_model.cpu(memory_format=ABSENT)", "_model.to(device='cpu')")


_CLIPS = Pattern(
    "torch.nn.utils.clip_grad_norm_(parameters=_parameters)",
    "torch.nn.utils.clip_grad.clip_grad_norm_(parameters=_parameters)",
)


@rule("RK131", "error", "training past the wrapper")
def bypasses_forward(file: File, script: Script) -> Iterator[Hit]:
    """`model.module(x)` or `model.module.encode(x)` in a training step.

    The wrapper exchanges gradients that its own forward has announced. What goes past it stays each
    rank's own, without an error.

    ```diff
    -model = nn.parallel.DistributedDataParallel(Net().to(rankup.setup().device))
    +model = rankup.wrap(Net().to(rankup.setup().device))
     for x, y in rankup.shard(loader):
    -    F.cross_entropy(model.module.encode(x), y).backward()
    +    F.cross_entropy(model.encode(x), y).backward()
    ```

    Nothing: `rankup.wrap` lets custom methods through and exchanges their gradients.
    """
    if not script.distributed:
        return
    around, training = wrapped(script), training_in(script, file)
    for call in file.names.all(ast.Call):
        inner = _past_module(call.func)
        if inner is None or not _in_a_step(training, call):
            continue
        kinds = set().union(*(around.get(o.node, set()) for o in script.flow.origins(file, inner)))
        if kinds & {"ddp", "rankup"} and not _exchanged_later(script, file, call, inner):
            yield Hit(
                call,
                "computes past the wrapper: these gradients stay each rank's own, without an error",
                "call the wrapped model itself; rankup.wrap lets model.encode(x) through",
            )


def _exchanged_later(script: Script, file: File, call: ast.Call, model: ast.expr) -> bool:
    """True of `model.module(x)` where `model(x)` follows before the optimizer's step.

    Gradients add up until then, and the wrapper's forward exchanges the sums: all but the last of
    several backwards go past it to save time. Not where each round either takes the one or the
    other, and steps.
    """
    names = file.names
    around = names.function(call) or file.tree
    inner = next((up for up in names.up(call) if up is around or isinstance(up, LoopNode)), around)
    through = [
        one
        for one in calls_in(around)
        if file.code(one.func) == file.code(model)
        and _in_loops_of(file, one, call)
        and not any(gradients_off(file, up) for up in names.up(one))
    ]
    stepped = any(
        any(role.kind == "optimizer" for role in script.of(file, owner))
        and not any(isinstance(up, ast.If) for up in names.up(one) if names.inside(up, inner))
        for one, owner in method_calls(calls_in(inner), "step")
    )
    return any(
        not stepped or (names.inside(one, inner) and not either_or(file, one, call))
        for one in through
    )


def _in_loops_of(file: File, node: ast.AST, other: ast.AST) -> bool:
    """True where one place runs in all loops but the innermost of another."""
    loops = [up for up in file.names.up(other) if isinstance(up, LoopNode)]
    return not loops[1:] or loops[1] in file.names.up(node)


def _in_a_step(training: Training, node: ast.AST) -> bool:
    """True of a place that runs in a training step with gradients on."""
    script = training.script
    if any(gradients_off(script.file, up) for up in script.above(node)):
        return False
    steps = {script.scope(call) for call in training.backwards} - {script.tree}
    loops = [loop.node for loop in training.loops if loop.trains]
    return script.scope(node) in steps or below(training, node, loops.__contains__)


def below(training: Training, node: ast.AST, runs: Callable[[ast.AST], bool]) -> bool:
    """True of a place in something, and in a function that is called there."""
    script = training.script
    calls = [calls for function, calls in script.calls_of.items() if function is script.scope(node)]
    places = (node, *chain.from_iterable(calls))
    return any(runs(up) for place in places for up in script.above(place))


def _past_module(func: ast.expr) -> ast.expr | None:
    """`model` of `model.module(x)` and `model.module.encode(x)`."""
    if not isinstance(func, ast.Attribute) or func.attr == "module":
        return func.value if isinstance(func, ast.Attribute) else None
    if func.attr in _SILENT or func.attr.startswith(("save", "get_", "set_")):
        return None
    inner = func.value
    while isinstance(inner, ast.Attribute) and inner.attr != "module":
        inner = inner.value
    return inner.value if isinstance(inner, ast.Attribute) else None


@rule("RK132", "warning", "a name of your own on the model")
def custom_attribute(file: File, script: Script) -> Iterator[Hit]:
    """Attributes and methods of your own on the model: `model.encode(x)`, `model.hidden_size`.

    DistributedDataParallel hides them (AttributeError), and the obvious way round, `.module`, ends
    the exchange of gradients ([RK131](RK131.md)).

    ```diff
     rankup.setup()
     model = Net()
    -model = nn.parallel.DistributedDataParallel(model)
    +model = rankup.wrap(model)
     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
     for x, y in rankup.shard(loader):
         F.cross_entropy(model.encode(x), y).backward()
    ```

    Nothing: `rankup.wrap` keeps them.
    """
    around = wrapped(script)
    if not script.distributed or not any("ddp" in kinds for kinds in around.values()):
        return
    models = {one.node for one in script.models}
    seen: set[str] = set()
    for node in file.names.all(ast.Attribute):
        name = node.attr
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if own or not isinstance(node.value, ast.Name | ast.Attribute) or file.names.dotted(node):
            continue
        if name in _SILENT or name.startswith("__"):
            continue
        origins = [one for one in script.flow.origins(file, node.value) if one.node in models]
        origins = [one for one in origins if one.wrappers() == {"ddp"}]
        spelled = file.code(node)
        if not origins or spelled in seen or not _own_class(script, origins[0], name):
            continue
        seen.add(spelled)
        yield Hit(
            node,
            f"{spelled}: DistributedDataParallel hides attributes and methods of your own",
            "rankup.wrap keeps them, and trains through them",
        )


def _own_class(script: Script, made: Origin, name: str) -> bool:
    """True where it is an attribute of the model, as far as one can see."""
    owner = script.flow.class_of(made.file, made.node)
    return owner is None or bool(script.flow.members(*owner, name)[1])


@rule("RK133", "error", "a forward on one rank alone")
def forward_on_one(file: File, script: Script) -> Iterator[Hit]:
    """The wrapped model called under `if rank == 0:`; with DistributedDataParallel only where the
    model may have buffers.

    The wrapper's forward may send buffers (batch norm, masks) to all ranks. Alone, rank 0 waits for
    the others: at the last step for ever.

    ```diff
     rank = rankup.setup().rank
     model = nn.parallel.DistributedDataParallel(Net())
     if rank == 0:
    -    picture = model(noise)
    +    picture = model.module(noise)
    ```

    Nothing: without gradients `rankup.wrap` runs the bare model.
    """
    if not script.distributed:
        return
    around = wrapped(script)
    collective = {"ddp", "fsdp"} if _may_have_buffers(script) else {"fsdp"}
    for call in file.names.all(ast.Call):
        if not isinstance(call.func, ast.Name | ast.Attribute) or not given(call):
            continue
        if call_name(call) == "module" or file.names.called(call):
            continue
        made = [one for one in script.flow.origins(file, call.func) if one.node in around]
        kinds = frozenset().union(*(one.wrappers() for one in made))
        if kinds & collective and guard(file, script, call) in ("rank0", "local"):
            yield Hit(
                call,
                "a forward through the wrapper on one rank: it may wait for the others forever",
                "use the model without its wrapper: model.module(x)",
                level=None if "fsdp" in kinds else "warning",  # DDP waits where there are buffers
            )


def _may_have_buffers(script: Script) -> bool:
    """True where DDP may have something to send in a forward: not for a model of the script's own
    that registers no buffer and takes none of those that do."""
    texts = [one.text for one in script.files]
    own = any(_MODULE.search(text) for text in texts)
    return not own or any(_BUFFERS.search(text) for text in texts)


@rule("RK134", "error", "the model moved to the CPU and back")
def cpu_round_trip(file: File, script: Script) -> Iterator[Hit]:
    """`model.cpu()` or `model.to("cpu")` in a training, or in a function that is called there.

    The wrapper holds on to the parameters on the GPU: from then on no gradients are exchanged.

    ```diff
     model = Net().cuda()
     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
     for epoch in range(10):
         for x, y in rankup.shard(loader):
             F.cross_entropy(model(x), y).backward()
    -    model.cpu()
         rankup.save0(model.state_dict(), "model.pt")
    -    model.cuda()
    ```

    Leaves a remark at the place.
    """
    models = {one.node for one in script.models}
    training = training_in(script, file)

    def training_loop(node: ast.AST) -> bool:
        return isinstance(node, LoopNode) and training.trains(node)

    for match in _TO_CPU.find(file):
        call = match.call
        if not isinstance(file.names.parents[call], ast.Expr | ast.Assign | ast.Attribute):
            continue
        if not below(training, call, training_loop):
            continue
        if models & {one.node for one in script.flow.origins(file, match["model"])}:
            yield Hit(
                call,
                "moving the model to the CPU and back ends the exchange of its gradients",
                "save its state_dict() without moving it",
            )


_STATISTICS = ("running_mean", "running_var", "moving_mean")


@rule("RK135", "warning", "batch norm")
def batch_norm(file: File, script: Script) -> Iterator[Hit]:
    """A batch norm layer in a single-GPU script; one of its own, with a buffer `running_mean`.

    Its statistics come from a rank's part of each batch, and are noisy below 16 samples per GPU.

    ```diff
    +rankup.setup()
     model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).cuda()
    +model = rankup.wrap(nn.SyncBatchNorm.convert_sync_batchnorm(model))
    ```

    Reports it; `--sync-bn` takes the statistics of the whole batch.
    """
    if script.distributed or not script.train_loops or anywhere(script, "convert_sync_batchnorm"):
        return
    named: list[ast.Attribute | ast.Name] = [*file.names.all(ast.Attribute)]
    for node in (*named, *file.names.all(ast.Name)):
        if not _WITH_BATCH_NORM.fullmatch(node.id if isinstance(node, ast.Name) else node.attr):
            continue
        around = file.names.enclosing(node, ast.Call)
        if not (isinstance(around, ast.Call) and call_name(around) == "isinstance"):
            yield Hit(
                node,
                "batch norm takes its statistics from a rank's part of each batch",
                "nothing for 16 samples per GPU or more; `rankup port --sync-bn` takes all ranks'",
                partial(_batch_norm_left, node=node),
            )
            return
    for call in file.names.all(ast.Call):
        if call_name(call) == "register_buffer" and literal(first_argument(call)) in _STATISTICS:
            yield Hit(
                call,
                "a layer of the script's own takes its statistics from a rank's part of each batch",
                "average them over the ranks in its forward, where that is too few samples",
                comment=False,
            )
            return


def _batch_norm_left(context: Context, node: ast.AST) -> str:
    if not context.options.sync_bn:
        context.leave(
            node,
            "batch norm takes its statistics over a rank's part of a batch, --sync-bn over all",
            comment=False,
        )
    return ""


@rule("RK138", "error", "gradients of a sharded model clipped by each rank's part")
def clipped_apart(file: File, script: Script) -> Iterator[Hit]:
    """`torch.nn.utils.clip_grad_norm_` of a model in FullyShardedDataParallel.

    Each rank has a part of the gradients, takes the norm of that part and scales by it: the parts
    of one gradient are scaled by different factors, without an error.

    ```diff
     rankup.setup()
     model = torch.distributed.fsdp.FullyShardedDataParallel(Net().cuda())
     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
     for x, y in rankup.shard(loader):
         F.cross_entropy(model(x), y).backward()
    -    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    +    model.clip_grad_norm_(1.0)
         optimizer.step()
    ```

    Nothing: it does not shard models. What `fully_shard` has sharded is clipped as a whole.
    """
    for match in _CLIPS.find(file):
        models = with_parameters(script.flow, file, match["parameters"])
        if any(in_fsdp(script, where, one) for where, one in models):
            yield Hit(
                match.call,
                "takes the norm of this rank's part of the gradients, and scales that part by it",
                "model.clip_grad_norm_(…) of FullyShardedDataParallel takes that of all parts",
            )


def in_fsdp(script: Script, file: File, model: ast.AST) -> bool:
    """True of a model in the class FullyShardedDataParallel, which shards it."""
    return any(
        call_name(call) in ("FullyShardedDataParallel", "FSDP")
        and "NO_SHARD" not in where.code(call)
        for origin in script.flow.origins(file, model)
        for where, call in origin.through
    )
