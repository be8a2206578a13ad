"""`rankup demo`: a script for one GPU is checked, ported, verified, and run on 1 and 2 ranks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..base.errors import UserError
from ..base.files import write_atomic
from ..site import config, rundir
from ..site.jobspec import JobSpec
from .request import wanted
from .run import run
from .samples import SCRIPT, list_commands, script

_PORT = "train_dist.py"
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
    runs = config.load(Path.cwd()).runs / "demo"
    folder = runs / rundir.new_id()
    folder.mkdir(parents=True)
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    write_atomic(folder / SCRIPT, script(SCRIPT))
    code = _port(folder)
    if code:
        return code
    sides = []
    for ranks in (1, 2):
        name = rundir.new_id()
        directory = runs / name
        _say(f"4. run {_PORT} on {ranks} rank{'s' if ranks > 1 else ''}, one thread each")
        results = ("--log", str(directory / "metrics.jsonl"), "--save", str(directory / "model.pt"))
        sampled = ranks == 2  # one report is enough
        spec = JobSpec(
            str(folder / _PORT),
            results,
            ranks,
            str(directory),
            local=True,
            monitor=sampled,
            id=name,
        )
        code = run(spec, _ENVIRONMENT)
        if code:
            return code
        sides.append(read(directory, ranks))
    _say("5. compare the two runs")
    width = None if sys.stdout.isatty() else 80
    Console(width=width).print(table(*sides))
    print(f"largest relative difference of the two loss curves: {difference(*sides):.1e}")
    if (os.cpu_count() or 1) < 2:
        print("this machine has one core: two ranks share it, so no time is saved")
    following = {
        "what the port changed": f"diff {shlex.quote(str(folder))}/train*.py",
        "a script of yours": "rankup check YOURSCRIPT.py",
        "samples to try it on": "rankup demo --files FOLDER",
        "a model cut in two": "rankup run --nproc 2 language-model --tiny --shard 2",
    }
    if wanted(True):
        following["what the cores did"] = "rankup report last"
    print("\nTry next:")
    list_commands(following)
    return 0


def _port(folder: Path) -> int:
    """Check, port, verify; verify's exit code."""
    from ..port import verify
    from ..port.check import check, formatted
    from ..port.rewrite.command import port_file

    before = Path.cwd()
    os.chdir(folder)  # for short names
    try:
        _say(f"1. check {SCRIPT}, for one GPU: what keeps it from many?")
        with _folded():
            print(formatted(check([Path(SCRIPT)]), "text"), end="")
        _say(f"2. port it: {_PORT}, beside it")
        with _folded("next: "):
            port_file(
                Path(SCRIPT),
                batch="global",
                in_place=False,
                diff=False,
                sync_bn=False,
                force=False,
            )
            print(f"check {_PORT}: {formatted(check([Path(_PORT)]), 'text')}", end="")
        _say("3. verify: does it still compute the same? Both run for a few steps")
        return verify.verify(verify.Request(SCRIPT, _PORT, ("--epochs", "2")))
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _folded(left_out: str | None = None) -> Iterator[None]:
    """Fold what is printed to the width of the terminal, without lines that begin as `left_out`."""
    width = shutil.get_terminal_size((100, 24)).columns
    with contextlib.redirect_stdout(io.StringIO()) as out:
        yield
    for line in out.getvalue().splitlines():
        if left_out is None or not line.startswith(left_out):
            hang = " " * (len(line) - len(line.lstrip()) + 4)
            folded = textwrap.fill(
                line, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
            )
            print(folded)


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
    for heading in ("ranks", "first loss", "last loss", "valid loss", "tokens/s", "time"):
        result.add_column(heading, justify="right")
    result.add_column("speed-up", justify="right")
    for side in (one, two):
        result.add_row(
            str(side.ranks),
            f"{side.losses[0]:.5f}",
            f"{side.losses[-1]:.5f}",
            f"{side.valid_loss:.5f}",
            f"{side.tokens_per_s:,.0f}",
            f"{side.seconds:.1f} s",
            f"{one.seconds / side.seconds:.2f}",
        )
    return result
