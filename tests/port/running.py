"""Running a script as the ranks of a group, in the processes of the rank pool."""

from __future__ import annotations

import builtins
import contextlib
import io
import logging
import os
import random
import re
import runpy
import shutil
import sys
from pathlib import Path

import torch

import rankup
from rankup.port.rewrite.ported import port
from rankup.runtime.context import CONTEXT
from rankup.runtime.hang.state import fingerprint
from rankup.runtime.random_state import STREAMS
from rankup.runtime.world import World, setup
from tests.pool import RankPool

CASES = Path(__file__).parent / "cases"

_NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")


def run_scripts(
    world: World, scripts: list[Path], folder: Path, arguments: tuple[str, ...] = ()
) -> list[str]:
    """What each script prints on this rank; a script that fails, its error as the last line."""
    return [_run(world, script, folder / script.stem, arguments) for script in scripts]


def _run(world: World, script: Path, folder: Path, arguments: tuple[str, ...]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    before, loud, argv = Path.cwd(), builtins.print, sys.argv
    environment, modules, path = dict(os.environ), set(sys.modules), list(sys.path)
    CONTEXT.samples = CONTEXT.units = CONTEXT.last = CONTEXT.counted = None
    CONTEXT.models.clear()
    # As in life each rank begins with random states of its own, until setup() makes them alike.
    random.seed(world.rank)
    torch.manual_seed(world.rank)
    STREAMS.reset()
    joins = rankup.setup
    rankup.setup = _joining  # type: ignore[assignment]
    out = io.StringIO()
    fingerprint.cache_clear()
    try:
        os.chdir(folder)
        sys.argv = [str(script), *arguments]
        sys.path.insert(0, str(script.parent))
        with contextlib.redirect_stdout(out):
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit:
        pass
    finally:
        os.chdir(before)
        rankup.setup = joins
        builtins.print, sys.argv = loud, argv
        sys.path[:] = path
        logging.disable(logging.NOTSET)
        fingerprint.cache_clear()  # the pool's process is itself again, not the script
        os.environ.clear()
        os.environ.update(environment)
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(script.parent)):
                del sys.modules[name]
    return out.getvalue()


def _joining() -> World:
    """`rankup.setup()`, as in a process that is in no group yet."""
    joined = setup()
    if joined.world_size > 1:
        STREAMS.synchronize()
    return joined


def same_output(ours: str, expected: str, tolerance: float = 1e-5) -> str:
    """Where two outputs differ, numbers within a tolerance being equal; empty where nowhere."""
    for number, (one, other) in enumerate(
        zip(ours.splitlines(), expected.splitlines(), strict=False), 1
    ):
        if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
            return f"line {number}: {one!r} instead of {other!r}"
        for a, b in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True):
            if abs(float(a) - float(b)) > tolerance * max(1.0, abs(float(b))):
                return f"line {number}: {a} instead of {b} in {other!r}"
    if len(ours.splitlines()) != len(expected.splitlines()):
        return f"{len(ours.splitlines())} lines instead of {len(expected.splitlines())}: {ours!r}"
    return ""


def _both(world: World, originals: list[Path], ports: list[Path], folder: Path) -> list[str]:
    return run_scripts(world, ports if world.world_size > 1 else originals + ports, folder)


def compare(ranks: RankPool, cases: list[Path], folder: Path, world_sizes: tuple[int, ...]) -> None:
    """A port prints on one rank and on others what its original prints."""
    originals: list[Path] = []
    ports: list[Path] = []
    for kind, made in (("original", originals), ("port", ports)):
        place = folder / kind
        place.mkdir()
        for helper in CASES.glob("helper_*.py"):
            shutil.copy(helper, place)
        for case in cases:
            path = place / f"{kind}_{case.name.split('.')[0]}.py"
            if kind == "original":
                path.write_bytes(case.read_bytes())
            else:
                ported = port(case)
                path.write_bytes(ported.text.encode())
                for module in ported.modules:
                    (place / module.target.name).write_text(module.text)
            made.append(path)
    one = ranks.run(1, _both, originals, ports, folder / "one", timeout=300)[0]
    expected, alone = one[: len(cases)], one[len(cases) :]
    differing = [
        f"{case.name} on 1: {found}"
        for case, ours, theirs in zip(cases, alone, expected, strict=True)
        if (found := same_output(ours, theirs)) or not theirs
    ]
    for world_size in world_sizes:
        output = ranks.run(
            world_size, _both, originals, ports, folder / f"on-{world_size}", timeout=300
        )
        differing += [
            f"{case.name} on {world_size}: {found}"
            for case, ours, theirs in zip(cases, output[0], expected, strict=True)
            if (found := same_output(ours, theirs))
        ]
        assert not any(printed for rank in output[1:] for printed in rank), "one voice"
    assert not differing, "\n".join(differing)
