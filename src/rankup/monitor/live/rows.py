"""Nodes and their GPUs as lines of a table that is as wide as the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ...base.amounts import ago, number, size
from ...base.text import clean
from .. import lines
from ..thresholds import LIMITS
from ..unused import untouched
from .node import Node, mean
from .troubles import memory
from .words import Signs

GIB = 2.0**30
_SORTED_BY = 60.0  # seconds
_WIDE = 110  # columns, from which on less urgent figures have their place
_NAME = 12


@dataclass(frozen=True)
class Paper:
    """What is drawn on: cells per line, and the characters that the terminal has."""

    width: int
    signs: Signs
    now: float


def worst_first(nodes: Sequence[Node], now: float) -> list[Node]:
    """Silent nodes, then by the use of each one's least used GPU (or of its cores)."""

    def key(node: Node) -> tuple[bool, bool, float, float]:
        utils = node.all_gpus("util", _SORTED_BY)
        use = node.util(_SORTED_BY)
        silent = node.stale(now) is not None or (node.ended is None and not node.samples)
        least = min(utils, default=100.0 if use is None else use)
        return (not silent, node.ended is not None, least, use or 0.0)

    return sorted(nodes, key=key)


def detailed(node: Node, paper: Paper, name: int) -> list[Text]:
    """A line of the node and one for each of its GPUs."""
    return [_node_line(node, paper, name), *_gpu_lines(node, paper)]


def short_title(paper: Paper, name: int, gpus: int) -> Text:
    """What stands above the lines of `short`."""
    row = [pad("node", name), pad("GPUs" if gpus else "", max(gpus, 4 if gpus else 0))]
    row += [pad("use", _bar(paper) + 7), pad("power", 7), pad("GPU GiB", 7), pad("warmest", 7)]
    row += [pad("CPU", 5), "RAM GiB"]
    if not gpus:
        row = [pad("node", name), pad("CPU", _bar(paper) + 7), pad("load", 8), "RAM GiB"]
    return Text("  ".join(row), style="dim")


def short(node: Node, paper: Paper, name: int, gpus: int) -> Text:
    """A node in a line; `gpus` is the most that any node has."""
    line = _name(node, name)
    if (why := _silence(node, paper)) is not None and (node.ended is None or not node.samples):
        return line.append(f"  {why}", style="bold red")
    if not gpus:
        return _node_figures(line, node, paper)
    utils = [node.gpu(place, "util") for place in range(len(node.gpus))]
    line.append("  ")
    for util in utils[: max(gpus, 4)]:
        line.append(paper.signs.level(None if util is None else util / 100), style=_style(util))
    line.append(" " * (max(gpus, 4) - len(utils)) + "  ")
    _use(line, node.util() if node.gpus else None, paper)
    powers, used = node.all_gpus("power"), node.all_gpus("memory")
    has = [total for gpu in node.gpus if (total := _number(gpu.get("memory")))]
    line.append("  " + pad(_or(mean(powers), "{:.0f} W"), 7))
    line.append("  " + pad(_part(mean(used), mean(has), ""), 7))
    warm = max(node.all_gpus("temperature"), default=None)
    line.append("  " + pad(_or(warm, "{:.0f} " + paper.signs.degree), 7))
    line.append("  " + pad(_or(node.host("cpu"), "{:.0f} %"), 5))
    line.append("  " + _part(memory(node), node.memory, ""))
    if node.ended is not None:
        line.append("  ended", style="dim")
    return line


def the_rest(nodes: Sequence[Node], paper: Paper) -> Text:
    """One line for the nodes that have none of their own."""
    utils = [util for node in nodes for util in node.all_gpus("util")]
    powers = [power for node in nodes for power in node.all_gpus("power")]
    what = "GPUs"
    if not any(node.gpus for node in nodes):
        what, utils = "CPU", [cpu for node in nodes if (cpu := node.host("cpu")) is not None]
    text = f"{paper.signs.more} {len(nodes):,} more nodes"
    if utils:
        text += f": {what} {_span(utils, '%')}"
    if powers:
        text += f", {_span(powers, 'W')}"
    return Text(text, style="dim")


def pad(text: str, width: int) -> str:
    """The text in just so many cells."""
    return set_cell_size(text, width)


def cut(text: str, width: int, signs: Signs) -> str:
    """The text in at most so many cells, with a sign where something is missing."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - len(signs.more))).rstrip() + signs.more


def fit(line: Text, paper: Paper) -> None:
    """Cut a line to the paper's width, with a sign where more than blanks are missing."""
    line.rstrip()
    if line.cell_len > paper.width:
        line.truncate(max(0, paper.width - len(paper.signs.more)))
        line.append(paper.signs.more)
        line.truncate(paper.width)


def name_width(nodes: Sequence[Node], width: int) -> int:
    """Cells for the names of nodes."""
    longest = max((cell_len(clean(node.name)) for node in nodes), default=4)
    return max(4, min(longest, _NAME if width < _WIDE else 2 * _NAME))


def _name(node: Node, width: int) -> Text:
    name = clean(node.name)
    if cell_len(name) > width:  # the end tells nodes apart
        while cell_len(name) >= width:
            name = name[1:]
        name = "~" + name
    return Text(pad(name, width), style="bold")


def _node_line(node: Node, paper: Paper, name: int) -> Text:
    line = _name(node, name)
    if (why := _silence(node, paper)) is not None and not node.samples:
        return line.append(f"  {why}", style="bold red")
    if why is not None and node.ended is None:  # before figures that are old
        line.append(f"  {why}", style="bold red")
    line.append("  CPU ")
    _node_figures(line, node, paper, bar=8)
    if node.ended is not None:
        line.append("  ended", style="dim")
    return line


def _node_figures(line: Text, node: Node, paper: Paper, bar: int | None = None) -> Text:
    cpu, load = node.host("cpu"), node.host("load")
    if bar is None:
        line.append("  ")
    _use(line, cpu, paper, bar, plain=bool(node.gpus))
    label = "load " if bar else ""
    if load is not None:
        line.append("  " + pad(f"{label}{load:.0f}/{node.cores}", len(label) + 8))
    line.append(
        f"  {'RAM ' if bar else ''}{_part(memory(node), node.memory, ' GiB' if bar else '')}"
    )
    if paper.width >= _WIDE:
        net = [node.host(c) for c in ("net_rx", "net_tx", "ib_rx", "ib_tx")]
        disk = [node.host(c) for c in ("disk_read", "disk_write")]
        for label, rates in (("network", net), ("disk", disk)):
            known = [rate for rate in rates if rate is not None]
            if known:
                line.append(f"  {label} {size(sum(known))}/s")
    return line


def _gpu_lines(node: Node, paper: Paper) -> list[Text]:
    found = []
    digits = max((len(str(gpu.get("index", 0))) for gpu in node.gpus), default=1)
    for place, gpu in enumerate(node.gpus):
        line = Text(f"  GPU {gpu.get('index', place)!s:{digits}.4}  ")
        _use(line, node.gpu(place, "util"), paper)
        power, limit = node.gpu(place, "power"), _number(gpu.get("power_limit"))
        watts = "" if power is None else f"{power:.0f}" + (f"/{limit:.0f}" if limit else "") + " W"
        line.append("  " + pad(watts, 9))
        part = _part(node.gpu(place, "memory"), _number(gpu.get("memory")))
        line.append("  " + pad(part, 11))
        degrees = _or(node.gpu(place, "temperature"), "{:.0f} " + paper.signs.degree)
        line.append("  " + pad(degrees, 6))
        if paper.width >= _WIDE:
            line.append("  " + pad(_or(node.gpu(place, "clock"), "{:.0f} MHz"), 8))
            pcie = [node.gpu(place, c) for c in ("pcie_rx", "pcie_tx")]
            known = [rate for rate in pcie if rate is not None]
            line.append("  " + pad(f"PCIe {size(sum(known))}/s" if known else "", 15))
        line.append("  " + _remark(node, place, gpu), style="bold yellow")
        found.append(line)
    return found


def _remark(node: Node, place: int, gpu: dict[str, object]) -> str:
    """What strikes about a GPU, in words: not everybody sees colours."""
    newest = node.samples[-1].gpus if node.samples else ()
    row = newest[place] if place < len(newest) else {}
    throttle = int(row.get("throttle", 0))
    if gpu.get("granted") is False:
        return "not this job's"
    if untouched(row.get("util"), row.get("memory"), row.get("processes")):
        return "nobody uses it"
    if throttle & lines.THROTTLE_HEAT:
        return "slowed by heat"
    if throttle & lines.THROTTLE_POWER:
        return "at power limit"
    if throttle & lines.THROTTLE_HARDWARE:
        return "slowed by hardware"
    return ""


def _silence(node: Node, paper: Paper) -> str | None:
    if node.ended is not None:
        return "ended"
    age = node.stale(paper.now)
    if age is not None:
        return f"no sample for {ago(age)}"
    return None if node.samples else "no sample yet"


def _bar(paper: Paper) -> int:
    return 10 if paper.width < _WIDE else min(30, 10 + (paper.width - _WIDE) // 2)


def _use(
    line: Text, percent: float | None, paper: Paper, bar: int | None = None, plain: bool = False
) -> None:
    """A bar and the number, in `_bar` + 7 cells."""
    width = _bar(paper) if bar is None else bar
    if percent is None:
        line.append(pad("?", width + 7))
        return
    line.append(paper.signs.bar(percent / 100, width), style="" if plain else _style(percent))
    line.append(f" {percent:4.0f} %")


def _style(percent: float | None) -> str:
    if percent is None:
        return "dim"
    if percent < LIMITS.idle_util:
        return "red"
    return "yellow" if percent < 50 else "green"


def _or(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _part(used: float | None, total: float | None, unit: str = " GiB") -> str:
    """ "28/40 GiB"."""
    if used is None:
        return ""
    amount = f"{used / GIB:.0f}" if used >= 10 * GIB or used < 0.05 * GIB else f"{used / GIB:.1f}"
    return f"{amount}/{number(total / GIB)}{unit}" if total else f"{amount}{unit}"


def _span(values: Sequence[float], unit: str) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}-{high:.0f} {unit}" if round(low) != round(high) else f"{low:.0f} {unit}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < 1e18 else None
