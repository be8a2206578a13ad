"""The question of `rankup plan` and its answer: numbers of GPUs, rows, and which is proposed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, islice

from ..base.amounts import number, some
from ..base.errors import UserError
from ..slurm.parse import parse_seconds
from . import machines
from .estimate import Estimate
from .framework import COMPILES
from .layout import Precision
from .search import Layouts, Search, numbers_of_gpus, where_it_stops_paying
from .target import Sizes, Target
from .words import Wanted, by_recipe, framework_of

_TOKENS = 2**20  # tokens per step that are assumed
_MOST_TOKENS = 1e18  # of a run, or of an epoch
_DOUBLED = 5  # numbers of GPUs that are shown where none were asked for
_MOST_GPUS = 100_000
_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)\s*([kMGBT]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*([kM]?)\s*(core-?h|node-?h|gpu-?h)", re.IGNORECASE)
_RISKY = "risky: memory"


@dataclass(frozen=True)
class Request:
    """The words of the command line; None where nothing was said.

    Attributes:
        gpus: numbers of GPUs, as they were typed.
        layouts: how many layouts of each number of GPUs are shown.
        measured: a run whose steps say how fast the machine is.
    """

    target: str | None
    args: tuple[str, ...] = ()
    sizes: Sizes = field(default_factory=Sizes)
    gpus: str | None = None
    where: machines.Asked = field(default_factory=machines.Asked)
    measured: str | None = None
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
class Answer:
    """What is shown.

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
    found: tuple[Layouts, ...]
    global_batch: int
    precision: Precision
    steps: int | None
    chosen: Row | None
    why: str
    enough: int | None
    compiled: Row | None
    notes: tuple[str, ...]


def answer(request: Request, target: Target, site: machines.Site) -> Answer:
    """Return the answer to a question about a model on a machine.

    Raises:
        UserError: numbers that cannot be.
    """
    recipe = target.recipe
    site = site.tf32() if recipe is not None and recipe.tf32 else site
    batch, note = _global_batch(request, target)
    precision = request.precision or (recipe.precision if recipe else "bf16")
    wanted = Wanted(target, site)
    search = Search(
        target.shape,
        batch,
        precision,
        micro_batch=recipe.micro_batch if recipe and target.said("--micro-batch") else None,
        schedule=recipe.pp_schedule if recipe and target.said("--pp-schedule") else None,
        cp=recipe.cp or 1 if recipe else 1,
        shard=recipe.shard if recipe else None,
        pipelines=by_recipe(target),
        once=by_recipe(target),
        framework=framework_of(target),
    )

    counts = _counts(request.gpus, search, site)
    shown = request.layouts or (5 if len(counts) == 1 else 1)
    found = tuple(wanted.of(search, gpus, shown) for gpus in counts)
    steps = _steps(request, target, batch)
    rows = tuple(_rows(request, found, site, steps, shown))
    chosen, why = _choice(request, rows, found, site)
    everywhere = all(layouts.fitting for layouts in found)
    return Answer(
        target,
        site,
        rows,
        found,
        batch,
        precision,
        steps,
        chosen,
        why,
        None if everywhere else search.fewest_gpus(site.machine),
        None if chosen is None else _compiled(chosen, wanted, search, steps),
        (*target.notes, *site.notes, *note),
    )


def _compiled(chosen: Row, wanted: Wanted, search: Search, steps: int | None) -> Row | None:
    """The fastest compiled layout of as many GPUs as are proposed; None where that is compiled
    already, or where nothing is gained."""
    framework = COMPILES.get(search.framework)
    if framework is None:
        return None
    best = wanted.of(replace(search, framework=framework), chosen.gpus, 1).best
    if best is None or best.seconds >= chosen.estimate.seconds:
        return None
    return _row(best, steps, wanted.site)


def _row(fit: Estimate, steps: int | None, site: machines.Site) -> Row:
    if steps is None:
        return Row(fit, None, None)
    return Row(fit, steps * fit.seconds, site.cost(fit.layout.gpus, steps * fit.seconds))


def _global_batch(request: Request, target: Target) -> tuple[int, list[str]]:
    if target.recipe is not None:
        return target.recipe.global_batch, []
    if request.global_batch is not None:
        return request.global_batch, []
    seq = target.shape.seq
    batch = 2 ** max(0, round(math.log2(_TOKENS / seq)))
    return batch, [f"--global-batch {batch} is assumed, {number(batch * seq)} tokens per step"]


def _counts(text: str | None, search: Search, site: machines.Site) -> list[int]:
    """The numbers of GPUs, sorted."""
    per_node, most = site.machine.gpus_per_node, site.most_gpus
    if text is None:
        first = search.fewest_gpus(site.machine) or per_node
        doubled = islice(dropwhile(lambda n: n < first, numbers_of_gpus(site.machine)), _DOUBLED)
        return [n for n in doubled if most is None or n <= most] or [first]
    counts = set()
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
        if most is not None and count > most:
            raise UserError(f"--gpus {count}: {site.name} gives a job {most} at most")
        counts.add(count)
    return sorted(counts)


def _steps(request: Request, target: Target, batch: int) -> int | None:
    """Optimizer steps of the whole run; None where nothing says it."""
    recipe = target.recipe
    steps = request.steps if recipe is None else recipe.steps
    epochs = request.epochs if recipe is None else recipe.epochs
    if steps is not None and (request.tokens is not None or request.epochs is not None):
        other = "--tokens" if request.tokens is not None else "--epochs"
        raise UserError(f"--steps {steps} and {other} both say how long the run is; give one")
    if steps is not None:
        return steps
    if request.tokens is None:
        if epochs is not None:
            raise UserError(
                f"--epochs {epochs}: how many tokens is an epoch? Add --tokens N, those of one"
            )
        return None
    tokens = _tokens(request.tokens) * (epochs or 1)
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
    request: Request, found: Sequence[Layouts], site: machines.Site, steps: int | None, most: int
) -> Iterator[Row]:
    budget = _budget(request, site, steps)
    deadline = None
    if request.deadline is not None:
        deadline = parse_seconds(request.deadline, "--deadline")
        if steps is None:
            raise UserError("--deadline needs the length of the run: --tokens 20B, or --steps N")
    for layouts in found:
        for fit in layouts.fitting[:most]:
            row = _row(fit, steps, site)
            objections = []
            if deadline is not None and row.seconds is not None and row.seconds > deadline:
                objections.append("too late")
            if budget is not None and row.cost is not None and row.cost > budget:
                objections.append("over the budget")
            if fit.risky:
                objections.append(_RISKY)
            yield replace(row, objections=tuple(objections))


def _budget(request: Request, site: machines.Site, steps: int | None) -> float | None:
    if request.budget is None:
        return None
    unit = site.machine.unit
    match = _BUDGET.fullmatch(request.budget.strip())
    if match is None or float(match[1]) <= 0:
        raise UserError(f"--budget {request.budget} is no budget; write it as 5000{unit}")
    if match[3].lower().replace("-", "") != unit.lower().replace("-", ""):
        raise UserError(f"--budget {request.budget}: {site.name} bills {unit}; give it in these")
    if steps is None:
        raise UserError("--budget needs the length of the run: --tokens 20B, or --steps N")
    return float(match[1]) * _UNITS[match[2].lower()]


def _choice(
    request: Request, rows: Sequence[Row], found: Sequence[Layouts], site: machines.Site
) -> tuple[Row | None, str]:
    """The row that is proposed, and why.

    With a deadline the cheapest that keeps it; with a budget the fastest within it; else the most
    GPUs before the cost per token rises by a tenth.
    """
    if not rows:
        return None, "nothing fits"
    safe = [row for row in rows if not row.objections]
    kept = safe or [row for row in rows if set(row.objections) <= {_RISKY}]
    if not kept:
        seen = {word for row in rows for word in row.objections}
        return None, f"every layout is {some(sorted(seen - {_RISKY}))}"
    if request.deadline is not None:
        cheapest = min(kept, key=lambda row: row.cost or 0)
        return cheapest, f"the cheapest that ends within {request.deadline}"
    if request.budget is not None:
        return min(kept, key=lambda row: row.seconds or 0), f"the fastest within {request.budget}"
    stops = where_it_stops_paying(found, site.token_cost)
    paying = [row for row in kept if stops is None or row.gpus < stops.gpus] or kept
    best = min(paying, key=lambda row: row.estimate.seconds)
    if stops is None:
        more = "; adding GPUs still pays" if len(found) > 1 else ""
        return best, f"the fastest of these{more}"
    return best, f"the fastest before adding GPUs stops paying, which is at {stops.gpus}"
