"""`rankup demo --files`: scripts, and a text, articles and photos to try things on."""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import UserError
from ..base.files import user_path, write_atomic
from ..recipes import BY_HAND, EXAMPLES

SCRIPT = "train.py"
# What is laid out, and the commands that take it.
_COMMANDS = {
    SCRIPT: "rankup check train.py",
    "photos": "rankup pack photos photos.h5",
    "text": "rankup run --local language-model --tiny --train text/train.txt",
    "articles": "rankup run --local summarize.py --data articles --dim 64 --layers 1 --pieces 1000",
    "language.py": "rankup port language.py",
    "summarize.py": "rankup check summarize.py",
    "classify.py": "rankup run --local classify.py --data photos --size 32 --width 16 --epochs 2",
    "by-hand": "torchrun --nproc-per-node 2 by-hand/pipeline.py",
}
_LETTERS = {"train": 135_000, "valid": 7_500, "test": 7_500}  # of the text
_PARTS = {"train": 0.8, "validation": 0.1, "test": 0.1}  # of the articles


def lay_out(place: str) -> int:
    """Write the scripts and the samples into a folder, to try things on.

    Raises:
        UserError: some of them are there already, or the folder cannot be written.
    """
    folder = user_path(place, "--files")
    if there := [name for name in _COMMANDS if os.path.lexists(folder / name)]:
        raise UserError(f"{folder / there[0]} is there already; name a new folder")
    scripts = (SCRIPT, *EXAMPLES, *(f"by-hand/{name}" for name in BY_HAND))
    samples: dict[str, bytes | str] = {name: script(name) for name in scripts}
    samples |= {f"photos/{name}": data for name, data in _drawings()}
    samples |= {f"text/{name}.txt": part for name, part in _text()}
    samples |= {f"articles/{name}.jsonl": part for name, part in _articles()}
    try:
        for name, data in samples.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / name, data)
    except OSError as error:
        raise UserError(
            f"the samples cannot be written into {folder}: {error.strerror}; name another folder"
        ) from None
    if folder.resolve() != Path.cwd():
        print(f"cd {shlex.quote(str(folder))}")
    list_commands(_COMMANDS)
    return 0


def script(name: str) -> bytes:
    """The text of a script that comes with rankup."""
    return (files(__package__) / "example" / f"{name}.txt").read_bytes()


def list_commands(commands: Mapping[str, str]) -> None:
    """Print what each command is for, and the command."""
    width = max(map(len, commands))
    for what, command in commands.items():
        print(f"  {what:{width}}  {command}")


def _text() -> Iterator[tuple[str, str]]:
    """English that every Python has, in three parts."""
    from ..recipes.text import python_text

    text, start = python_text(), 0
    for name, letters in _LETTERS.items():
        yield name, text[start : start + letters]
        start += letters


def _articles() -> Iterator[tuple[str, str]]:
    """JSON lines of the help topics of Python, each with its headline as the summary."""
    from pydoc_data.topics import topics

    lines = []
    for name in sorted(topics):
        headline, _, text = topics[name].strip().partition("\n")
        if headline.strip() and (text := text.strip("*=-\n ")):
            article = {"document": " ".join(text.split()), "summary": headline.strip()}
            lines.append(json.dumps(article) + "\n")
    start = 0
    for name, part in _PARTS.items():
        count = round(part * len(lines))
        yield name, "".join(lines[start : start + count])
        start += count


# --- photos: drawings of ten kinds

_SIDE = 48  # pixels
_COUNTS = {"train": 32, "val": 8}  # of each kind
_QUALITY = 85
_GRAIN = 12.0
_Plane = np.ndarray[Any, np.dtype[np.float64]]


def _drawings() -> Iterator[tuple[str, bytes]]:
    """JPEG files in class folders, by name: `train/disc/000.jpg` …"""
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, count in _COUNTS.items():
        for kind in _KINDS:
            for number in range(count):
                file = io.BytesIO()
                Image.fromarray(_drawing(kind, rng)).save(file, "JPEG", quality=_QUALITY)
                yield f"{split}/{kind}/{number:03}.jpg", file.getvalue()


def _drawing(kind: str, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One of `_KINDS`, uint8 (side, side, 3): two colours, place and size drawn, some grain."""
    radius = rng.uniform(0.5, 0.8)
    middle = rng.uniform(radius - 1, 1 - radius, 2)
    axes = (np.linspace(-1, 1, _SIDE) - centre for centre in middle)
    down, across = np.meshgrid(*axes, indexing="ij")
    inside = _KINDS[kind](down / radius, across / radius)
    back = rng.uniform(0, 255, 3)
    front = (back + rng.uniform(80, 175, 3)) % 255  # never close to each other
    pixels = np.where(inside[:, :, None], front, back)
    return np.clip(pixels + rng.normal(0, _GRAIN, pixels.shape), 0, 255).astype(np.uint8)


def _round(y: _Plane, x: _Plane) -> _Plane:
    return np.hypot(y, x)


def _edge(y: _Plane, x: _Plane) -> _Plane:
    return np.maximum(abs(y), abs(x))


# Where a kind's colour is, of places down and across; seen in a mirror each is the same.
_KINDS = {
    "disc": lambda y, x: _round(y, x) < 1,
    "ring": lambda y, x: abs(_round(y, x) - 0.8) < 0.2,
    "square": lambda y, x: _edge(y, x) < 1,
    "frame": lambda y, x: abs(_edge(y, x) - 0.8) < 0.2,
    "triangle": lambda y, x: (abs(y) < 1) & (abs(x) < (y + 1) / 2),
    "cross": lambda y, x: (_edge(y, x) < 1) & (np.minimum(abs(y), abs(x)) < 0.25),
    "diagonals": lambda y, x: (_edge(y, x) < 1) & (abs(abs(y) - abs(x)) < 0.3),
    "rows": lambda y, x: (_edge(y, x) < 1) & (np.sin(12 * y) > 0),
    "columns": lambda y, x: (_edge(y, x) < 1) & (np.cos(12 * x) > 0),
    "board": lambda y, x: (_edge(y, x) < 1) & (np.sin(9 * y) * np.cos(9 * x) > 0),
}
