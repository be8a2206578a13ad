"""The answer of `rankup plan` as a picture: time and cost over the number of GPUs."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from ..base.errors import UserError
from ..base.files import user_path, write_atomic
from .answer import Answer
from .search import STOPS_PAYING, where_it_stops_paying

_FORMATS = (".png", ".pdf", ".svg")


def file(text: str) -> Path:
    """Return the file that --plot names.

    Raises:
        UserError: it is no picture, or in no folder.
    """
    path = user_path(text, "--plot")
    if path.suffix.lower() not in _FORMATS or not path.parent.is_dir():
        raise UserError(
            f"--plot {path} is no picture in a folder that exists; its name ends in "
            f"{', '.join(_FORMATS)}"
        )
    return path


def draw(answer: Answer, path: Path) -> None:
    """Draw time and cost over the number of GPUs, each with its band; nothing where nothing fits.

    Raises:
        UserError: the file cannot be written.
    """
    best = [layouts.best for layouts in answer.found if layouts.best is not None]
    if not best:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    gpus = [fit.layout.gpus for fit in best]
    steps, unit = answer.steps, answer.site.machine.unit
    scale, what = (steps / 3600, "hours to the end") if steps else (1.0, "seconds per step")
    times = [fit.seconds * scale for fit in best]
    tokens = 1e9 if steps is None else steps * answer.global_batch * answer.target.shape.seq
    costs = [answer.site.token_cost(fit) * tokens for fit in best]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    priced = f"{unit} {'to the end' if steps else 'per Gtoken'}"
    for axes, values, label in zip(panels, (times, costs), (what, priced), strict=True):
        low = [value * (1 - fit.band) for value, fit in zip(values, best, strict=True)]
        high = [value * (1 + fit.band) for value, fit in zip(values, best, strict=True)]
        axes.fill_between(gpus, low, high, alpha=0.2, linewidth=0)
        axes.plot(gpus, values, marker="o")
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(gpus, [str(n) for n in gpus])
        axes.set_xlabel("GPUs")
        axes.set_ylabel(label)
    panels[0].set_yscale("log")
    panels[0].plot(gpus, [times[0] * gpus[0] / n for n in gpus], ":", label="as GPUs are added")
    panels[0].legend(frameon=False)
    panels[1].set_ylim(bottom=0)
    panels[1].axhline(STOPS_PAYING * min(costs), linestyle=":", label="a tenth above the cheapest")
    stops = where_it_stops_paying(answer.found, answer.site.token_cost)
    if stops is not None:
        panels[1].axvline(stops.gpus, linestyle="--", label=f"stops paying: {stops.gpus} GPUs")
    panels[1].legend(frameon=False)
    figure.suptitle(f"{answer.target.shape.name} on {answer.site.name}", fontsize=10)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=150, format=path.suffix.lower()[1:])
    try:
        write_atomic(path, drawn.getvalue())
    except OSError as error:
        raise UserError(f"--plot {path} cannot be written: {error.strerror}") from None
