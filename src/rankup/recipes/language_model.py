"""Recipe `language-model`: a causal transformer predicts each token of a text from those before."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from ..base.errors import UserError
from ..base.text import say
from ..data.index import Int64s
from ..data.orders import Computed, identity
from ..parallel.initial import materialize
from ..runtime.keys import derive
from ..runtime.order import Order
from ..runtime.world import setup
from ..train.loop import train
from ..train.optimizer import build_optimizer
from ..train.plan import read_ahead
from ..train.task import Batch, Named, Task
from . import Asked, llama_weights, lora
from .models.llama import Llama
from .models.transformer import Shape, Transformer
from .options import LOGITS_AT_ONCE, TOKENS, LanguageModelOptions
from .text import Text, TokenFile, end_of, open_tokens
from .tokenized import BLOCK, Joined, counts, parse
from .vocabulary import UNKNOWN, opened

IGNORED = -100  # a target that is not there: cross_entropy's own default
_TEMPERATURE = 0.8
_TOP_K = 50
_COUNTED = 1 << 24  # tokens at a time


def model_of(
    options: LanguageModelOptions,
    vocabulary: int,
    logits: npt.NDArray[np.float32] | None = None,
    end: int | None = None,
) -> Transformer | Llama:
    """Build the model for so many different tokens.

    Args:
        logits: what the output's bias starts from, with --prior.
        end: the token behind each document, with --documents mask.
    """
    if (llama := options.llama) is not None:
        longest = max(options.seq_len, llama.longest if llama.vocab_size else 0)
        shape = replace(llama, vocab_size=llama.vocab_size or vocabulary, longest=longest)
        model = Llama(shape, end, options.seq_len)
        if options.lora is not None:
            lora.adapt(model, options.lora, options.lora_scale, options.adapted)
        return model
    gpt = Shape(
        vocabulary,
        options.seq_len,
        options.layers,
        options.dim,
        options.heads,
        options.dropout,
        prior=options.prior,
    )
    return Transformer(gpt, logits, end)


def log_frequencies(file: TokenFile) -> npt.NDArray[np.float32]:
    """Of each token in the training text, in nats.

    Tokens that it does not have, as the unknown word often is, share what Good and Turing expect of
    all that is new: the part of the text that tokens make up which stand there once (Good 1953).
    """
    counts = np.zeros(file.vocab_size, np.float64)
    text = file.splits["train"]
    assert not isinstance(text, Joined)  # a mix has no --prior
    for start in range(0, len(text), _COUNTED):
        counts += np.bincount(text[start : start + _COUNTED], minlength=file.vocab_size)
    unseen = counts == 0
    if unseen.any():
        counts[unseen] = max(1.0, (counts == 1).sum()) / unseen.sum()
    found: npt.NDArray[np.float32] = np.log(counts / counts.sum()).astype(np.float32)
    return found


class Reading:
    """Batches of text, which one thread reads ahead of the training.

    Attributes:
        end: the token behind each document, where batches come with the boundaries of these.
    """

    end: int | None = None

    def read(self, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens and targets of windows by their numbers."""
        raise NotImplementedError

    def batch(self, samples: torch.Tensor) -> Batch:
        tokens, targets = self.read(samples)
        return (tokens, targets, *([] if self.end is None else [boundaries(tokens, self.end)]))

    def ahead(self, coming: Iterable[torch.Tensor]) -> Iterator[tuple[torch.Tensor, Batch]]:
        return read_ahead(self.batch, coming)


def boundaries(tokens: torch.Tensor, end: int) -> torch.Tensor:
    """Return where documents begin among tokens of shape (rows, length), row after row.

    The host finds them: on a GPU it would have to wait for how many there are.

    Args:
        end: the token behind each, which belongs to it. With a row, too, a document ends.

    Returns:
        int32 of shape (documents + 1,): 0, and behind each document.
    """
    last = tokens.numpy() == end
    last[:, -1] = True
    return torch.from_numpy(np.append(0, np.flatnonzero(last) + 1).astype(np.int32))


class Windows(Reading):
    """A text cut into windows of `seq_len` tokens, side by side: an epoch covers each token once.

    Sample i predicts tokens i * seq_len + 1 … (i + 1) * seq_len, each from those before it in the
    window. The last window may be short; its missing targets are ignored.
    """

    def __init__(self, tokens: Text, seq_len: int) -> None:
        self.tokens = tokens
        self.seq_len = seq_len
        self.targets = len(tokens) - 1

    def __len__(self) -> int:
        return -(-self.targets // self.seq_len)

    def count(self, samples: torch.Tensor) -> int:
        missing = len(self) * self.seq_len - self.targets
        return len(samples) * self.seq_len - missing * samples.tolist().count(len(self) - 1)

    def read(self, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = np.empty((len(samples), self.seq_len), np.int64)
        targets = np.full_like(tokens, IGNORED)
        for row, sample in enumerate(samples.tolist()):
            start = sample * self.seq_len
            text = self.tokens[start : start + self.seq_len + 1]
            count = len(text) - 1
            tokens[row, :count], targets[row, :count] = text[:-1], text[1:]
            tokens[row, count:] = text[-1]
        return torch.from_numpy(tokens), torch.from_numpy(targets)


class Several(Reading):
    """The windows of several texts, those of the first one in front.

    Attributes:
        firsts: the number of the first window of each.
    """

    def __init__(self, texts: Sequence[Windows]) -> None:
        self.texts = texts
        sizes = np.cumsum([0, *map(len, texts)])
        self.firsts, self._count = sizes[:-1], int(sizes[-1])

    def __len__(self) -> int:
        return self._count

    def _each(self, samples: torch.Tensor) -> list[tuple[torch.Tensor, Windows, torch.Tensor]]:
        """Return for each text which of the samples are its own, and their numbers there."""
        text = np.searchsorted(self.firsts, samples.numpy(), side="right") - 1
        found = []
        for number in np.unique(text).tolist():
            here = torch.from_numpy(np.flatnonzero(text == number))
            found.append((here, self.texts[number], samples[here] - int(self.firsts[number])))
        return found

    def count(self, samples: torch.Tensor) -> int:
        return sum(text.count(own) for _, text, own in self._each(samples))

    def read(self, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seq_len = self.texts[0].seq_len
        tokens = torch.empty(len(samples), seq_len, dtype=torch.int64)
        targets = torch.empty_like(tokens)
        for here, text, own in self._each(samples):
            tokens[here], targets[here] = text.read(own)
        return tokens, targets


def windows(text: Text | Joined, seq_len: int) -> Windows | Several:
    """Return the samples of a split."""
    if isinstance(text, Joined):
        return Several([Windows(part, seq_len) for part in text.parts])
    return Windows(text, seq_len)


class Mix(Computed):
    """Several texts by their weights: a function of the position in the run.

    Each `BLOCK` positions have a fixed number of samples of each text, in an order of their own.
    The n-th sample of a text is the n-th of its own epochs one after another, of which each has
    every window once. All of the run is one epoch.

    Args:
        positions: samples that the run takes.
        text: that it mixes.
        mix: the weights, as of the option.
    """

    def __init__(self, positions: int, text: Several | Windows, mix: str, seed: int) -> None:
        texts = text.texts if isinstance(text, Several) else [text]
        self.n, self.seed, self.global_batch = positions, seed, None
        self._sizes, self._names, self._counts = [*map(len, texts)], [*parse(mix)], counts(mix)
        self._firsts = text.firsts if isinstance(text, Several) else np.zeros(1, np.int64)
        self.identity = identity("mix", of=mix, sizes=self._sizes)

    @property
    def samples(self) -> int:
        return sum(self._sizes)

    def piece(self, epoch: int, start: int) -> tuple[int, Int64s]:
        """Return the samples of the block of a position, and the position of its first."""
        block = start // BLOCK
        drawn = Order(BLOCK, derive(self.seed, "mix"), block)(torch.arange(BLOCK)).numpy()
        found = np.empty(BLOCK, np.int64)
        before = 0
        for text, count in enumerate(self._counts):
            own = (before <= drawn) & (drawn < before + count)
            passes, places = np.divmod(block * count + drawn[own] - before, self._sizes[text])
            found[own] = self._firsts[text] + self._in_order(text, passes, places)
            before += count
        first = block * BLOCK
        return first, found[: self.n - first]

    def _in_order(self, text: int, passes: Int64s, places: Int64s) -> Int64s:
        """Return the windows at places of the epochs of a text."""
        seed = derive(self.seed, "mix", self._names[text])
        found = np.empty_like(places)
        for epoch in np.unique(passes).tolist():
            here = passes == epoch
            order = Order(self._sizes[text], seed, epoch)
            found[here] = order(torch.from_numpy(places[here])).numpy()
        return found


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Summed loss of logits (batch, length, vocabulary), of any precision, in float32.

    Of a large vocabulary it goes through some rows at a time, and again in the backward: beside the
    logits and their gradient there are never all of them, nor in float32.
    """
    flat, wanted = logits.flatten(0, 1), targets.flatten()
    rows = max(1, LOGITS_AT_ONCE // flat.shape[1])
    if len(flat) <= rows or isinstance(logits, DTensor):
        return _summed(flat, wanted)
    parts = [
        checkpoint(_summed, some, theirs, use_reentrant=False, preserve_rng_state=False)
        for some, theirs in zip(flat.split(rows), wanted.split(rows), strict=True)
    ]
    return torch.stack(parts).sum()


def _summed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")


def compiled_cross_entropy() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the same in one kernel, which never has all logits in float32."""
    compiled = torch.compile(_summed)

    def summed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        kernel = _summed if isinstance(logits, DTensor) else compiled
        return kernel(logits.flatten(0, 1), targets.flatten())

    return summed


class LanguageModel(Task):
    """The task: three texts, the transformer, cross-entropy per token."""

    unit = "tokens"
    train: Windows | Several

    def __init__(self, options: LanguageModelOptions, directory: Path) -> None:
        file = open_tokens(directory)
        options.check(file)
        self.options = options
        self._vocabulary = file.vocab_size
        self._end = file.end if options.documents == "mask" else None
        self._logits = log_frequencies(file) if options.prior else None
        self._cross_entropy = compiled_cross_entropy() if options.compile else cross_entropy
        splits = {name: windows(text, options.seq_len) for name, text in file.splits.items()}
        # Ranks that share sequences make a mask of all their tokens.
        apart = self._end if options.cp in (None, 1) else None
        for text in splits.values():
            text.end = apart
        several = {n.partition(".")[2]: text for n, text in splits.items() if n[:6] == "valid."}
        self.train, self.test = splits["train"], splits["test"]
        self.valid = Named(several) if several else splits["valid"]

    def order(self) -> Mix | None:
        """The order of a mix, which a run's seed gives; of one text it is the run's own."""
        options = self.options
        if options.mix is None:
            return None
        positions = (options.steps or 0) * options.global_batch
        return Mix(positions, self.train, options.mix, options.seed)

    def build_model(self) -> nn.Module:
        return model_of(self.options, self._vocabulary, self._logits, self._end)

    def gives(self, name: str) -> bool:
        return self.options.init is not None and not lora.is_adapter(name)

    def values(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Fill a rank's parameters with the weights of --init, of which it reads its own bytes.

        Raises:
            UserError: the folder's weights are not of this model.
        """
        if self.options.init is not None:
            weights = {name: tensor for name, tensor in tensors.items() if self.gives(name)}
            llama_weights.load(weights, Path(self.options.init))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(model, self.options)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        tokens, targets, *ends = batch
        if self.options.compile:
            tokens, targets, *ends = self._in_one_shape(tokens, targets, *ends)
        return self._cross_entropy(model(tokens, *ends), targets)

    def _in_one_shape(
        self, tokens: torch.Tensor, targets: torch.Tensor, *ends: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return a batch of which all have one graph: with all its rows, and any documents."""
        rows, length = tokens.shape
        missing = self.options.micro_batch - rows
        if missing:
            tokens = F.pad(tokens, (0, 0, 0, missing))
            targets = F.pad(targets, (0, 0, 0, missing), value=IGNORED)
        more = torch.arange(rows + 1, rows + missing + 1, dtype=torch.int32, device=tokens.device)
        ends = tuple(torch.cat((known, more * length)) for known in ends)
        for known in ends:
            torch._dynamo.maybe_mark_dynamic(known, 0)
        return [tokens, targets, *ends]

    def flops_per_unit(self, model: nn.Module) -> float:
        """6 per weight that multiplies, plus attention (Kaplan et al., 2020; PaLM, appendix B).

        A frozen weight has no gradient of its own, and so takes 4.
        """
        weights = 0
        for module in model.modules():
            if isinstance(module, nn.Linear):
                for matrix in module.parameters(recurse=False):
                    weights += (6 if matrix.requires_grad else 4) * matrix.numel()
        wide = self.options.layers * self.options.dim
        return weights + 12.0 * wide * self.options.seq_len


def restored(build_model: Callable[[], nn.Module], tensors: Mapping[str, Any]) -> nn.Module:
    """The model with these weights, in evaluation, on the GPU where there is one.

    Raises:
        UserError: they are of another model.
    """
    with torch.device("meta"):
        model = build_model()
    try:
        model.load_state_dict(tensors, strict=True, assign=True)
    except RuntimeError as error:
        raise UserError(f"the checkpoint is of another model than the run: {error}") from None
    materialize(model, torch.device("cpu"), torch.device("cpu"))  # buffers that it does not hold
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


class Draw:
    """Takes logits of shape (vocabulary,), gives the number of a token.

    The same seed draws the same tokens from the same logits.

    Args:
        forbidden: tokens that are never drawn.
    """

    def __init__(self, asked: Asked, forbidden: Sequence[int] = ()) -> None:
        self._temperature = _TEMPERATURE if asked.temperature is None else asked.temperature
        self._top_k = _TOP_K if asked.top_k is None else asked.top_k
        self._forbidden = list(forbidden)
        self._generator = torch.Generator().manual_seed(asked.seed or 0)

    def __call__(self, logits: torch.Tensor) -> int:
        logits = logits.double().cpu().clone()
        logits[self._forbidden] = -torch.inf
        if self._temperature == 0:
            return int(logits.argmax())
        top = logits.topk(min(self._top_k, len(logits)))
        # What lies far below the best has no weight, however low the temperature is.
        weights = ((top.values - top.values[0]) / self._temperature).exp()
        drawn = torch.multinomial(weights, 1, generator=self._generator)
        return int(top.indices[drawn])


def generate(
    options: LanguageModelOptions, directory: Path, tensors: Mapping[str, Any], asked: Asked
) -> Iterator[str]:
    """The prompt, gone on from: at most `max_tokens` tokens, each drawn from the model's logits.

    Raises:
        UserError: no prompt, or weights of another model.
    """
    words = opened(directory / TOKENS)
    text = asked.text()
    if unknown := dict.fromkeys(words.unknown(text)):
        say(f"not in the vocabulary, and read as {UNKNOWN}: {', '.join([*unknown][:10])}")
    told = words.encode(text)
    if not told:
        raise UserError("the prompt is empty; give some words to go on from")
    # Without the tokens, which may lie elsewhere, and no longer.
    end = end_of(directory / TOKENS) if options.documents == "mask" else None
    model = restored(lambda: model_of(options, words.size, end=end), tensors)
    device = next(model.parameters()).device
    known = options.llama.vocab_size if options.llama is not None else 0
    beyond = range(words.size, known)  # a model may know more tokens than the text's
    draw = Draw(asked, forbidden=(*((0,) if words.unit == "words" else ()), *beyond))
    for _ in range(100 if asked.max_tokens is None else asked.max_tokens):
        window = torch.tensor([told[-options.seq_len :]], device=device)
        with torch.inference_mode():
            told.append(draw(model(window)[0, -1]))
    yield words.decode(told)


def run(options: LanguageModelOptions, directory: Path, resume: bool) -> None:
    """Train on every rank, and print what the run came to.

    The text has been tokenised into `directory` before.
    """
    world = setup()
    task = LanguageModel(options, directory / TOKENS)
    outcome = train(task, options, world, directory, resume=resume)
    if not (world.is_root and outcome.finished):
        return
    for name, loss in (("valid", outcome.valid_loss), ("test", outcome.test_loss)):
        if loss is None:
            continue
        line = f"{name} loss {loss:.4f} (perplexity {math.exp(min(loss, 700)):.1f})"
        for measure, value in outcome.measures.items():
            if measure.startswith(f"{name}_"):
                line += f", {measure.removeprefix(f'{name}_')} {value:.3f}"
        with contextlib.suppress(OSError):  # a reader that is gone does not fail the run
            print(line, flush=True)
