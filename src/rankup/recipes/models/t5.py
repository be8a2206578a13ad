"""T5 (Raffel et al., 2020) of the transformers library, new or with the weights of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration
from transformers.utils import logging

from ...base.errors import UserError


def build(config: Mapping[str, Any], weights: Sequence[Path] = ()) -> T5ForConditionalGeneration:
    """The model with its own initial values or, off meta, with those of safetensors files.

    Raises:
        UserError: the files are not of this model.
    """
    model = T5ForConditionalGeneration(T5Config(**config))
    if not weights or model.shared.weight.is_meta:
        return model
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    state: dict[str, torch.Tensor] = {}
    try:
        for path in weights:
            state |= load_file(path)
        # Tied weights stand there under one of their names.
        missing = {name for name, _ in model.named_parameters()} - state.keys()
        if missing:
            raise KeyError(f"{len(missing)} parameters are not there, {min(missing)} is one")
        model.load_state_dict(state, strict=False)
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        where = weights[0].parent
        raise UserError(f"{where} does not have the weights of its model: {error}") from None
    return model


def logits(
    model: nn.Module, source: torch.Tensor, target: torch.Tensor, pad: int, start: int
) -> torch.Tensor:
    """Of each token of `target` (n, T), from those before it and `source` (n, S): (n, T, vocab).

    Args:
        source: int64, filled up with `pad`.
        target: int64, filled up with -100.
        start: the token in front of each target.
    """
    before = nn.functional.pad(target[:, :-1], (1, 0), value=start)
    found: torch.Tensor = model(
        input_ids=source,
        attention_mask=source.ne(pad),
        decoder_input_ids=before.masked_fill(before < 0, pad),
        use_cache=False,
        return_dict=False,
    )[0]
    return found


@torch.no_grad()
def beam_search(
    model: nn.Module, source: torch.Tensor, pad: int, beams: int, longest: int
) -> list[list[int]]:
    """The most probable summary of each row of `source` (n, S) of T5, filled up with `pad`.

    Args:
        longest: tokens of a summary at most.
    """
    logging.set_verbosity_error()  # of options that do not matter here
    generate: Any = model.eval().generate
    found = generate(
        input_ids=source,
        attention_mask=source.ne(pad),
        num_beams=beams,
        do_sample=False,
        max_new_tokens=longest,
        early_stopping=beams > 1,
    )
    rows: list[list[int]] = found.tolist()
    return rows


def flops_per_target(model: nn.Module, sources_per_target: float) -> float:
    """6 per weight and token that it multiplies (Kaplan et al., 2020), attention scores left out.

    Args:
        sources_per_target: tokens of articles for each token of a summary.
    """
    of_source = of_target = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            # What the decoder asks of the article is computed for each token of the article.
            asked = name.endswith(("EncDecAttention.k", "EncDecAttention.v"))
            if name.startswith("encoder.") or asked:
                of_source += module.weight.numel()
            else:
                of_target += module.weight.numel()
    return 6.0 * (of_target + of_source * sources_per_target)
