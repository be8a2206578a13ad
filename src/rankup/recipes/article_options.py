"""Options of `summarization`, and what it prepares before a rank is started. No torch."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..base.errors import UserError
from ..base.files import user_path
from ..base.flags import flag
from ..login import record
from ..parallel.layout import Layout
from ..site import config
from ..train.options import TrainOptions
from . import articles
from .articles import Article
from .options import fetched
from .vocabulary import PIECES, Pieces

ARTICLES = "articles"
NEW = "new"
_FINE_TUNED = "google-t5/t5-base"
_PREFIX = "summarize: "  # what T5 was taught to do with what follows
_XSUM = "xsum"
# T5's own numbers for them.
PAD, END = 0, 1
SPECIAL = ("<pad>", "</s>", "<unk>")


@dataclass(frozen=True)
class SummarizationOptions(TrainOptions):
    """`summarization`: articles, the T5, and how its summaries are made."""

    train: str | None = flag(None, "training articles: JSON lines with document and summary")
    valid: str | None = flag(None, "validation articles; default a tenth of the training ones")
    test: str | None = flag(None, "test articles; default a tenth of the training ones")
    dataset: str | None = flag(None, "instead of files: xsum, as `rankup fetch` brought it")
    articles: str | None = flag(
        None, "so many of the first articles alone: TRAIN,VALID,TEST, as in 1500,300,300"
    )
    model: str | None = flag(
        None, f"`{NEW}`, or a T5's folder or name; default {_FINE_TUNED} where it was fetched"
    )
    vocab_size: int = flag(8000, "subwords of a new model", least=300)
    layers: int = flag(4, "blocks of a new model, in encoder and decoder each", least=1)
    dim: int = flag(256, "width of a new model", least=1)
    heads: int = flag(4, "attention heads of a new model", least=1)
    dropout: float = flag(0.1, "part of the activations dropped in training", least=0)
    source_len: int = flag(512, "tokens of an article at most, the rest is cut off", least=2)
    target_len: int = flag(150, "tokens of a summary at most", least=2)
    beams: int = flag(4, "summaries that the beam search follows at a time", least=1)
    summaries: int = flag(
        100, "summaries made at the end for validation and test, for ROUGE; 0 makes none", least=0
    )

    TINY: ClassVar[Mapping[str, Any]] = {
        **{"model": NEW, "vocab_size": 1000, "layers": 1, "dim": 32, "heads": 2, "lr": 1e-2},
        **{"source_len": 64, "target_len": 16, "summaries": 4, "beams": 2},
        **{"steps": 20, "valid_every": 20, "global_batch": 8, "micro_batch": 4},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % self.heads:
            raise UserError(f"--dim {self.dim} cannot be cut into --heads {self.heads} equal parts")
        if self.dropout >= 1:
            raise UserError(f"--dropout {self.dropout} would drop everything; give less than 1")
        if self.dataset is not None and self.dataset != _XSUM:
            raise UserError(
                f"--dataset {self.dataset} is not known; give {_XSUM}, or your own articles by "
                "--train FILE"
            )
        if self.dataset is not None and (self.train or self.valid or self.test):
            raise UserError("--dataset and files both say what to train on; give one of them")
        if self.train is None and (self.valid or self.test):
            raise UserError("--valid and --test need a --train file beside them")
        if self.strategy in ("tp", "pp", "3d") or any(
            (size or 1) > 1 for size in (self.cp, self.tp, self.pp)
        ):
            raise UserError(
                "this T5 is the one of the transformers library, which is not cut within its "
                "layers, between them, or along a text; give --strategy ddp, fsdp or hsdp"
            )
        self._most()

    def fits(self, layout: Layout) -> bool:
        return layout.cp == layout.tp == layout.pp == 1

    def _most(self) -> dict[str, int | None]:
        """Return how many articles of each part are taken."""
        if self.articles is None:
            return dict.fromkeys(articles.SPLITS)
        words = self.articles.split(",")
        if len(words) != 3 or not all(w.isascii() and w.isdigit() and int(w) > 0 for w in words):
            raise UserError(
                f"--articles {self.articles} are not three numbers above 0, of training, "
                "validation and test; 1500,300,300 for example"
            )
        return dict(zip(articles.SPLITS, map(int, words), strict=True))

    @property
    def identity(self) -> dict[str, Any]:
        data = ("train", "valid", "test", "dataset", "articles", "source_len", "target_len")
        own = (*data, "model", "vocab_size")
        return {**super().identity, **{name: getattr(self, name) for name in own}}

    def prepare(self, directory: Path) -> None:
        """Tokenise the articles into the run directory, on the login node, not on 64 ranks.

        Raises:
            UserError: articles, a model or a library are missing, or are not what they should be.
        """
        _require("tokenizers", "transformers", "rouge_score")
        project = config.load(Path.cwd()).project(Path.cwd())
        parts = articles.splits(self._given(), self._most())
        weights = self._weights(project)
        if weights is None:
            texts = (text for article in parts["train"] for text in article)
            tokenizer = Pieces.trained(texts, self.vocab_size, SPECIAL, prefix_space=True)
            shape, prefix, files = self._shape(tokenizer.size), "", []
        else:
            tokenizer = Pieces.read(weights / PIECES, "--model")
            shape, files = _config_of(weights), _files_of(weights)
            prefix = _PREFIX
            if tokenizer.size > shape["vocab_size"]:
                raise UserError(f"{weights}: its tokenizer has more tokens than the model")
        shape["dropout_rate"] = self.dropout
        about = {
            "vocab_size": shape["vocab_size"],
            "end": shape["eos_token_id"],
            "prefix": prefix,
            "source_len": self.source_len,
            "target_len": self.target_len,
            "config": shape,
            "weights": [str(file) for file in files],
        }
        articles.encode(parts, tokenizer, directory / ARTICLES, about)

    def samples(self, directory: Path) -> int:
        """Return how many samples an epoch has, of what was prepared."""
        return len(articles.open_split(directory / ARTICLES, "train").ends)

    def _given(self) -> dict[str, Iterable[Article] | None]:
        """The articles of each part; None where they are to be held out of the training ones."""
        if self.train is not None:
            paths = {name: getattr(self, name) for name in articles.SPLITS}
            return {name: _articles(path, f"--{name}") for name, path in paths.items()}
        if self.dataset is not None:
            folder = Path(fetched(self.dataset).items[0].path)
            theirs = zip(articles.SPLITS, ("train", "validation", "test"), strict=True)
            return {name: articles.of_arrow(folder, split) for name, split in theirs}
        print("no --train and no --dataset: the help topics of Python", file=sys.stderr)
        return {"train": articles.python_topics(), "valid": None, "test": None}

    def _weights(self, project: Path) -> Path | None:
        """The folder of the model to go on with; None for a new one."""
        sizes = ("vocab_size", "layers", "dim", "heads")
        own = [n for n in sizes if getattr(self, n) != getattr(SummarizationOptions, n)]
        if self.model == NEW or (self.model is None and own):
            return None
        if own:
            raise UserError(
                f"--{own[0].replace('_', '-')} is of a new model, and --model {self.model} has "
                f"its own; leave it away, or give --model {NEW}"
            )
        name = self.model or _FINE_TUNED
        folder = _fetched_model(project, name)
        if folder is None and self.model is not None:
            folder = user_path(self.model, "--model")
            if not folder.is_dir():
                raise UserError(
                    f"--model {self.model} is no folder here, and was not fetched: "
                    f"rankup fetch --model {self.model}, or --model {NEW} for a new one"
                )
        said = f"fine-tuning {name}" if folder else (
            f"a new T5, since {name} is not here (rankup fetch --model {name})"
        )  # fmt: skip
        print(said, file=sys.stderr)
        return folder

    def _shape(self, vocab_size: int) -> dict[str, Any]:
        """A new T5 (Raffel et al., 2020), as its configuration has it."""
        return {
            "model_type": "t5",
            "vocab_size": vocab_size,
            "d_model": self.dim,
            "d_kv": self.dim // self.heads,
            "d_ff": 4 * self.dim,
            "num_layers": self.layers,
            "num_heads": self.heads,
            "pad_token_id": PAD,
            "decoder_start_token_id": PAD,
            "eos_token_id": END,
        }


def _require(*modules: str) -> None:
    """UserError where one of these libraries of the extra `hf` is not here."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"{' and '.join(missing)} not installed for {sys.executable}: pip install 'rankup[hf]'"
        )


def _articles(path: str | None, option: str) -> Iterable[Article] | None:
    return None if path is None else articles.read(user_path(path, option), option)


def _fetched_model(project: Path, name: str) -> Path | None:
    """Return where `rankup fetch` has put a model, the newest where there are several."""
    names = {name, name.rpartition("/")[2]} if name == _FINE_TUNED else {name}
    keys = {f"model:{each}" for each in names}
    found = [
        one for one in record.read(project)
        if one.key.partition("@")[0] in keys and one.items and not one.faults()
    ]  # fmt: skip
    return Path(max(found, key=lambda one: one.at).items[0].path) if found else None


def _config_of(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        kind = found["model_type"]
        numbers = [found["vocab_size"], found["d_model"], found["eos_token_id"]]
        if not all(isinstance(number, int) for number in numbers):
            raise TypeError("sizes are no numbers")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is no configuration of a T5 ({error})") from None
    if kind != "t5" or found.get("tie_word_embeddings") is False:
        raise UserError(
            f"{folder} is no T5 that this recipe knows (model_type {kind!r}"
            + (", its output not tied to its embedding" if kind == "t5" else "")
            + "); t5-small, t5-base, t5-large, t5-3b and t5-11b are"
        )
    return {"pad_token_id": 0, "decoder_start_token_id": 0, **found}


def _files_of(folder: Path) -> list[Path]:
    found = sorted(path.resolve() for path in folder.glob("*.safetensors"))
    if not found:
        raise UserError(
            f"{folder} has no weights in .safetensors, and others are not read: they could run "
            "code that came with them"
        )
    return found
