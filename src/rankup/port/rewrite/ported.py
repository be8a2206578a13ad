"""`port(path)`: the rewritten script and the report of what was done and what is left."""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...base.errors import UserError
from ...base.text import clean
from ...script import roles
from ...script.flow import argument, is_backward
from ...script.source import File, from_bytes, read, refuse_notebook
from ...script.understand import understand
from ..rules import RULES
from ..rules.decisions import broadcast_decisions, decided_alike
from ..rules.evaluation import metrics_of_one_rank
from ..rules.loaders import CALLED_BY_NAME, UNSEEN
from ..rules.rule import REFUSED, refuse
from ..rules.unfit import BY_HAND
from ..rules.whole import whole_numbers
from .context import Context, Note, NotPortable, Options
from .edits import Edits
from .imports import beside, import_ports, pickled_classes, refuse_registered_twice
from .models import wrap_models
from .script import Script
from .start import import_rankup, join
from .training import training_in

_JOINING = ("setup", "wrap", "shard", "parallelize")
# Of these one in any module is an edit.
_OTHERS = ("RK130", "RK103", "RK104", "RK105", "RK141", "RK145", "RK146", "RK147")
_RULES = {rule.code: rule for rule in RULES}
# What changes a script or leaves a remark, in this order. The fix of a rule mends its place by
# itself. A function makes changes that belong together and have no single place: a number is put
# together once for all that is made of it, in whatever file.
_FIXES: tuple[str | Callable[[Context], None], ...] = (
    "RK104",
    "RK105",
    "RK103",
    "RK111",
    "RK116",
    "RK118",
    wrap_models,
    "RK125",
    "RK119",
    whole_numbers,
    "RK115",
    "RK130",
    broadcast_decisions,
    metrics_of_one_rank,
    "RK186",
    "RK177",
    "RK141",
    "RK144",
    "RK146",
    "RK145",
    "RK149",
    "RK147",
    decided_alike,
    "RK135",
    "RK134",
    "RK181",
    "RK176",
    "RK129",
    "RK120",
    "RK188",
)
_LAUNCHED = {"hf-trainer": "a Hugging Face Trainer", "accelerate": "accelerate"}
_PLACES = 3  # that are named in one line of the report
_TRAINING = {"fit", "fit_one_cycle", "fine_tune", "fit_flat_cos", "fit_sgdr"}
_CONTEXT = "with {learner}.distrib_ctx():"


@dataclass(frozen=True)
class Ported:
    """A file and its port.

    Attributes:
        path: the script, or a module of its repository.
        target: where the port goes: beside its original, or in its place.
        original, text: before and after; equal where nothing was to be done.
        done: what was changed, each with the name of its fix.
        left: what a person has to look at.
        why: where nothing was changed, the reason; else empty.
        modules: of a script those that train for it, or through which it imports these.
    """

    path: Path
    target: Path
    original: str
    text: str
    done: tuple[Note, ...] = ()
    left: tuple[Note, ...] = ()
    why: str = ""
    modules: tuple[Ported, ...] = ()

    @property
    def files(self) -> tuple[Ported, ...]:
        """The script and its modules."""
        return (self, *self.modules)

    @property
    def diff(self) -> str:
        """A unified diff of all files, empty where nothing changed."""
        return "".join(
            line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
            for one in self.files
            for line in difflib.unified_diff(
                one.original.splitlines(keepends=True),
                one.text.splitlines(keepends=True),
                str(one.path),
                str(one.target),
            )
        )


def port(
    path: Path,
    *,
    batch: str = "global",
    sync_bn: bool = False,
    in_place: bool = False,
) -> Ported:
    """Rewrite a single-GPU training script, and the modules that train for it; writes nothing.

    Args:
        batch: `global`, where the script's batch size stays the one of all ranks together, or
            `per-gpu`.
        sync_bn: batch norm over the batches of all ranks.
        in_place: the ports take the places of their originals, and go on importing each other.

    Raises:
        UserError: no such file, no Python, no training script, or one that must not be made
            data-parallel by a rewrite; the message says why.
    """
    if batch not in ("global", "per-gpu"):
        raise UserError(f"--batch is global or per-gpu, not {batch}")
    try:
        return _port(_file(path), Options(batch, sync_bn, in_place))
    except RecursionError:
        raise UserError(f"{path} is nested too deeply to be ported") from None


def _port(file: File, options: Options) -> Ported:
    path, text = file.path, file.text
    understood = _with_others(understand(file))
    training = training_in(understood, file)
    script = training.script
    if not any(one.concerns_training for one in understood.to_port):
        raise UserError(
            f"{path} is no PyTorch training script: it does not import torch. Name the script that "
            "trains"
        )
    why = _framework(understood)
    if _ported(script) is not None:
        why = f"{path.name} is ported already: it calls rankup.setup()"
    if why is not None:
        return Ported(path, path, text, text, why=why)
    return _without_faulty(understood, options, {})


def _without_faulty(script: roles.Script, options: Options, kept: dict[File, str]) -> Ported:
    """The port of a script and its modules, but for those that stay as they are by their fault."""
    try:
        return _rewritten(script, options, kept)
    except NotPortable as error:
        smaller = _without(script, error)
        kept |= {one: str(error) for one in script.to_port if one not in smaller.to_port}
    return _without_faulty(smaller, options, kept)


def _without(script: roles.Script, error: NotPortable) -> roles.Script:
    """A script of which a file stays as it is that is at fault, where no other needs its port.

    Raises:
        NotPortable: it trains, or leads to what is ported.
    """
    also = [{one} for one in script.files if one in script.also]
    for file in error.files:
        for some in (*also, script.also):
            smaller = replace(script, also=script.also - some)
            if file not in smaller.to_port:
                return smaller
    raise error


def _rewritten(understood: roles.Script, options: Options, kept: Mapping[File, str]) -> Ported:
    """The port of a script, but for some files that stay as they are, each with the reason."""
    path = understood.file.path
    port: list[Context] = []
    for one in understood.to_port:
        there = training_in(understood, one)
        Context(there.script, there, options, Edits(one), port=port)
    for context in port:
        _refuse_names(context)
    for context in port[1:]:
        _refuse_ported(context.script, path)
    if port[0].script.modules & {"fastai", "fastbook"}:
        del port[1:]  # no port of theirs is made that could be imported
        return _finish([port_learner(port[0], path)])
    for context in port:
        taken = _distributed(context.script)
        if taken is not None:
            place = f"{context.script.file.path}:{taken[0]}"
            raise UserError(f"{place}: {taken[1]}; port takes the single-GPU script")
    _refuse(port)
    for fix in _FIXES:
        for context in port:
            if isinstance(fix, str):
                _RULES[fix].mend(context)
            else:
                context.fix = fix.__name__
                fix(context)
    _refuse_unsharded(port)
    if not options.in_place:
        refuse_registered_twice(port)
        pickled_classes(port)
    for context in port:
        effective(context)
    _in_other_modules(port[0], kept)
    return _finish(port)


def _in_other_modules(context: Context, kept: Mapping[File, str]) -> None:
    """Say of modules that stay as they are where ranks take statistics, orders or draws amiss.

    Of one that is kept all that would have been mended.
    """
    for file, reason in kept.items():
        name = os.path.relpath(file.path, context.script.file.path.parent)
        context.leave(None, f"{name} stays as it is: {reason}", comment=False)
    script = context.script.understood
    others = [one for one in script.files if one not in script.to_port]
    found = [
        (file.short_place(hit.at), hit)
        for file in others
        for hit in _RULES["RK135"].look(file, script)
        if script.comes_to(file, hit.at) and not context.options.sync_bn
    ]
    if found:
        places, hit = ", ".join(place for place, _ in found[:_PLACES]), found[0][1]
        places += f" and {len(found) - _PLACES} more" if len(found) > _PLACES else ""
        context.leave(None, f"{hit.message} ({places}); {hit.todo}", comment=False)
    for file in others:
        for code in (*(_OTHERS if file in kept else ("RK130",)), "RK188"):
            for hit in _RULES[code].look(file, script):
                if script.comes_to(file, hit.at):
                    at = file.short_place(hit.at)
                    context.leave(None, f"{hit.message} ({at}): {hit.todo}", comment=False)


def _with_others(script: roles.Script) -> roles.Script:
    """A script, of which the modules are ported, too, that have no place where ranks may run.

    They choose a GPU, make folders or names by the clock, go by an order of each rank's own, or
    write what is not written by a call in the files that train.
    """
    others = [one for one in script.files if one not in script.to_port]
    also = {
        file
        for file in others
        for code in _OTHERS
        for hit in _RULES[code].look(file, script)
        if hit.fix is not None and script.comes_to(file, hit.at)
    }
    return replace(script, also=frozenset(also)) if also else script


def _finish(port: list[Context]) -> Ported:
    join(port[0])
    for context in port[1:]:
        import_rankup(context)
    done = []
    for context in port:
        if not context.options.in_place:
            import_ports(context)
        file, text = context.script.file, context.edits.apply()
        _compile(file.path, text, file.text)
        target = file.path if context.options.in_place else beside(file.path)
        by_line = sorted(context.notes, key=lambda note: note.line)
        fixed = tuple(note for note in by_line if note.fix)
        left = [note for note in by_line if not note.fix]
        if len(port) == 1:  # else the modules that are read beside it are not yet ported
            left += _of_parts(file, text, left)
        left.sort(key=lambda note: note.line)
        done.append(Ported(file.path, target, file.text, text, fixed, tuple(left)))
    changed = tuple(one for one in done[1:] if one.text != one.original)
    return replace(done[0], modules=changed)


def _of_parts(file: File, text: str, left: Sequence[Note]) -> list[Note]:
    """What `check` says of the port's numbers: those that are of a rank's part only, once each."""
    if text == file.text:
        return []
    ported = from_bytes(file.path, text.encode())
    matcher = difflib.SequenceMatcher(None, text.splitlines(), file.text.splitlines(), False)
    lines = {
        new + step + 1: old + min(step, max(0, end - old - 1)) + 1
        for _, new, stop, old, end in matcher.get_opcodes()
        for step in range(stop - new)
    }
    notes: dict[str, Note] = {}
    for hit in _RULES["RK121"].look(ported, understand(ported)):
        names = hit.message.partition(":")[0]
        line = lines.get(getattr(hit.at, "lineno", 0), 0)
        if not any(note.line == line or names in note.text for note in left):
            notes.setdefault(names, Note(line, f"{hit.message}; {hit.todo}"))
    return list(notes.values())


def _file(path: Path) -> File:
    refuse_notebook(path)
    if not path.exists():
        raise UserError(f"there is no file {clean(str(path))}")
    file = read(path)
    if file.error is not None:
        error = file.error
        hint = f": {error.hint}" if error.hint else ""
        raise UserError(f"{path}:{error.line}:{error.column}: {error.message}{hint}")
    return file


def _ported(script: Script) -> ast.Call | None:
    """A call that joins the ranks, or shares work among them; reading a pack does neither."""
    for call in script.all(ast.Call):
        library, _, function = script.name(call.func).partition(".")
        if library == "rankup" and function in _JOINING:
            return call
    return None


def _refuse_ported(module: Script, path: Path) -> None:
    """Raise NotPortable where a module of a script that is not ported is ported already."""
    call = _ported(module)
    if call is not None:
        raise NotPortable(
            f"{module.file.path}:{module.line(call)}: this module calls {module.code(call.func)} "
            f"already, by hand or by a port --in-place of another script, and would be edited "
            f"twice. Port {path.name} in a copy of the repository that has the module as it was, "
            f"or do by hand what {path.name} still lacks of this: {BY_HAND}",
            module.file,
        )


def _framework(script: roles.Script) -> str | None:
    """The reason why a script needs no rewrite: a framework joins its ranks."""
    for name, what in _LAUNCHED.items():
        if name in script.frameworks:
            return (
                f"the script uses {what}, which joins the ranks that torchrun starts by itself: "
                "start it as it is with `rankup run`; its batch sizes count per GPU"
            )
    if "lightning" in script.frameworks:
        return (
            "the script uses Lightning, which needs launch settings alone: "
            '`Trainer(devices="auto", num_nodes=int(os.environ.get("SLURM_JOB_NUM_NODES", 1)), '
            'strategy="ddp")`, or the same of a `Fabric`, started with `rankup run`'
        )
    return None


def _distributed(script: Script) -> tuple[int, str] | None:
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


def _refuse_names(context: Context) -> None:
    """Raise NotPortable where a file gives the name `rankup` to something else."""
    script = context.script
    lines = [
        script.line(one.target)
        for scope in script.file.names.scopes
        for one in script.file.names.members(scope).get("rankup", ())
        if not (
            one.kind == "import" and isinstance(one.node, ast.Import) and one.dotted == "rankup"
        )
    ]
    path = script.file.path
    if lines:
        raise NotPortable(
            f"{path}:{min(lines)}: `rankup` is a name of the script's own, and would hide the "
            "library that the port imports: give it another",
            script.file,
        )


def _refuse(port: list[Context]) -> None:
    trainings = [one.training for one in port]
    path = port[0].script.file.path
    if not any(one.backwards for one in trainings):
        _refuse_unfollowed(port[0].script)
        raise UserError(
            f"{path} is no training script: it comes to no .backward(). Name the script that trains"
        )
    for rule in (_RULES[code] for code in REFUSED):
        for context in port:
            file = context.script.file
            for hit in rule.look(file, context.script.understood):
                place = f"{file.path}:{file.line(hit.at)[0]}"
                raise UserError(f"{place}: not ported: {hit.message}; {hit.todo}")
    models = [model for one in trainings for model in one.models]
    for training in trainings:
        script, unresolved = training.script, training.unresolved
        if models and unresolved:
            named = " and ".join(model.name for model in models)
            raise UserError(
                f"{script.file.path}:{script.line(unresolved[0])}: more than one candidate for the "
                "model: this optimizer is made of parameters that cannot be followed to "
                f"{named}; give it `{models[0].name}.parameters()`"
            )
    if not models:
        training = next(one for one in trainings if one.optimizers or one.backwards)
        script = training.script
        line = script.line((training.optimizers or training.backwards)[0])
        raise UserError(
            f"{script.file.path}:{line}: which model is trained cannot be seen: no optimizer is "
            f"made of `model.parameters()` of a model that {path.name}, or a module that trains "
            f"for it, makes and names. Name it there. By hand: {BY_HAND}"
        )


def _refuse_unsharded(port: list[Context]) -> None:
    """Raise UserError where no training loop of any file gives each rank its part of the batches.

    A step that is handed over as a value is called in a loop that is not seen to train.
    """
    if any(note.fix == "RK111" for one in port for note in one.notes):
        return
    drawn = _RULES["RK116"].look
    if any(True for one in port for _ in drawn(one.script.file, one.script.understood)):
        return
    context = next(one for one in port if one.training.backwards)
    refuse(context, context.training.backwards[0], f"{UNSEEN.format('backward')}: {CALLED_BY_NAME}")


def _refuse_unfollowed(script: Script) -> None:
    """Raise UserError where a module has a backward that the script is not seen to come to."""
    for file in script.flow.files:
        for call in file.names.all(ast.Call):
            if is_backward(script.flow, file, call) and not file.only_started(call):
                raise UserError(
                    f"{script.file.path} is not seen to train: {file.path}:{file.line(call)[0]} "
                    "has a .backward(), but how the script comes to it cannot be followed. Let "
                    "the script import and name the function or class that trains, or name "
                    f"another script. By hand: {BY_HAND}"
                )


def _compile(path: Path, text: str, original: str) -> None:
    """A port that Python refuses is a mistake of ours: nothing of it is written."""
    try:
        compile(text, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        try:
            compile(original, str(path), "exec", dont_inherit=True)
        except SyntaxError:
            return  # of a newer Python than this one: it cannot say
        raise UserError(
            f"{path}: the port would be no Python at its line {error.lineno} ({error.msg}); "
            "nothing was written. Please report this with the script"
        ) from None


def effective(context: Context) -> None:
    """Say what the effective batch is, and what two rules would make of the learning rate."""
    script = context.script
    if context.options.batch == "global":
        return
    sizes = [(call, argument(call, "batch_size", 1)) for call in context.training.loader_calls]
    for call, size in [(call, size) for call, size in sizes if size is not None][:1]:
        text = f"the effective batch is {script.code(size)} times the number of GPUs"
        context.leave(call, f"{text}: fewer steps per epoch", comment=False)
    for call in context.training.optimizers:
        rate = argument(call, "lr", 1)
        text = script.code(rate) if rate is not None else "lr"
        context.leave(
            call,
            f"learning rate unchanged. The linear rule (SGD, with warm-up) would make it {text} x "
            f"GPUs, the square-root rule (Adam) {text} x sqrt(GPUs)",
            comment=False,
        )


def port_learner(context: Context, path: Path) -> Context:
    """The downloads by rank 0 first, and `with learn.distrib_ctx():` around what trains.

    Raises:
        UserError: no call of a learner that trains.
    """
    script = context.script
    _RULES["RK177"].mend(context)
    found = [
        call
        for call in script.all(ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _TRAINING
    ]
    if not found:
        raise UserError(f"{path} imports fastai, but no learner is trained in it (learn.fit(…))")
    context.fix = "distrib_ctx"
    done: set[ast.AST] = set()
    for call in found:
        assert isinstance(call.func, ast.Attribute)
        statement = script.row(script.statement(call))[0]
        if statement in done:
            continue
        done.add(statement)
        learner = script.code(call.func.value)
        context.indented(statement, _CONTEXT.format(learner=learner))
        context.done(call, f"{learner} trains on all ranks ({learner}.distrib_ctx)")
    _batch_size(context, found[0])
    for call in script.all(ast.Call):
        exports = isinstance(call.func, ast.Attribute) and call.func.attr == "export"
        if exports and context.only_root(call):
            context.done(call, "rank 0 alone writes this")
    return context


def _batch_size(context: Context, trains: ast.Call) -> None:
    """fastai deals whole samples, not parts of batches: its batch size is that of a GPU."""
    script = context.script
    given = [(call, arg) for call in script.all(ast.Call) if (arg := argument(call, "bs"))]
    same = "for the same run divide it by rankup.setup().world_size"
    if context.options.batch == "per-gpu":
        same = "fewer steps per epoch"
    for call, arg in given:
        size = script.code(arg)
        context.leave(
            call,
            f"fastai's bs is the batch of each GPU, {size} times their number in all: {same}",
            comment=False,
        )
    if not given:
        text = f"fastai gives each GPU batches of its own, 64 by default: {same}"
        context.leave(trains, text, comment=False)
