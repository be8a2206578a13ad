"""Recipe `language-model`: a causal transformer predicts each token of a text from those before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from ..base.errors import UserError
from ..base.text import say
from ..runtime.world import setup
from ..train.optimizer import build_optimizer
from ..train.task import Batch, Named
from . import Asked, llama_weights, lora, running
from .models.llama import Llama
from .models.transformer import Shape, Transformer
from .options import TOKENS, LanguageModelOptions
from .running import IGNORED, compiled_cross_entropy, cross_entropy
from .text import TokenFile, end_of, open_tokens
from .tokenized import Joined
from .vocabulary import UNKNOWN, opened
from .windows import Mix, windows

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
        model = Llama(
            replace(llama, vocab_size=llama.vocab_size or vocabulary, longest=longest), end
        )
        if options.lora is not None:
            lora.adapt(model, options.lora, options.lora_scale, options.adapted)
        return model
    shape = Shape(
        vocabulary,
        options.seq_len,
        options.layers,
        options.dim,
        options.heads,
        options.dropout,
        prior=options.prior,
    )
    return Transformer(shape, logits, end)


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


class LanguageModel:
    """The task: three texts, the transformer, cross-entropy per token."""

    unit = "tokens"

    def __init__(self, options: LanguageModelOptions, directory: Path) -> None:
        file = open_tokens(directory)
        options.check(file)
        self.options = options
        self._vocabulary = file.vocab_size
        self._end = file.end if options.documents == "mask" else None
        self._logits = log_frequencies(file) if options.prior else None
        self._cross_entropy = compiled_cross_entropy() if options.compile else cross_entropy
        splits = {name: windows(text, options.seq_len) for name, text in file.splits.items()}
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
        tokens, targets = batch
        missing = self.options.micro_batch - len(tokens)
        if missing and self.options.compile:  # one shape, one graph
            tokens = F.pad(tokens, (0, 0, 0, missing))
            targets = F.pad(targets, (0, 0, 0, missing), value=IGNORED)
        return self._cross_entropy(model(tokens), targets)

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
    asked.only("language-model", *("prompt", "file", "max_tokens", "temperature", "top_k", "seed"))
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
    """Train on every rank; the text has been tokenised into `directory` before."""
    world = setup()
    task = LanguageModel(options, directory / TOKENS)

    def perplexity(loss: float) -> str:
        return f" (perplexity {math.exp(min(loss, 700)):.1f})"

    running.run(task, options, world, directory, resume, perplexity)
