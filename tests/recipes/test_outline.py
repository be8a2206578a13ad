"""A recipe's model without its data is that of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankup.parallel.pipeline.cut import costs, links
from rankup.parallel.pipeline.run import model_args
from rankup.recipes.language_model import LanguageModel
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.recipes.outline import outline
from tests.conftest import TextFiles


@pytest.mark.parametrize("vocab", ["word", "byte", "bpe"])
def test_it_is_the_model_of_a_run(small_text: TextFiles, tmp_path: Path, vocab: str) -> None:
    """The same shapes, and the same cut into pipeline stages."""
    options = LanguageModelOptions(
        train=str(small_text.train),
        dim=32,
        layers=3,
        seq_len=16,
        vocab=vocab,  # type: ignore[arg-type]
        vocab_size=300 if vocab == "bpe" else None,
        prior=True,
    )
    options.prepare(tmp_path)
    task = LanguageModel(options, tmp_path / TOKENS)
    found = outline(options)
    with torch.device("meta"):
        ours, theirs = found.build_model(), task.build_model()
    shapes = [{name: p.shape for name, p in m.named_parameters()} for m in (ours, theirs)]
    assert shapes[0] == shapes[1]
    batch = task.train.batch(torch.arange(options.micro_batch))
    args = [model_args(*found.example), model_args(task.loss, batch)]
    assert [a.shape for a in args[0]] == [a.shape for a in args[1]]
    work = [costs(links(m), m, a) for m, a in zip((ours, theirs), args, strict=True)]
    assert work[0] == work[1]
