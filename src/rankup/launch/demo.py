"""`rankup demo`: a script for one GPU is checked, ported, verified, and run on 1 and 2 ranks."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..base.errors import UserError
from ..base.files import write_atomic
from ..site import config, rundir
from ..site.jobspec import JobSpec
from .request import wanted
from .run import run

_SCRIPT = "train.py"
# One thread per rank on both sides, so that two ranks have twice the cores of one.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class Side:
    """The metrics of one of the two runs."""

    ranks: int
    losses: list[float]
    valid_loss: float
    seconds: float
    tokens_per_s: float


def demo() -> int:
    """Take the example all the way, and print the table; the exit code."""
    name = rundir.new_id()
    folder = config.load(Path.cwd()).runs / "demo" / name
    folder.mkdir(parents=True)
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    script = folder / _SCRIPT
    write_atomic(script, (files(__package__) / "example" / f"{_SCRIPT}.txt").read_bytes())
    code, ported = _port(script)
    if code:
        return code
    sides = []
    for ranks in (1, 2):
        directory = folder.with_name(f"{name}-{ranks}").absolute()
        _say(f"4. run {ported.name} on {ranks} rank{'s' if ranks > 1 else ''}, one thread each")
        results = ("--log", str(directory / "metrics.jsonl"), "--save", str(directory / "model.pt"))
        spec = JobSpec(str(ported), results, ranks, str(directory), local=True)
        code = run(spec, _ENVIRONMENT)
        if code:
            return code
        sides.append(read(directory, ranks))
    _say("5. the same run, only faster")
    Console(width=None if sys.stdout.isatty() else 100).print(table(*sides))
    print(f"largest relative difference of the two loss curves: {difference(*sides):.1e}")
    if (os.cpu_count() or 1) < 2:
        print("this machine has one core: two ranks share it, so no time is saved")
    there = shlex.quote(str(folder))
    following = {
        "what the port changed": f"diff {there}/{_SCRIPT} {there}/{ported.name}",
        "a script of yours": "rankup check YOUR_SCRIPT.py",
        "a model split over two ranks": "rankup run --nproc 2 language-model --tiny --shard 2",
    }
    if wanted(True):
        following["what the cores did"] = f"rankup report {shlex.quote(str(directory))}"
    print("\nnext:")
    for what, command in following.items():
        print(f"  {what:29} {command}")
    return 0


def _port(script: Path) -> tuple[int, Path]:
    """Check, port, verify; verify's exit code, and the port."""
    from ..port import verify
    from ..port.check import check, formatted
    from ..port.rewrite.command import port_file

    ported = script.with_name(f"{script.stem}_dist.py")
    _say(f"1. check {script}: what stands between it and many GPUs")
    print(formatted(check([script]), "text"), end="")
    _say(f"2. port it: {ported.name}, beside it")
    port_file(
        script,
        batch="global",
        in_place=False,
        diff=False,
        vendor=False,
        sync_bn=False,
        force=False,
    )
    print(formatted(check([ported]), "text"), end="")
    _say("3. verify: does it still compute the same? Both run for a few steps")
    return verify.verify(verify.Request(str(script), str(ported), ("--epochs", "2"))), ported


def _say(text: str) -> None:
    sys.stdout.flush()
    print(f"\n{text}", file=sys.stderr, flush=True)


def read(directory: Path, ranks: int) -> Side:
    """Read a finished run's metrics."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps, final = [line for line in lines if "loss" in line], lines[-1]
    if not final.get("final") or len(steps) < 2:
        raise UserError(f"{directory} is not a finished run")
    rates = sorted(step["tokens_per_s"] for step in steps[1:])
    return Side(
        ranks,
        [step["loss"] for step in steps],
        final["valid_loss"],
        steps[-1]["time"] - steps[0]["time"],
        rates[len(rates) // 2],
    )


def difference(one: Side, other: Side) -> float:
    """Largest relative difference of two loss curves."""
    return max(abs(a - b) / abs(a) for a, b in zip(one.losses, other.losses, strict=True))


def table(one: Side, two: Side) -> Table:
    """The two runs in one table."""
    result = Table(title="the same run, only faster (one thread per rank on both sides)")
    for heading in ("ranks", "threads per rank", "first loss", "last loss", "valid loss"):
        result.add_column(heading, justify="right")
    for heading in ("tokens/s", "training time", "speed-up"):
        result.add_column(heading, justify="right")
    for side in (one, two):
        result.add_row(
            str(side.ranks),
            "1",
            f"{side.losses[0]:.5f}",
            f"{side.losses[-1]:.5f}",
            f"{side.valid_loss:.5f}",
            f"{side.tokens_per_s:,.0f}",
            f"{side.seconds:.1f} s",
            f"{one.seconds / side.seconds:.2f}",
        )
    return result
