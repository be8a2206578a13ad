"""Small data that public scripts find beside them: drawn from a seed, so that it can be learnt."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

_SYLLABLES = ("ka", "ri", "mo", "ten", "lu", "sa", "ven", "do", "mi", "ra")


def words(path: Path) -> None:
    """400 names, one a line."""
    chance = random.Random(1)  # noqa: S311
    names = ("".join(chance.choices(_SYLLABLES, k=chance.randint(2, 4))) for _ in range(400))
    path.write_text("\n".join(names) + "\n", encoding="utf-8")


def text(path: Path) -> None:
    """30 kB of such words in sentences."""
    chance = random.Random(2)  # noqa: S311
    lines = []
    while sum(map(len, lines)) < 30_000:
        line = ["".join(chance.choices(_SYLLABLES, k=2)) for _ in range(chance.randint(4, 9))]
        lines.append(" ".join(line).capitalize() + ".\n")
    path.write_text("".join(lines), encoding="utf-8")


def corpus(path: Path) -> None:
    """A folder with such a text as `train.txt`, `valid.txt` and `test.txt`."""
    texts(path)
    for name in ("valid.txt", "test.txt"):
        text(path / name)


def translations(path: Path) -> None:
    """A folder with `en-it.tsv`: 60 sentences, and each with its words spelt backwards."""
    path.mkdir(parents=True)
    chance = random.Random(4)  # noqa: S311
    lines = []
    for _ in range(60):
        words = ["".join(chance.choices(_SYLLABLES, k=2)) for _ in range(chance.randint(3, 8))]
        lines.append(" ".join(words) + "\t" + " ".join(word[::-1] for word in words) + "\n")
    path.joinpath("en-it.tsv").write_text("".join(lines), encoding="utf-8")


def ratings(path: Path) -> None:
    """Tab-separated: 24 users, and five of 40 items that each of them took."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{user}\t{item}\t1\t0\n" for user in range(24) for item in _taken(user)[1:]]
    path.write_text("".join(lines), encoding="utf-8")


def negatives(path: Path) -> None:
    """For each of those users a further item, and nine that were not taken."""
    lines = []
    for user in range(24):
        others = [item for item in range(40) if item not in _taken(user)][user % 20 :][:9]
        items = "".join(f"\t{item}" for item in others)
        lines.append(f"({user},{_taken(user)[0]}){items}\n")
    path.write_text("".join(lines), encoding="utf-8")


def _taken(user: int) -> list[int]:
    return random.Random(user).sample(range(user % 4, 40, 4), 6)  # noqa: S311


def texts(path: Path) -> None:
    """A folder with such a text as `train.txt`."""
    path.mkdir(parents=True)
    text(path / "train.txt")


def picture(path: Path) -> None:
    """One coloured picture of 64 x 64."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    seed = sum(path.name.encode())
    coarse = np.random.default_rng(seed).integers(0, 255, (8, 8, 3)).astype(np.uint8)
    Image.fromarray(coarse.repeat(8, 0).repeat(8, 1)).save(path)


def pictures(path: Path) -> None:
    """A folder with 40 of them."""
    for number in range(40):
        picture(path / f"{number:02}.png")


def masks(path: Path) -> None:
    """A folder with a mask for each of `pictures`: where it is bright."""
    from PIL import Image

    path.mkdir(parents=True)
    for number in range(40):
        coarse = np.random.default_rng(number).integers(0, 2, (8, 8)).astype(np.uint8)
        Image.fromarray(coarse.repeat(8, 0).repeat(8, 1)).save(path / f"{number:02}.png")


def pairs(path: Path) -> None:
    """HDF5: `lr` and `hr`, 40 blurred and sharp pictures of 16 x 16."""
    import h5py

    sharp, blurred = _sharp_and_blurred(40)
    with h5py.File(path, "w") as file:
        file["hr"], file["lr"] = sharp, blurred


def numbered_pairs(path: Path) -> None:
    """The same 12 times, with a data set for each."""
    import h5py

    sharp, blurred = _sharp_and_blurred(12)
    with h5py.File(path, "w") as file:
        for number in range(12):
            file[f"hr/{number}"], file[f"lr/{number}"] = sharp[number], blurred[number]


def gpt2(path: Path) -> None:
    """A folder that `transformers` loads: a GPT-2 of two layers, a tokenizer of letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, PreTrainedTokenizerFast

    letters = " .abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    vocabulary = {"?": 0, **{letter: n for n, letter in enumerate(letters, 1)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    config = GPT2Config(vocab_size=len(vocabulary), n_positions=32, n_embd=16, n_layer=2, n_head=2)
    Path(path, "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")


def _sharp_and_blurred(count: int) -> tuple[np.ndarray, np.ndarray]:
    coarse = np.random.default_rng(3).integers(0, 255, (count, 4, 4)).repeat(4, 1).repeat(4, 2)
    blurred = sum(np.roll(coarse, n, axis=2) for n in (-1, 0, 1)) / 3
    return coarse.astype(np.float32), blurred.astype(np.float32)


KINDS: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (
        *(words, text, texts, corpus, translations, ratings, negatives),
        *(picture, pictures, masks, pairs, numbered_pairs, gpt2),
    )
}
