"""A script with `rankup.shard`, `wrap` and `backward` against the same script by hand.

By hand it has a DistributedSampler and DistributedDataParallel.

Claims `wrap.1` and `wrap.2`: steps/s on 1 and 2 ranks of one thread each, the median of paired
slices, timed as `_ranks.py` says. The model is large enough that DDP exchanges its gradients in
several buckets, with its default sizes on both sides.

The note has what torch's profiler sees on 2 ranks, in runs of their own: how many of the
all-reduces start, and which share of their seconds passes, while the backward still computes
gradients; what comes after that the step has to wait for. `--trace FOLDER` keeps the traces.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch

from _loops import LOOPS, Job
from _rank import PausedTask, die_with_parent
from _ranks import Team, claimed, interleave, run_ranks, show_rates, write_text
from common import FULL, QUICK, Effort, machine, median, table
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.runtime.world import setup

OURS, HAND = "shard and wrap", "DistributedDataParallel"
MODEL = {"vocab": "byte", "seq_len": 32, "layers": 4, "dim": 512, "heads": 8, "micro_batch": 4}
_WARM, _TRACED = 3, 5  # steps before the profiler starts, and under it
_GRADIENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def measure(world_size: int, effort: Effort) -> dict[str, list[float]]:
    """Return the seconds per step of both scripts, one value per round."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        options = write_text(directory, _options(world_size), 64 * 4 * world_size)
        with closing(Team(world_size, directory, options, [OURS, HAND])) as team:
            found = interleave({OURS: team, HAND: team}, effort, least=4, longer=2)
    return {name: [one.seconds for one in slices] for name, slices in found.items()}


def trace(world_size: int, keep: Path | None) -> dict[str, str]:
    """Profile both scripts; print when gradients are exchanged, and return it in words."""
    words, rows = {}, []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        options = write_text(directory, _options(world_size), 64 * 4 * world_size)
        for who in (OURS, HAND):
            file = keep.resolve() / f"{who.replace(' ', '-')}.json" if keep else None
            spec = {"directory": name, "options": options, "who": who, "keep": file and str(file)}
            steps = run_ranks("wrap.py", world_size, spec)
            number, early = (median([step[key] for step in steps]) for key in ("all", "early"))
            inside = median([step["inside"] for step in steps])
            backward, after = (median([step[key] for step in steps]) for key in ("ms", "after"))
            words[who] = (
                f"{early:.0f} of {number:.0f} all-reduces start, and {inside:.0%} of their seconds "
                f"pass, while gradients are computed; then {after:.0f} ms of waiting"
            )
            cells = [f"{number:.0f}", f"{early:.0f}", f"{inside:.0%}", f"{backward:.0f}"]
            rows.append([who, *cells, f"{after:.0f}"])
    print(f"all-reduces of a step on {world_size} ranks by torch's profiler, rank 0, medians")
    head = ["", "all-reduces", "started inside", "seconds inside", "backward ms", "waiting ms"]
    table(head, rows)
    return words


def _options(world_size: int) -> dict[str, Any]:
    return {**MODEL, "global_batch": 4 * world_size, "warmup": 100, "dropout": 0.1}


class _Traced(Exception):  # noqa: N818 - the end, not an error
    """Enough steps were traced."""


def trace_rank() -> None:
    """Run a script under the profiler on this rank; print a line of JSON per traced step."""
    die_with_parent()
    spec = json.loads(sys.argv[-1])
    torch.set_num_threads(1)
    world = setup()
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    steps = 0

    def stepped(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == _WARM:
            profiler.start()
        elif steps == _WARM + _TRACED:
            profiler.stop()
            raise _Traced

    options, directory = LanguageModelOptions(**spec["options"]), Path(spec["directory"])
    task = PausedTask(options, directory / TOKENS, stepped)
    own = directory / spec["who"]
    own.mkdir(exist_ok=True)
    with suppress(_Traced):
        LOOPS[spec["who"]](Job(task, options, world, own))
    if world.is_root:
        for step in _exchanges(profiler.events()):
            print(json.dumps(step), file=answers, flush=True)
        if spec["keep"]:
            profiler.export_chrome_trace(spec["keep"])
    os._exit(0)


def _exchanges(events: Any) -> list[dict[str, float]]:
    """Return, for each backward, where its all-reduces lie with respect to its last gradient."""
    found = []
    reduces = [event.time_range for event in events if event.name == "gloo:all_reduce"]
    gradients = [event.time_range.start for event in events if event.name == _GRADIENT]
    for whole in (event.time_range for event in events if event.name == "script: backward"):
        mine = [one for one in reduces if whole.start <= one.start < whole.end]
        last = max(start for start in gradients if whole.start <= start < whole.end)
        inside = sum(max(0.0, min(one.end, last) - one.start) for one in mine)
        seconds = sum(one.end - one.start for one in mine)
        found.append(
            {
                "all": len(mine),
                "early": sum(one.start < last for one in mine),
                "inside": inside / seconds if seconds else 0.0,
                "ms": (whole.end - whole.start) / 1e3,
                "after": (whole.end - last) / 1e3,
            }
        )
    return found


def claim_of(world_size: int, effort: Effort, note: str) -> str:
    """Measure and print a world size; return its claim line."""
    seconds = measure(world_size, effort)
    what = (
        f"{world_size} rank{'s' * (world_size > 1)}, 4 x 32 bytes per rank, 4 layers of width 512, "
        f"steps of {median(seconds[HAND]) * 1e3:.0f} ms"
    )
    show_rates(seconds, HAND, what)
    return claimed(f"wrap.{world_size}", seconds, OURS, HAND, what + note)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="3 short rounds: about a minute")
    parser.add_argument("--trace", type=Path, metavar="FOLDER", help="keep the traces here")
    given = parser.parse_args()
    if given.trace:
        given.trace.mkdir(parents=True, exist_ok=True)
    effort = QUICK if given.quick else FULL
    print(machine("torch") + "\n", flush=True)
    words = trace(2, given.trace)
    lines = [claim_of(1, effort, "")]
    lines.append(claim_of(2, effort, f"; with wrap {words[OURS]}; by hand {words[HAND]}"))
    print("\n".join(lines))


if __name__ == "__main__":
    if "--rank" in sys.argv:
        trace_rank()
    else:
        main()
