"""The size of a batch, which is a rank's part of it, and the workers that load it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from ...script.flow import argument, call_name, given, literal
from ...script.names import bound_in, elements, walk
from ...script.roles import Loop, Script
from ...script.source import File
from ...script.torch_names import words
from ..rewrite.context import Context
from ..rewrite.script import ForNode
from ..rewrite.training import Training, training_in
from .facts import integer
from .rule import Hit, rule

_CONSTRUCTORS = words(
    "ones zeros eye rand randn randint full empty arange tensor normal FloatTensor LongTensor "
    "Tensor view reshape expand new_ones new_zeros new_full init_hidden"
)


_SIZE = ".batch_size"  # of the loader: that of all ranks' parts together


@rule("RK118", "warning", "the batch size in a shape")
def batch_size_in_shape(file: File, script: Script) -> Iterator[Hit]:
    """A tensor whose shape is the loader's batch size, and that meets a batch in a training loop.

    The last batch of an epoch is shorter, and so is a rank's part of any batch: shapes do not fit.

    ```diff
     loader = DataLoader(dataset, batch_size=batch_size)
     for x, _ in rankup.shard(loader):
    -    label = torch.full((batch_size,), 1.0)
    +    label = torch.full((x.size(0),), 1.0)
         criterion(model(x), label).backward()
    ```

    Takes the size from the batch where it is sure which; elsewhere it leaves a remark.
    """
    training = training_in(script, file)
    source, sizes = training.script, batch_sizes(training)
    numbers: set[str] = set()
    for loader in script.train_loaders:
        size = argument(loader.node, "batch_size", 1) if isinstance(loader.node, ast.Call) else None
        if isinstance(size, ast.Name | ast.Attribute):
            sizes.add(loader.file.code(size))
        elif size is not None and integer(size) and literal(size) != 1:
            numbers.add(loader.file.code(size))
    for loop in training.loops if sizes | numbers else ():
        if not loop.trains:
            continue
        batch = first_of_batch(training, loop)
        own = bound_in(walk(loop.node))
        for call in source.inside(loop.node.body, ast.Call, deep=False):
            makes = call_name(call) in _CONSTRUCTORS
            if not makes and source.called(call) is None:
                continue
            alone = [one for arg in given(call) for one in elements(arg)]
            inner = source.inside(given(call), ast.Name, ast.Attribute) if makes else ()
            for value in dict.fromkeys([*alone, *inner]):
                code = source.code(value)
                # The same number may be another size: it is named, as the first of a shape alone.
                number = makes and value is alone[0] and code in numbers
                if code not in sizes - own and not number:
                    continue
                fix = None
                if makes and batch is not None and value in alone and not number:
                    fix = partial(_size_of_part, value=value, batch=batch)
                yield Hit(
                    value if makes else call,
                    f"a shape of {code}: a rank's part of a batch is smaller",
                    "take the size from the batch: len(batch), x.size(0)",
                    fix,
                    f"{code} is the size of the whole batch: take that of a rank's part from it",
                )
        for value in _made_before(training, loop, sizes | numbers, own):
            code = source.code(value)
            message = f"a shape of {code}, of the whole batch, meets a rank's part of a batch"
            todo = "make it in the loop, of the size of its batch: len(batch), x.size(0)"
            yield Hit(value, message, todo, left=f"{message}; {todo}")


def _made_before(
    training: Training, loop: Loop, sizes: set[str], own: set[str]
) -> Iterator[ast.expr]:
    """The sizes of what is made once, before a loop, and put together there with a batch."""
    script, scope = training.script, training.script.scope(loop.node)
    body = loop.node.body
    together = [given(one) for one in script.inside(body, ast.Call, deep=False)]
    together += [[one.left, one.right] for one in script.inside(body, ast.BinOp, deep=False)]
    met = {
        one.id
        for parts in together
        if len(parts) > 1
        for one in parts
        if isinstance(one, ast.Name) and one.id not in own
    }
    for name in sorted(met):
        for where in dict.fromkeys((scope, script.tree)):
            for statement, made in script.assigned(name, where):
                if loop.node in script.above(statement):
                    continue
                for call in script.inside(made, ast.Call):
                    if call_name(call) in _CONSTRUCTORS:
                        shapes = [one for arg in given(call) for one in elements(arg)]
                        yield from (
                            one
                            for one in shapes
                            if script.code(one) in sizes or script.dotted(one).endswith(_SIZE)
                        )


def _size_of_part(context: Context, value: ast.expr, batch: str) -> str:
    context.replace(value, f"{batch}.size(0)")
    return "a batch here is this rank's part of it"


def batch_sizes(training: Training) -> set[str]:
    """The expressions for the sizes of the loaders' batches: `args.batch_size`."""
    return {
        training.script.code(arg)
        for call in training.loader_calls
        if (arg := argument(call, "batch_size", 1)) is not None and not integer(arg)
    }


def first_of_batch(training: Training, loop: Loop) -> str | None:
    """The first name that a loop gives a tensor of the batch."""
    if not isinstance(loop.node, ForNode):
        return None
    target: ast.expr = loop.node.target
    if loop.index is not None and isinstance(target, ast.Tuple):
        target = target.elts[1]
    names = [name.id for name in training.script.inside(target, ast.Name)]
    several = isinstance(target, ast.Tuple | ast.List)
    return names[0] if names and several and names[0] != "_" else None


@rule("RK192", "warning", "an HDF5 file that workers share")
def shared_hdf5(file: File, script: Script) -> Iterator[Hit]:
    """`self.file = h5py.File(path)` in `__init__` of a dataset whose samples are read from it, and
    a loader with `num_workers`.

    Workers are forked with the file open: what h5py holds of it is that of one process, and they
    may read wrong numbers, or hang.

    ```diff
     import h5py
     class Clouds(torch.utils.data.Dataset):
         def __init__(self, path):
    -        self.file = h5py.File(path)
    +        self.path, self.file = path, None
         def __getitem__(self, index):
    +        self.file = self.file or h5py.File(self.path)
             return self.file["points"][index]

     loader = DataLoader(Clouds("clouds.h5"), batch_size=64, num_workers=4)
     for x, y in rankup.shard(loader):
         F.cross_entropy(model(x), y).backward()
    ```

    Leaves it.
    """
    loaders = [loader.node for loader in (*script.train_loaders, *script.eval_loaders)]
    numbers = [argument(node, "num_workers", 5) for node in loaders if isinstance(node, ast.Call)]
    if all(number is None or literal(number) == 0 for number in numbers):
        return
    for owner in file.names.all(ast.ClassDef):
        methods = {part.name: part for part in owner.body if isinstance(part, ast.FunctionDef)}
        if not {"__init__", "__getitem__"} <= {*methods}:
            continue
        read = _attributes(methods["__getitem__"], ast.Load)
        read -= _attributes(methods["__getitem__"], ast.Store)
        held: dict[str, ast.Call] = {}
        for statement in walk(methods["__init__"]):
            if not isinstance(statement, ast.Assign):
                continue
            value = statement.value
            source: ast.expr | None = None
            if isinstance(value, ast.Call) and file.names.called(value) == "h5py.File":
                source = value
            elif isinstance(value, ast.Subscript) and isinstance(value.value, ast.Attribute):
                source = held.get(value.value.attr)  # a data set in it
            if isinstance(source, ast.Call):
                held |= dict.fromkeys(_attributes(statement, ast.Store), source)
        for call in dict.fromkeys(held[name] for name in held if name in read):
            yield Hit(
                call,
                "workers of the loader share this open file, and may read wrong numbers, or hang",
                "open it in __getitem__, once in each worker; or pack it: rankup pack FILE.h5 "
                "PACKED.h5, and rankup.data.open",
            )


def _attributes(where: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """The attributes of `self` that are read or written there."""
    return {
        node.attr for node in walk(where)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, context)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }  # fmt: skip
