"""Samples for the scripts of `examples/`, made up, and sizes with which they take seconds."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Small, and without dropout: its draws are each rank's own.
SIZES = {
    "language": (
        *("--words", "60", "--length", "8", "--dim", "16", "--layers", "1", "--heads", "2"),
        *("--dropout", "0", "--batch-size", "10", "--epochs", "2", "--lr", "0.01"),
    ),
    "summarize": (
        *("--pieces", "330", "--dim", "16", "--layers", "1", "--dropout", "0", "--epochs", "2"),
        *("--batch-size", "10", "--lr", "0.01", "--source-length", "24", "--target-length", "12"),
        *("--beams", "2"),
    ),
    "classify": (
        *("--width", "8", "--depth", "1", "--size", "32", "--batch-size", "10", "--epochs", "2"),
        *("--lr", "0.005"),
    ),
}
WHO = ("anna", "the cat", "a sailor", "the old king", "nobody", "my neighbour")
DID = ("found", "sold", "painted", "lost", "drew a map of", "asked for")
WHAT = ("a boat", "the moon", "three apples", "an empty house", "the way home", "a song")
COLOURS = {"blue": (60, 80, 200), "green": (60, 200, 80), "red": (200, 60, 80)}


def made_up(script: str, folder: Path) -> Path:
    """A few samples of the kind that a script reads, numbers of which no rank's part is equal."""
    folder.mkdir()
    draw = random.Random(1)
    sentences = [f"{draw.choice(WHO)} {draw.choice(DID)} {draw.choice(WHAT)}" for _ in range(99)]
    if script == "language":
        for name, part in {"train": sentences[:60], "valid": sentences[60:75]}.items():
            (folder / f"{name}.txt").write_text(" .\n".join(part))
        (folder / "test.txt").write_text(" .\n".join(sentences[75:]))
    elif script == "summarize":
        for name, rows in (("train", (0, 43)), ("validation", (43, 56)), ("test", (56, 63))):
            news = sentences[slice(*rows)]
            told = [" . ".join([n, *draw.choices(sentences, k=draw.randint(0, 2))]) for n in news]
            lines = [
                json.dumps({"document": text, "summary": n})
                for text, n in zip(told, news, strict=True)
            ]
            (folder / f"{name}.jsonl").write_text("\n".join(lines))
    else:
        noise = np.random.default_rng(1)
        for split, count in (("train", 11), ("val", 5)):
            for name, colour in COLOURS.items():
                (folder / split / name).mkdir(parents=True)
                for number in range(count):
                    pixels = np.clip(noise.normal(colour, 60, (36, 48, 3)), 0, 255)
                    image = Image.fromarray(pixels.astype(np.uint8))
                    image.save(folder / split / name / f"{number}.png")
    return folder


def beginning(script: str, data: Path, folder: Path) -> Path:
    """The first samples of the real data that a script is for."""
    folder.mkdir()
    if script == "classify":
        for split, count in (("train", 12), ("val", 5)):
            for kind in sorted((data / "caltech10" / split).iterdir())[:4]:
                (folder / split / kind.name).mkdir(parents=True)
                for photo in sorted(kind.iterdir())[:count]:
                    shutil.copy(photo, folder / split / kind.name)
        return folder
    name, kind, count = (
        ("xsum", "jsonl", 47) if script == "summarize" else ("wikitext-2", "txt", 99)
    )
    for path in sorted((data / name).glob(f"*.{kind}")):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        part = count if path.stem == "train" else count // 4
        (folder / path.name).write_text("".join(lines[:part]), encoding="utf-8")
    return folder
