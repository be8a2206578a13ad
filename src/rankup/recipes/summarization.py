"""Recipe `summarization`: T5 learns to say in a sentence what an article says."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..base.errors import UserError
from ..base.files import write_json
from ..base.text import clean
from ..data.fetch import Pad
from ..data.orders import ByLength
from ..runtime.collectives import all_gather_object, barrier
from ..runtime.world import World, setup
from ..train.optimizer import build_optimizer
from ..train.plan import Place, Plan, micro_batches
from ..train.task import Batch, to_device
from . import Asked, articles, running
from .article_options import ARTICLES, SummarizationOptions
from .models import t5
from .running import IGNORED, cross_entropy, say
from .vocabulary import PIECES, Pieces

ROUGE = ("rouge1", "rouge2", "rougeL")
_EXAMPLES = 3
_WIDTH = 100


class Pairs:
    """The articles of a part as samples: (sources, targets) of a batch, each of its own length.

    Args:
        pad: what sources are filled up with; targets are with `IGNORED`.
        by_length: sample i is the i-th shortest article, so that an evaluation, which takes them
            in turn, fills up little.

    Attributes:
        rows: of each sample, the number of its article.
        keys: of each article, what sorts it: its length, among equals that of its summary.
    """

    def __init__(self, split: articles.Split, pad: int, by_length: bool = False) -> None:
        self.split, self.pad = split, pad
        sources, targets = split.lengths.T
        self.keys = sources * (targets.max() + 1) + targets
        self.rows = np.argsort(self.keys, kind="stable") if by_length else np.arange(len(sources))

    def __len__(self) -> int:
        return len(self.rows)

    def count(self, samples: torch.Tensor) -> int:
        """Tokens of the summaries."""
        return int(self.split.lengths[self.rows[samples.numpy()], 1].sum())

    def batch(self, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 (n, longest article) and (n, longest summary)."""
        rows = self.rows[samples.numpy()].tolist()
        sources = [self.split.source(row).astype(np.int64) for row in rows]
        targets = [self.split.target(row).astype(np.int64) for row in rows]
        return Pad(self.pad)(sources).values, Pad(IGNORED)(targets).values

    def padding(self, batches: Iterable[torch.Tensor]) -> float:
        """The share of the tokens of these batches, in articles and summaries, that fill up."""
        real = places = 0
        for samples in batches:
            lengths = self.split.lengths[self.rows[samples.numpy()]]
            real += int(lengths.sum())
            places += len(lengths) * int(lengths.max(axis=0).sum())
        return 1 - real / places


class Summarization:
    """The task: articles in batches of similar lengths, T5, cross-entropy per token of a summary.

    Attributes:
        by_name: T5 draws its initial values itself, or has those of the weights it goes on with.
    """

    unit = "tokens"
    by_name = False

    def __init__(self, options: SummarizationOptions, directory: Path) -> None:
        about = articles.about(directory)
        self.options, self.directory = options, directory
        self.config, self.weights = about["config"], [Path(file) for file in about["weights"]]
        self.pad, self.end = self.config["pad_token_id"], about["end"]
        self.prefix: str = about["prefix"]
        self.tokenizer = Pieces.read(directory / PIECES, "the run's")
        self.train, self.valid, self.test = (
            Pairs(articles.open_split(directory, name), self.pad, by_length=name != "train")
            for name in articles.SPLITS
        )

    def order(self) -> ByLength:
        return ByLength(self.train.keys, self.options.seed, self.options.global_batch)

    def build_model(self) -> nn.Module:
        return t5.build(self.config, self.weights)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(model, self.options)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        source, target = batch
        start = self.config["decoder_start_token_id"]
        logits = t5.logits(model, source, target, self.pad, start)
        return cross_entropy(logits, target)

    def flops_per_unit(self, model: nn.Module) -> float:
        sources, targets = self.train.split.lengths.sum(axis=0).tolist()
        return t5.flops_per_target(model, sources / targets)

    def text(self, tokens: Iterable[int]) -> str:
        return clean(self.tokenizer.decode([int(token) for token in tokens], special=False).strip())

    def summaries(
        self, state: Mapping[str, Any], batches: Iterable[torch.Tensor], device: torch.device,
        beams: int, longest: int,
    ) -> Iterator[str]:  # fmt: skip
        """Return the summaries that a model with these tensors makes of batches of articles."""
        model: nn.Module = t5.build(self.config)
        model.load_state_dict(state)
        model.to(device)
        for source in batches:
            for found in t5.beam_search(model, source.to(device), self.pad, beams, longest):
                yield self.text(found)


def run(options: SummarizationOptions, directory: Path, resume: bool) -> None:
    """Train on every rank; the articles have been tokenised into `directory` before."""
    world = setup()
    task = Summarization(options, directory / ARTICLES)
    if world.is_root and not resume:
        say(f"padding: {padding(task, options):.1%} of the tokens of the first epoch")
    if running.run(task, options, world, directory, resume) and options.summaries:
        summarise(task, world, directory)


def padding(task: Summarization, options: SummarizationOptions) -> float:
    """The share of what the first epoch computes with that only fills up batches."""
    plan = Plan.of(task, options)
    steps = plan.steps(Place(), plan.steps_per_epoch)
    parts = (step.samples[p.start : p.stop] for step in steps for p in step.micro_batches)
    return task.train.padding(parts)


def summarise(task: Summarization, world: World, directory: Path) -> None:
    """Summaries of validation and test articles into `summaries.json`, and their ROUGE.

    Each rank has the whole model that the run has written, and takes micro-batches in turn: no
    collective runs inside a beam search, whatever strategy has trained.
    """
    barrier()  # until rank 0 has written it
    options = task.options
    state = torch.load(directory / "model-final.pt", map_location="cpu", weights_only=True)
    record = {}
    for name, pairs in (("valid", task.valid), ("test", task.test)):
        # The first articles of the file, the shorter ones first.
        first = torch.from_numpy((pairs.rows < options.summaries).nonzero()[0])
        cuts = micro_batches(len(first), options.micro_batch)[world.rank :: world.world_size]
        mine = [first[cut.start : cut.stop] for cut in cuts]
        sources = (to_device(pairs.batch(samples), world.device)[0] for samples in mine)
        found = task.summaries(state, sources, world.device, options.beams, options.target_len)
        rows = [int(pairs.rows[sample]) for samples in mine for sample in samples]
        everyone = all_gather_object(list(zip(rows, found, strict=True)))
        if world.is_root:
            record[name] = scored(sorted(itertools.chain(*everyone)), task, name)
    if not world.is_root:
        return
    write_json(directory / "summaries.json", record)
    for one in record["valid"]["summaries"][:_EXAMPLES]:
        source = task.valid.split.source(one["article"])
        say(f"article   {task.text(source).removeprefix(task.prefix)}")
        say(f"  written {one['written']}", f"  found   {one['found']}")
    for name, scores in record.items():
        say(f"{name} " + ", ".join(f"{kind} {scores[kind]:.4f}" for kind in ROUGE))


def scored(found: Sequence[tuple[int, str]], task: Summarization, name: str) -> dict[str, Any]:
    """The mean ROUGE of what was found for articles of a part, and the summaries."""
    written = articles.summaries(task.directory, name)
    rows = [{"article": row, "written": written[row], "found": text} for row, text in found]
    return {**rouge([(written[row], text) for row, text in found]), "summaries": rows}


def rouge(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Mean F1 of words, pairs of words and the longest common subsequence, words by their stems
    (Lin, 2004), of (written, found).
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(ROUGE, use_stemmer=True)
    scores = [scorer.score(written, found) for written, found in pairs]
    return {kind: sum(s[kind].fmeasure for s in scores) / max(1, len(scores)) for kind in ROUGE}


def generate(
    options: SummarizationOptions, directory: Path, tensors: Mapping[str, Any], asked: Asked
) -> Iterator[str]:
    """Lines of the summary of a text in a file, or in the prompt."""
    asked.only("summarization", "prompt", "file", "max_tokens", "beams")
    task = Summarization(options, directory / ARTICLES)
    if not (text := " ".join(asked.text().split())):
        raise UserError("there is nothing in the text to summarise")
    ids = task.tokenizer.encode(task.prefix + text)
    most = options.source_len - 1
    if len(ids) > most:
        cut = task.tokenizer.decode(ids[:most], special=False).removeprefix(task.prefix)
        yield f"note: read up to “…{clean(cut[-40:])}”, {most} of its {len(ids)} tokens"
    source = torch.tensor([[*ids[:most], task.end]])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    beams, longest = asked.beams or options.beams, asked.max_tokens or options.target_len
    for summary in task.summaries(tensors, [source], device, beams, longest):
        yield from textwrap.wrap(summary, _WIDTH) or [""]
