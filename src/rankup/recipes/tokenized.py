"""Folders of `rankup tokenize` as the text of a run: one of them, or several by weights. No torch.

Nothing is copied: the run directory notes which tokens of which folder are for training, and which
for validation and test; the folder must stay as it is.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.amounts import number
from ..base.errors import UserError, nearest
from ..base.files import write_atomic, write_json
from ..base.text import say
from ..data.stage.place import copy_of
from ..data.tokenize.folder import TOKENIZER, Shards, TokenFolder, is_one, read

SPLITS = ("train", "valid", "test")
BLOCK = 10_000  # samples among which each source of a mix has its whole number
_IN_LOSSES = re.compile(r"(?!.*ema$)[A-Za-z0-9_-]{1,40}")
_HELD_OUT = 0.05  # of a folder without others for valid or test, for each of them; at most
_MOST = 1 << 20  # tokens, which take an 8 B model minutes


@dataclass(frozen=True)
class Joined:
    """Several texts that one split consists of: windows do not run from one into the next."""

    parts: tuple[Shards, ...]


def parse(mix: str) -> dict[str, float]:
    """Return the weights of `web:0.7,code:0.3`, which add up to 1.

    Raises:
        UserError: it is not written so.
    """
    weights: dict[str, float] = {}
    for part in mix.split(","):
        name, colon, text = part.strip().rpartition(":")
        try:
            weight = float(text)
        except ValueError:
            weight = math.nan
        if not colon or not name or not 0 < weight < math.inf:
            raise UserError(
                f"--mix {mix}: {part!r} is no name with a weight above 0; give web:0.7,code:0.3"
            )
        if name in weights:
            raise UserError(f"--mix {mix} names {name} twice; give each source once")
        weights[name] = weight
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def counts(mix: str) -> list[int]:
    """Return how many of each `BLOCK` samples come from each source: the largest remainders.

    Raises:
        UserError: a source has so little weight that it has none.
    """
    shares = {name: weight * BLOCK for name, weight in parse(mix).items()}
    found = {name: int(share) for name, share in shares.items()}
    rest = sorted(shares, key=lambda name: found[name] - shares[name])  # ties: as they are named
    for name in rest[: BLOCK - sum(found.values())]:
        found[name] += 1
    if none := [name for name, count in found.items() if not count]:
        raise UserError(
            f"--mix {mix}: {none[0]} has less than one sample of {BLOCK:,}; give it more, or leave "
            "it away"
        )
    return list(found.values())


def folders(train: Path, mix: str | None) -> dict[str, TokenFolder]:
    """Return the folders that are trained on, by their names.

    Raises:
        UserError: one is not there, or they are of several tokenizers.
    """
    if mix is None:
        return {"": _read(train, "--train")}
    names = parse(mix)
    there = [path.name for path in train.iterdir() if is_one(path)] if train.is_dir() else []
    for name in names:
        if name not in there:
            has = nearest(name, there) if there else "it holds none"
            raise UserError(
                f"--mix: {train} holds no folder {name!r} of `rankup tokenize`; {has} "
                f"Make it by rankup tokenize … --to {train / name}"
            )
    found = {name: read(train / name) for name in names}
    _require_alike({f"--mix {name}": folder for name, folder in found.items()})
    return found


def _read(path: Path, option: str) -> TokenFolder:
    if not is_one(path):
        inside = sorted(one.name for one in path.iterdir() if is_one(one)) if path.is_dir() else []
        raise UserError(
            f"{option} {path} is no folder of tokens; make one by rankup tokenize {path} --to "
            "FOLDER --tokenizer FILE"
            + (
                f", or weigh those in it: --mix {','.join(f'{x}:1' for x in inside)}"
                if inside
                else ""
            )
        )
    return read(path)


def _require_alike(found: dict[str, TokenFolder]) -> None:
    first, *others = found.items()
    for name, folder in others:
        if folder.tokenizer != first[1].tokenizer or folder.end != first[1].end:
            raise UserError(
                f"{first[0]} and {name} were made by different tokenizers, or with different end "
                f"tokens ({first[1].path}, {folder.path}): their numbers mean different tokens; "
                "make both by the same one"
            )


def prepare(
    given: dict[str, Path | None], mix: str | None, tokenizer: Path | None, directory: Path
) -> None:
    """Note in the run directory which tokens the run reads, and keep their tokenizer there.

    Without folders for valid and test, the ends of the training folders are held out; those of a
    mix are validated each by itself, where their names can be in those of losses.

    Args:
        tokenizer: that of the model, which has to be the folders'.

    Raises:
        UserError: a folder is none, or of another tokenizer.
    """
    train = given["train"]
    assert train is not None
    trained = folders(train, mix)
    all_of = {f"--train {name}".strip(): folder for name, folder in trained.items()}
    parts: dict[str, list[tuple[str, int, int]]] = {"train": []}
    for name, path in given.items():
        if name != "train" and path is not None:
            option = f"--{name.replace('.', ' ')}"
            folder = all_of[option] = _read(path, option)
            parts[name] = [(str(folder.path.resolve()), 0, folder.tokens)]
    _require_alike(all_of)
    one = next(iter(trained.values()))
    if tokenizer is not None:
        theirs = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
        if theirs != one.tokenizer:
            raise UserError(
                f"--train {train} was made by another tokenizer than {tokenizer}: their numbers "
                f"mean different tokens; make it anew by rankup tokenize … --tokenizer {tokenizer}"
            )
    whole = {name.partition(".")[0] for name in parts}
    held = [name for name in SPLITS[1:] if name not in whole]
    named = mix is not None and all(map(_IN_LOSSES.fullmatch, trained))
    for source, folder in trained.items():
        where, stop = str(folder.path.resolve()), folder.tokens
        part = min(int(stop * _HELD_OUT), _MOST)
        for name in reversed(held):
            key = f"valid.{source}" if named and name == "valid" else name
            parts.setdefault(key, []).append((where, stop - part, stop))
            stop -= part
        parts["train"].append((where, 0, stop))
    data = (one.path / TOKENIZER).read_bytes()
    if hashlib.sha256(data).hexdigest() != one.tokenizer:
        raise UserError(
            f"{one.path / TOKENIZER} is not the tokenizer by which the folder was made: it was "
            "replaced or cut short; copy it there again"
        )
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / TOKENIZER, data)
    about = {
        "vocab": "bpe",
        "vocab_size": one.vocab_size,
        "end": one.end,
        "folders": {str(x.path.resolve()): x.identity for x in all_of.values()},
        "parts": parts,
    }
    write_json(directory / "tokens.json", about)


def opened(about: dict[str, Any]) -> dict[str, Shards | Joined]:
    """Return the tokens that were noted, by split, of this node's copies where there are any.

    Raises:
        UserError: a folder is no longer as it was when the run began.
    """
    there = {}
    for path, identity in about["folders"].items():
        copy = copy_of(path, os.environ)
        # By each rank; `prepare` has compared the sizes, and staging the hashes.
        there[path] = read(Path(path) if copy is None else copy.root, sizes=False)
        if there[path].identity != identity:
            raise UserError(
                f"{path} holds other tokens than when the run began, which would be another run; "
                "bring them back, or start a new run"
            )
    found: dict[str, Shards | Joined] = {}
    for name, parts in about["parts"].items():
        texts = tuple(Shards(there[path], start, stop) for path, start, stop in parts)
        found[name] = texts[0] if len(texts) == 1 else Joined(texts)
    return found


def say_passes(mix: str, samples: int, train: Any, seq_len: int) -> None:
    """Say how often a run goes through each source of a mix."""
    texts = train.parts if isinstance(train, Joined) else (train,)
    for name, count, text in zip(parse(mix), counts(mix), texts, strict=True):
        passes = samples * count / BLOCK / max(1, -(-(len(text) - 1) // seq_len))
        say(
            f"--mix: {name} is {count / BLOCK:.4g} of the samples, {passes:.2g} passes over its "
            f"{number(len(text))} tokens"
        )
