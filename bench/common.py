"""Environment with the peers, command line, claims, tables."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Literal

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
VENV = BENCH / ".venv-peers"
PEERS = ("accelerate==1.15.0",)
MOST = 1.3  # ratio against the same loop by hand above which the bench is wrong, not rankup fast


def enter_environment(
    venv: Path = VENV, peers: tuple[str, ...] = PEERS, *, torch: bool = True
) -> None:
    """Restart this program inside the peers' environment, which is made first where needed.

    Args:
        torch: install torch by itself first, so that no peer chooses another version.
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
        install = [str(python), "-m", "pip", "install", "-qq", "-c", str(constraints)]
        if torch:
            subprocess.run([*install, "torch"], check=True)
        subprocess.run([*install, "-e", str(ROOT), *peers], check=True)
        stamp.write_text(wanted.hexdigest())
    sys.stdout.flush()
    os.execv(python, [str(python), *sys.argv])


@dataclass(frozen=True)
class Effort:
    """How long to measure: `rounds` turns of each contestant, each of `slice_seconds`."""

    quick: bool
    rounds: int
    slice_seconds: float


QUICK, FULL = Effort(True, 3, 0.4), Effort(False, 9, 0.6)


def parse_effort(description: str) -> Effort:
    """Parse the command line that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 short rounds: about a minute")
    return QUICK if parser.parse_args().quick else FULL


def has_programs(skipped: str, *programs: str) -> bool:
    """Return True if all programs are on PATH; otherwise print what is skipped for lack of them."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        print(f"bench: {' and '.join(missing)} not found on PATH; skipped: {skipped}", flush=True)
    return not missing


def data_folder(name: str) -> Path:
    """Return a folder of the real data (`RANKUP_DATA`); end the bench where it is missing."""
    found = Path(os.environ.get("RANKUP_DATA") or ROOT.parent / "shared" / "data") / name
    if not found.is_dir():
        raise SystemExit(f"bench: {name} not found; set RANKUP_DATA to the folder that holds it")
    return found


def machine(*packages: str) -> str:
    """Return date, cores, load and versions in one line."""
    found = [f"{name} {version(name)}" for name in packages]
    return ", ".join(
        [
            time.strftime("%Y-%m-%d %H:%M"),
            platform.machine(),
            f"{os.cpu_count()} cores",
            f"load {os.getloadavg()[0]:.1f} at the start",
            f"Python {platform.python_version()}",
            *found,
        ]
    )


def claim(
    name: str,
    ours: float,
    peer: float,
    unit: str,
    note: str,
    *,
    better: Literal["higher", "lower"] = "higher",
    same_loop: bool = False,
) -> str:
    """Return the JSON line by which a claim is judged.

    Args:
        same_loop: the peer is the same loop written by hand, which nobody can beat by `MOST`.

    Raises:
        SystemExit: a figure is no positive number, or the ratio cannot be.
    """
    if not all(math.isfinite(value) and value > 0 for value in (ours, peer)):
        raise SystemExit(f"bench: {name}: {ours} against {peer} {unit} cannot be; nothing claimed")
    ratio = ours / peer if better == "higher" else peer / ours
    if same_loop and ratio > MOST:
        raise SystemExit(
            f"bench: {name}: {ours:.5g} against {peer:.5g} {unit} is {ratio:.2f} times the same "
            f"loop by hand; more than {MOST} cannot be: the bench is wrong, or the machine too "
            "busy; nothing is claimed"
        )
    values = {"claim": name, "ours": _rounded(ours), "peer": _rounded(peer), "unit": unit}
    return json.dumps({**values, "better": better, "note": note}, ensure_ascii=False)


def _rounded(value: float) -> float:
    """Return five significant digits, or all digits before the point."""
    return round(value) if value >= 1e4 else float(f"{value:.5g}")


def take_turns(
    contestants: Mapping[str, Callable[[], float]], rounds: int, uncounted: int = 1
) -> dict[str, list[float]]:
    """Run every contestant once per round, in a new random order each; return what they return.

    Args:
        uncounted: rounds before those that count.
    """
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(-uncounted, rounds):
        order = random.Random(number).sample(list(contestants), len(contestants))
        for name in order:
            value = contestants[name]()
            if number >= 0:
                found[name].append(value)
    return found


def run(
    words: Sequence[object],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    cores: set[int] | None = None,
) -> str:
    """Run a program, on `cores` alone where they are given; return its last line.

    Raises:
        SystemExit: the program failed; all that it printed.
    """
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        preexec_fn=partial(os.sched_setaffinity, 0, cores) if cores else None,
        check=False,
    )
    if done.returncode:
        sys.exit(f"bench: {words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return (done.stdout.strip().splitlines() or [""])[-1]


def seconds(
    words: Sequence[object],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    cores: set[int] | None = None,
) -> float:
    """Return how long `run` takes."""
    began = time.perf_counter()
    run(words, folder=folder, environment=environment, cores=cores)
    return time.perf_counter() - began


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Return the lower and upper quartile, which show how far the rounds lie apart."""
    if len(values) < 2:
        return ""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.{digits}f}…{high:.{digits}f}"


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the ratio of each round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def paired(above: Sequence[float], below: Sequence[float], digits: int = 3) -> str:
    """Return the median of the rounds' ratios, with quartiles, in words."""
    found = ratios(above, below)
    return f"{median(found):.{digits}f} ({spread(found, digits)})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns, the first flush left and the others flush right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())
    print(flush=True)
