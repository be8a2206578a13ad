"""`rankup plan`: read what was asked, search the layouts, choose one, print the answer."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, islice

from .. import recipes
from ..base.amounts import number, some
from ..base.errors import EXIT_BAD_INPUT, UserError
from ..parallel.choices import stages_per_rank
from ..parallel.layout import SELDOM
from ..parallel.layout import Layout as Mesh
from ..recipes.options import LanguageModelOptions
from ..recipes.vocabulary import BYTES
from ..site.profile import Profile
from ..slurm.parse import parse_seconds, time_text
from . import machines, table
from .estimate import Estimate, estimate
from .framework import COMPILES, FRAMEWORKS
from .layout import Layout, Precision
from .machine import GIB, MACHINES
from .search import (
    Found,
    candidates,
    fewest_gpus,
    layouts,
    numbers_of_gpus,
    strategy_of,
    where_it_stops_paying,
)
from .shape import Shape
from .target import OF_RECIPE, RECIPE, Sizes, Target, find

_TOKENS = 2**20  # tokens per step that are assumed
_MOST_TOKENS = 1e18  # of a run, or of an epoch
_DOUBLED = 5  # numbers of GPUs that are shown where none were asked for
_MOST_GPUS = 100_000
_START = 5  # minutes of a job before its first step, and for its last checkpoint
_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)\s*([kMGBT]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*([kM]?)\s*(core-?h|node-?h|gpu-?h)", re.IGNORECASE)


@dataclass(frozen=True)
class Wish:
    """The words of the command line; None where nothing was said.

    Attributes:
        gpus: numbers of GPUs, as they were typed.
        layouts: how many layouts of each number of GPUs are shown.
    """

    target: str | None
    args: tuple[str, ...] = ()
    sizes: Sizes = field(default_factory=Sizes)
    gpus: str | None = None
    where: machines.Asked = field(default_factory=machines.Asked)
    global_batch: int | None = None
    precision: Precision | None = None
    tokens: str | None = None
    steps: int | None = None
    epochs: int | None = None
    budget: str | None = None
    deadline: str | None = None
    layouts: int | None = None
    plot: str | None = None
    explain: bool = False
    as_json: bool = False


@dataclass(frozen=True)
class Row:
    """A layout, and what the whole run takes with it.

    Attributes:
        seconds, cost: to the end; None where nothing says how long the run is.
        objections: why it is not to be taken, in a few words.
    """

    estimate: Estimate
    seconds: float | None
    cost: float | None
    objections: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        return self.estimate.layout.gpus


@dataclass(frozen=True)
class Plan:
    """The answer.

    Attributes:
        rows: by number of GPUs, the fastest first.
        found: what the search found for each number of GPUs.
        steps: of the whole run.
        chosen: the row that is proposed; None where none can be.
        why: in a sentence.
        enough: the fewest GPUs on which it fits, where some that were asked for are too few.
        compiled: the fastest with --compile on as many GPUs, where that was not asked for.
    """

    target: Target
    site: machines.Site
    rows: tuple[Row, ...]
    found: tuple[Found, ...]
    global_batch: int
    precision: Precision
    steps: int | None
    chosen: Row | None
    why: str
    enough: int | None
    compiled: Row | None
    notes: tuple[str, ...]


def plan(wish: Wish) -> int:
    """Print the answer; the exit code, which is 2 where nothing fits.

    Raises:
        UserError: what was asked for is not known, or cannot be.
    """
    picture = None if wish.plot is None else table.picture(wish.plot)
    wish = _with_options_of_recipe(wish)
    target = find(wish.target, wish.args, wish.sizes)
    site = machines.choose(wish.where)
    answer = answered(wish, target, site)
    command = ("", "") if answer.chosen is None else run_command(answer, answer.chosen)
    if wish.as_json:
        compiled = None if answer.compiled is None else run_command(answer, answer.compiled)
        print(json.dumps(table.as_json(answer, command, compiled), indent=1))
    else:
        table.show(answer, command, explain=wish.explain)
    if picture is not None:
        table.draw(answer, picture)
    return 0 if answer.chosen is not None else EXIT_BAD_INPUT


def _with_options_of_recipe(wish: Wish) -> Wish:
    """Return the question with what a recipe has an option for among the recipe's options."""
    if wish.target not in recipes.RECIPES:
        return wish
    own = ("global_batch", "precision", "steps", "epochs")
    said = {f"--{name.replace('_', '-')}": getattr(wish, name) for name in own}
    said |= {option: getattr(wish.sizes, name) for name, option in OF_RECIPE.items()}
    words = [
        word for option, value in said.items() if value is not None for word in (option, str(value))
    ]
    sizes = replace(wish.sizes, **dict.fromkeys(OF_RECIPE, None))
    left = replace(wish, global_batch=None, precision=None, steps=None, epochs=None)
    return replace(left, args=(*wish.args, *words), sizes=sizes)


def answered(wish: Wish, target: Target, site: machines.Site) -> Plan:
    """Return the answer to a question about a model on a machine.

    Raises:
        UserError: numbers that cannot be.
    """
    notes = [*target.notes, *site.notes]
    site = site.tf32() if target.recipe is not None and target.recipe.tf32 else site
    batch, note = _global_batch(wish, target)
    notes += note
    precision = wish.precision or (target.recipe.precision if target.recipe else "bf16")
    micro_batch = schedule = None
    if target.recipe is not None and target.said("--micro-batch"):
        micro_batch = target.recipe.micro_batch
    if target.recipe is not None and target.said("--pp-schedule"):
        schedule = target.recipe.pp_schedule
    cp = 1 if target.recipe is None else target.recipe.cp or 1

    def search(count: int, framework: str, most: int) -> Found:
        found = layouts(
            target.shape,
            site.of(count),
            count,
            batch,
            precision=precision,
            micro_batch=micro_batch,
            schedule=schedule,
            cp=cp,
            pipelines=_pipelines(target),
            framework=framework,
        )
        return _allowed(found, target, site, most)

    found: list[Found] = []
    framework = _framework(target)
    counts = _counts(wish.gpus, target, site, batch, precision, cp, framework)
    shown = wish.layouts or (5 if len(counts) == 1 else 1)
    for count in counts:
        one = search(count, framework, shown)
        if not one.fitting and one.closest is None and target.recipe is not None:
            every = candidates(target.shape, site.of(count), count, batch, precision, cp=cp)
            one = replace(one, ruled_out=_ruled_out(list(every), target))
        found.append(one)
    steps = _steps(wish, target, batch)
    rows = tuple(_rows(wish, found, site, steps, shown))
    chosen, why = _choice(wish, rows, found, site)
    enough = None
    if not all(one.fitting for one in found):
        least = fewest_gpus(
            target.shape,
            site.machine,
            batch,
            precision=precision,
            cp=cp,
            pipelines=_pipelines(target),
            framework=framework,
        )
        enough = None if least is None else least.gpus
    return Plan(
        target,
        site,
        rows,
        tuple(found),
        batch,
        precision,
        steps,
        chosen,
        why,
        enough,
        None if chosen is None else _compiled(chosen, steps, site, search),
        tuple(notes),
    )


def _compiled(
    chosen: Row, steps: int | None, site: machines.Site, search: Callable[[int, str, int], Found]
) -> Row | None:
    """The fastest compiled layout of as many GPUs as are proposed; None where that is compiled
    already, where nothing is gained, or where the machine's kernels are not known."""
    framework = COMPILES.get(chosen.estimate.layout.framework)
    if framework is None or chosen.estimate.machine.gpu not in MACHINES:
        return None
    best = search(chosen.gpus, framework, 1).best
    if best is None or best.seconds >= chosen.estimate.seconds:
        return None
    seconds = None if steps is None else steps * best.seconds
    return Row(best, seconds, None if seconds is None else site.cost(chosen.gpus, seconds))


def _global_batch(wish: Wish, target: Target) -> tuple[int, list[str]]:
    if target.recipe is not None:
        return target.recipe.global_batch, []
    if wish.global_batch is not None:
        return wish.global_batch, []
    seq = target.shape.seq
    batch = 2 ** max(0, round(math.log2(_TOKENS / seq)))
    return batch, [f"--global-batch {batch} is assumed, {number(batch * seq)} tokens per step"]


def _counts(
    text: str | None,
    target: Target,
    site: machines.Site,
    batch: int,
    precision: Precision,
    cp: int,
    framework: str,
) -> list[int]:
    """The numbers of GPUs, sorted."""
    per_node = site.machine.gpus_per_node
    if text is None:
        least = fewest_gpus(
            target.shape,
            site.machine,
            batch,
            precision=precision,
            cp=cp,
            pipelines=_pipelines(target),
            framework=framework,
        )
        first = least.gpus if least is not None else per_node
        doubled = islice(dropwhile(lambda n: n < first, numbers_of_gpus(site.machine)), _DOUBLED)
        most = site.most_gpus
        return [n for n in doubled if most is None or n <= most] or [first]
    found = set()
    for word in text.split(","):
        if not re.fullmatch(r"\s*[1-9]\d{0,6}\s*", word) or int(word) > _MOST_GPUS:
            raise UserError(
                f"--gpus {text}: {word.strip() or 'nothing'!r} is no number of GPUs; write it as "
                "--gpus 8,16,64"
            )
        count = int(word)
        if count > per_node and count % per_node:
            below = count // per_node * per_node
            raise UserError(
                f"--gpus {count}: a node of {site.name} has {per_node}, and a run takes whole "
                f"nodes; nearest are {below} and {below + per_node}"
            )
        if site.most_gpus is not None and count > site.most_gpus:
            raise UserError(f"--gpus {count}: {site.name} gives a job {site.most_gpus} at most")
        found.add(count)
    return sorted(found)


def _allowed(found: Found, target: Target, site: machines.Site, most: int) -> Found:
    """Return the first `most` layouts that the recipe can be cut into, and was told to take."""
    recipe = target.recipe
    if recipe is None:
        return found
    wanted = _wanted(target)

    def fits(one: Estimate) -> bool:
        layout = one.layout
        has = _options(layout)
        if any(has[option] != value for option, value in wanted.items()):
            return False
        words = [*target.words[1:], *layout_words(layout, target)]
        try:
            options = recipes.find(target.words[0]).parse(words)
            options.layout(layout.gpus, min(layout.gpus, site.machine.gpus_per_node))
        except UserError:
            return False
        return True

    # To parse the options takes a moment.
    fitting = tuple(islice(filter(fits, found.fitting), most))
    closest = found.closest
    if fitting or closest is None or not fits(closest):
        closest = None
    return Found(found.gpus, fitting, closest)


def _wanted(target: Target) -> dict[str, str | int]:
    """The options by which a recipe was told its layout."""
    recipe = target.recipe
    assert recipe is not None
    wanted: dict[str, str | int | None] = {
        "--strategy": recipe.strategy,
        "--dp": recipe.dp,
        "--shard": recipe.shard,
        "--cp": recipe.cp,
        "--tp": recipe.tp,
        "--pp": recipe.pp,
    }
    if target.said("--micro-batch"):
        wanted["--micro-batch"] = recipe.micro_batch
    if target.said("--activation-checkpointing"):
        wanted["--activation-checkpointing"] = recipe.activation_checkpointing
    return {option: value for option, value in wanted.items() if value is not None}


def _options(layout: Layout) -> dict[str, str | int]:
    """A layout by the options of a recipe."""
    return {
        "--strategy": layout.strategy,
        "--dp": layout.dp_replicate,
        "--shard": layout.dp_shard,
        "--cp": layout.cp,
        "--tp": layout.tp,
        "--pp": layout.pp,
        "--micro-batch": layout.micro_batch,
        "--activation-checkpointing": layout.recompute,
    }


def _ruled_out(layouts: Sequence[Layout], target: Target) -> str:
    """The option that none of the layouts has, or all that were given; empty without layouts."""
    wanted = _wanted(target)
    every = [_options(layout) for layout in layouts]
    for option, value in wanted.items():
        if every and all(one[option] != value for one in every):
            return f"{option} {value}"
    return " ".join(f"{option} {value}" for option, value in wanted.items()) if every else ""


def _steps(wish: Wish, target: Target, batch: int) -> int | None:
    """Optimizer steps of the whole run; None where nothing says it."""
    recipe = target.recipe
    steps = wish.steps if recipe is None else recipe.steps
    epochs = wish.epochs if recipe is None else recipe.epochs
    if steps is not None and (wish.tokens is not None or wish.epochs is not None):
        other = "--tokens" if wish.tokens is not None else "--epochs"
        raise UserError(f"--steps {steps} and {other} both say how long the run is; give one")
    if steps is not None:
        return steps
    if wish.tokens is None:
        if epochs is not None:
            raise UserError(
                f"--epochs {epochs}: how many tokens is an epoch? Add --tokens N, those of one"
            )
        return None
    tokens = _tokens(wish.tokens) * (epochs or 1)
    return max(1, -(-tokens // (batch * target.shape.seq)))


def _tokens(text: str) -> int:
    match = _COUNT.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise UserError(f"--tokens {text} is no number of tokens; write it as 300M, 20B or 1.5T")
    tokens = float(match[1]) * _UNITS[match[2].lower()]
    if tokens > _MOST_TOKENS:
        raise UserError(f"--tokens {text} is over {_MOST_TOKENS:.0e}")
    return int(tokens)


def _rows(
    wish: Wish, found: Sequence[Found], site: machines.Site, steps: int | None, most: int
) -> Iterator[Row]:
    budget = _budget(wish, site, steps)
    deadline = None
    if wish.deadline is not None:
        deadline = parse_seconds(wish.deadline, "--deadline")
        if steps is None:
            raise UserError("--deadline needs the length of the run: --tokens 20B, or --steps N")
    for one in found:
        for fitting in one.fitting[:most]:
            seconds = None if steps is None else steps * fitting.seconds
            cost = None if seconds is None else site.cost(one.gpus, seconds)
            objections = []
            if deadline is not None and seconds is not None and seconds > deadline:
                objections.append("too late")
            if budget is not None and cost is not None and cost > budget:
                objections.append("over the budget")
            if fitting.risky:
                objections.append("risky: memory")
            yield Row(fitting, seconds, cost, tuple(objections))


def _budget(wish: Wish, site: machines.Site, steps: int | None) -> float | None:
    if wish.budget is None:
        return None
    unit = site.machine.unit
    match = _BUDGET.fullmatch(wish.budget.strip())
    if match is None or float(match[1]) <= 0:
        raise UserError(f"--budget {wish.budget} is no budget; write it as 5000{unit}")
    if match[3].lower().replace("-", "") != unit.lower().replace("-", ""):
        raise UserError(f"--budget {wish.budget}: {site.name} bills {unit}; give it in these")
    if steps is None:
        raise UserError("--budget needs the length of the run: --tokens 20B, or --steps N")
    return float(match[1]) * _UNITS[match[2].lower()]


def _choice(
    wish: Wish, rows: Sequence[Row], found: Sequence[Found], site: machines.Site
) -> tuple[Row | None, str]:
    """The row that is proposed, and why.

    With a deadline the cheapest that keeps it; with a budget the fastest within it; else the most
    GPUs before the cost per token rises by a tenth.
    """
    if not rows:
        return None, "nothing fits"
    safe = [row for row in rows if not row.objections]
    kept = safe or [row for row in rows if set(row.objections) <= {"risky: memory"}]
    if not kept:
        seen = {word for row in rows for word in row.objections}
        return None, f"every layout is {some(sorted(seen - {'risky: memory'}))}"
    if wish.deadline is not None:
        cheapest = min(kept, key=lambda row: row.cost or 0)
        return cheapest, f"the cheapest that ends within {wish.deadline}"
    if wish.budget is not None:
        return min(kept, key=lambda row: row.seconds or 0), f"the fastest within {wish.budget}"
    stops = where_it_stops_paying(found, site.token_cost)
    paying = [row for row in kept if stops is None or row.gpus < stops.gpus] or kept
    best = min(paying, key=lambda row: row.estimate.seconds)
    if stops is None:
        more = "; adding GPUs still pays" if len(found) > 1 else ""
        return best, f"the fastest of these{more}"
    return best, f"the fastest before adding GPUs stops paying, which is at {stops.gpus}"


def doubts(
    name: str, args: Sequence[str], profile: Profile, partition: str | None, job: Job
) -> list[str]:
    """Return what a plan has against a recipe's run: that it does not fit, or ends too late.

    Empty where the recipe, or the partition's GPU, is not one that is predicted.
    """
    if name != RECIPE:
        return []
    try:
        site = machines.of_profile(profile, partition)
        target = find(name, args, Sizes())
    except UserError:
        return []
    options = target.recipe
    assert options is not None
    ranks = job.nodes * job.per_node
    layout = layout_of(options, ranks, options.layout(ranks, job.per_node))
    site = site.tf32() if options.tf32 else site
    one = estimate(target.shape, layout, site.of(ranks))
    used, there = (f"{size / GIB:.1f} GiB" for size in (one.memory_total, one.capacity))
    found = []
    if not one.fits:
        sure = one.memory_total * (1 - one.memory_band) > one.capacity
        found.append(
            f"warning: a plan says that this {'will' if sure else 'may'} not fit: {used} ± "
            f"{one.memory_band:.0%} of the {there} of a {site.machine.gpu}; "
            f"`rankup plan --gpus {ranks} {shlex.join(target.words)}` shows what does"
        )
    if options.steps is not None and job.minutes:
        hours = options.steps * one.seconds / 3600
        attempts = math.ceil(hours * 60 / job.minutes)
        if attempts > 1:
            found.append(
                f"warning: a plan says that this takes {number(hours * (1 - one.band))} "
                f"to {number(hours * (1 + one.band))} h, which is {attempts:,} attempts of "
                f"{time_text(job.minutes)}"
            )
    return found


@dataclass(frozen=True)
class Job:
    """The nodes, ranks per node and minutes that a job gets; 0 minutes: without a limit."""

    nodes: int
    per_node: int
    minutes: int


def layout_of(options: LanguageModelOptions, gpus: int, mesh: Mesh) -> Layout:
    """The layout that a recipe's options ask for."""
    strategy = strategy_of(mesh.tp, mesh.pp, mesh.shard_size, mesh.dp_replicate * mesh.shard_size)
    every = 1
    if options.strategy in SELDOM:
        strategy = options.strategy
        every = int(options.sync_every) if options.sync_every.isdigit() else 1
    return Layout(
        gpus=gpus,
        strategy=strategy,
        dp_replicate=mesh.dp_replicate,
        dp_shard=mesh.dp_shard,
        tp=mesh.tp,
        pp=mesh.pp,
        cp=mesh.cp,
        schedule=options.pp_schedule if mesh.pp > 1 else "1f1b",
        interleave=stages_per_rank(options.pp_schedule) if mesh.pp > 1 else 1,
        micro_batch=options.micro_batch,
        global_batch=options.global_batch,
        recompute=options.activation_checkpointing,
        precision=options.precision,
        zero=3 if mesh.shard_size > 1 else 0,
        sequence_parallel=mesh.tp > 1,
        inner_steps=every,
        framework=COMPILES["rankup"] if options.compile else "rankup",
    )


def _framework(target: Target) -> str:
    """The habits of what trains a target: the recipe's, or those of the user's own script."""
    if target.recipe is not None:
        return COMPILES["rankup"] if target.recipe.compile else "rankup"
    return "rankup" if _as_recipe(target.shape) else "script"


def layout_words(layout: Layout, target: Target) -> list[str]:
    """Return the options of a recipe that are a layout, without those that it was given."""
    has = _options(layout)
    names = ["--dp", "--shard", "--cp", "--tp", "--pp"]
    words: dict[str, object] = {}
    if layout.strategy in ("ddp", "fsdp", *SELDOM):
        names, words = ["--cp"], {"--strategy": layout.strategy}
    words |= {name: has[name] for name in names if has[name] != 1}
    if layout.pp > 1 and layout.schedule != "1f1b":
        words["--pp-schedule"] = layout.schedule
    words["--micro-batch"] = layout.micro_batch
    if layout.recompute != "none":
        words["--activation-checkpointing"] = layout.recompute
    said = [
        word
        for option, value in words.items()
        if not target.said(option)
        for word in (option, str(value))
    ]
    compiled = FRAMEWORKS[layout.framework].compiled and not target.said("--compile")
    return [*said, "--compile"] if compiled else said


def run_command(answer: Plan, row: Row) -> tuple[str, str]:
    """Return the command that starts a row, and what has to stand in the script; empty for a
    recipe, which takes all of it as options."""
    layout, site, target = row.estimate.layout, answer.site, answer.target
    per_node = site.machine.gpus_per_node
    words = ["rankup", "run", "--nodes", str(max(1, layout.gpus // per_node))]
    if layout.gpus < per_node:
        words += ["--nproc", str(layout.gpus)]
        words += ["--allow-idle-gpus"] if site.whole_nodes else []
    if row.seconds is not None:
        minutes = math.ceil(row.seconds * (1 + row.estimate.band) / 60) + _START
        words += ["--time", time_text(min(minutes, site.most_minutes or minutes))]
    words += ["--partition", site.partition] if site.partition else []
    target_words, call = list(target.words), ""
    if target.recipe is None and _as_recipe(target.shape):
        target_words = [RECIPE, *_sizes(target.shape), "--global-batch", str(layout.global_batch)]
        target_words += ["--precision", answer.precision] if answer.precision == "bf16" else []
        target_words += ["--steps", str(answer.steps)] if answer.steps else []
    elif target.recipe is None:
        target_words = target_words or ["train.py"]
        call = _call(layout, answer.precision)
        return shlex.join([*words, *target_words]), call
    elif answer.steps and not (target.recipe.steps or target.recipe.epochs):
        target_words += ["--steps", str(answer.steps)]
    return shlex.join([*words, *target_words, *layout_words(layout, target)]), call


def _pipelines(target: Target) -> bool:
    """True if what would train the model is the recipe: a script of one's own has no stages."""
    return target.recipe is not None or _as_recipe(target.shape)


def _as_recipe(shape: Shape) -> bool:
    """True if the recipe has models of this kind."""
    plain = not shape.gated and not shape.tied and shape.kv_heads == shape.heads
    return plain and shape.ffn == 4 * shape.hidden and shape.vocab > BYTES


def _sizes(shape: Shape) -> list[str]:
    words = ["--layers", shape.layers, "--dim", shape.hidden, "--heads", shape.heads]
    words += ["--seq-len", shape.seq, "--vocab", "bpe", "--vocab-size", shape.vocab]
    return [str(word) for word in words]


def _call(layout: Layout, precision: Precision) -> str:
    """The call of `rankup.parallelize` that splits a user's model so."""
    keywords: dict[str, object] = {}
    if layout.strategy in ("ddp", "fsdp", *SELDOM):
        keywords["strategy"] = layout.strategy
    else:
        sizes = {"dp": layout.dp_replicate, "shard": layout.dp_shard}
        sizes |= {"tp": layout.tp}
        keywords |= {name: n for name, n in sizes.items() if n > 1}
    if precision != "fp32":
        keywords["precision"] = precision
    if layout.recompute != "none":
        keywords["activation_checkpointing"] = layout.recompute
    if FRAMEWORKS[layout.framework].compiled:
        keywords["compile"] = True
    said = "".join(f", {name}={value!r}" for name, value in keywords.items())
    return f"rankup.parallelize(build_model, build_optimizer{said})"
