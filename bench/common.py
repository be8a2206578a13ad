"""What the benchmarks share: an environment with the peers, rank processes that stay alive, tables.

`python bench/common.py` alone makes the environment, `bench/.venv-peers`, and says what is in it.

Contestants take turns in slices of about half a second, inside processes that stay alive, in a new
random order each round: what else happens on the machine hits all of them alike.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
VENV = BENCH / ".venv-peers"
PEERS = ("accelerate==1.15.0", "lightning==2.6.6")  # lightning brings Fabric along
_ANSWER_SECONDS = 300


def enter_environment(
    venv: Path = VENV, peers: tuple[str, ...] = PEERS, *, torch: bool = True
) -> None:
    """Go on inside the peers' environment, which is made first where it is not complete.

    Args:
        torch: whether what is measured needs it.
    """
    if Path(sys.prefix).resolve() == venv.resolve():
        return
    stamp = venv / ".complete"
    constraints = ROOT / "constraints.txt"
    wanted = hashlib.sha256(constraints.read_bytes() + repr((peers, str(ROOT))).encode())
    python = venv / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted.hexdigest():
        print(f"making {venv.relative_to(ROOT)} with {', '.join(peers)} …", flush=True)
        stamp.unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "-c", constraints]
        if torch:  # alone, so that nothing picks another one
            subprocess.run([*install, "torch"], check=True)
        subprocess.run([*install, "-e", ROOT, *peers], check=True)
        stamp.write_text(wanted.hexdigest())
    sys.stdout.flush()
    os.execv(python, [str(python), *sys.argv])


@dataclass(frozen=True)
class Effort:
    """How long to measure: `rounds` turns for each contestant, of `slice_seconds` each."""

    quick: bool
    rounds: int
    slice_seconds: float


def arguments(description: str) -> Effort:
    """The command line that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="3 short rounds: about a minute")
    quick = parser.parse_args().quick
    return Effort(True, 3, 0.4) if quick else Effort(False, 9, 0.6)


def start_ranks(
    program: str,
    spec: dict[str, Any],
    world_size: int,
    log: IO[str],
    environments: Sequence[dict[str, str]] | None = None,
) -> list[subprocess.Popen[str]]:
    """Start a program of this folder as ranks, with `spec` as JSON on its command line.

    Args:
        log: gets what they write to stderr.
        environments: of each, if not what torchrun gives them.
    """
    return [
        subprocess.Popen(
            [sys.executable, "-u", BENCH / program, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
        )
        for environment in environments or rank_environments(world_size)
    ]


def answer_of(
    process: subprocess.Popen[str], log: IO[str], name: str, seconds: float = _ANSWER_SECONDS
) -> str:
    """The next line that a process prints; without one the bench ends with the end of its log."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    answer = process.stdout.readline() if ready else ""
    if not answer:
        log.seek(0)
        what = "failed" if ready else f"gave no answer within {seconds:.0f} s"
        raise SystemExit(f"{log.read()[-6000:]}\nbench: {name} {what}")
    return answer


class Team:
    """Rank processes of one thread each that stay alive and run one contestant's slice at a time.

    Args:
        world_size: number of ranks; one rank is a plain process without a launcher's variables.
        directory: where the ranks work, with the text in it (`write_text`).
        options: of the language-model recipe.
        contestants: names in `_loops.LOOPS`.
    """

    program = "_rank.py"

    def __init__(
        self, world_size: int, directory: Path, options: dict[str, Any], contestants: Sequence[str]
    ) -> None:
        self.world_size = world_size
        spec = {"directory": str(directory), "options": options, "contestants": list(contestants)}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the ranks live
        self._ranks = start_ranks(self.program, spec, world_size, self._log)

    def start(self, contestant: str, steps: int) -> None:
        """Let all ranks run `steps` steps of a contestant, after two that do not count."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(f"{contestant} {steps}\n")
            rank.stdin.flush()

    def finish(self) -> float:
        """Seconds per step of the slice that `start` began, as rank 0 saw it."""
        return float(self._answers()[0])

    def slice(self, contestant: str, steps: int) -> float:
        self.start(contestant, steps)
        return self.finish()

    def close(self) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.wait()
        self._log.close()

    def _answers(self) -> list[str]:
        return [answer_of(rank, self._log, "a rank") for rank in self._ranks]


def rank_environments(world_size: int) -> list[dict[str, str]]:
    """What torchrun gives each rank; for a single one, what a shell gives it."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID")
    base = {name: value for name, value in os.environ.items() if name not in launcher}
    base |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    if world_size == 1:
        return [base]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    size = str(world_size)
    base |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "TORCHELASTIC_RUN_ID": "bench"}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0"}
    return [{**base, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]


def write_text(directory: Path, options: dict[str, Any], samples: int) -> dict[str, Any]:
    """Tokenise exactly `samples` training samples into `directory`; the options with the files.

    English that comes with Python, repeated where it is too short. A whole number of global batches
    leaves no contestant a short last one.
    """
    from pydoc_data.topics import topics

    from rankup.recipes.options import LanguageModelOptions

    directory.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(topics[name] for name in sorted(topics))
    options = dict(options)
    as_bytes = options["vocab"] == "byte"
    units: list[Any] = list(text.encode()) if as_bytes else text.split()
    for split, number in (("train", samples), ("valid", 4), ("test", 4)):
        size = number * options["seq_len"] + 1
        taken = (units * (1 + size // len(units)))[:size]
        path = directory / f"{split}.txt"
        path.write_bytes(bytes(taken) if as_bytes else " ".join(taken).encode())
        options[split] = str(path)
    LanguageModelOptions(**options).prepare(directory)
    return options


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """Lower and upper quartile, to see how far the rounds lie apart."""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.3f}…{high:.3f}"


def machine(peers: Sequence[str] = ("accelerate", "lightning")) -> str:
    """The machine in a line: cores, load, versions of torch and of the peers."""
    packages = ("torch", *peers)
    return (
        f"{time.strftime('%Y-%m-%d %H:%M')}, {platform.machine()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f} at the start, Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in packages)
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns, the first flush left and the others flush right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())
    print(flush=True)


def claim(name: str, ours: float, peer: float, unit: str, note: str) -> str:
    """The line by which a claim is judged; more is better in all of them here."""
    values = {"claim": name, "ours": round(ours, 4), "peer": round(peer, 4), "unit": unit}
    return json.dumps({**values, "better": "higher", "note": note}, ensure_ascii=False)


if __name__ == "__main__":
    enter_environment()
    print(f"{VENV.relative_to(ROOT)} is complete: {machine()}")
