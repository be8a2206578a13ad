"""The recipe `language-model`: each token once, none sees the future, and it learns."""

from __future__ import annotations

import copy
import operator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.attention import _cur_sdpa_kernel_backends
from torch.utils._python_dispatch import TorchDispatchMode

from rankup.base.errors import UserError
from rankup.parallel.context import WholeSequence
from rankup.parallel.initial import initialize
from rankup.recipes import find
from rankup.recipes.language_model import (
    IGNORED,
    LanguageModel,
    Windows,
    cross_entropy,
    log_frequencies,
)
from rankup.recipes.models.transformer import Shape, Transformer
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.recipes.text import TokenFile
from rankup.runtime.world import World
from tests.conftest import TextFiles
from tests.pool import RankPool
from tests.train.runs import losses, records, train_task, train_text

SHAPE = Shape(vocab_size=37, seq_len=12, layers=2, dim=16, heads=4, dropout=0.3)


@given(st.integers(2, 200), st.integers(1, 40))
def test_every_token_is_a_target_once_and_follows_its_own_past(length: int, seq_len: int) -> None:
    text = np.arange(1000, 1000 + length, dtype=np.uint16)
    windows = Windows(text, seq_len)
    tokens, targets = windows.batch(torch.arange(len(windows)))
    assert tokens.shape == targets.shape == (len(windows), seq_len)
    valid = targets != IGNORED
    assert targets[valid].tolist() == text[1:].tolist()
    assert torch.equal(tokens[valid] + 1, targets[valid])
    # What is missing is missing at the end of the last window alone.
    assert valid[:-1].all()
    assert valid[-1].tolist() == sorted(valid[-1].tolist(), reverse=True)


@given(st.integers(2, 200), st.integers(1, 40), st.data())
def test_targets_are_counted_without_reading_them(
    length: int, seq_len: int, data: st.DataObject
) -> None:
    windows = Windows(np.zeros(length, dtype=np.uint16), seq_len)
    samples = torch.tensor(
        data.draw(st.lists(st.integers(0, len(windows) - 1), unique=True)), dtype=torch.int64
    )
    targets = windows.batch(samples)[1]
    assert windows.count(samples) == int((targets != IGNORED).sum())
    assert windows.count(torch.arange(len(windows))) == length - 1


def _model(seed: int = 0) -> Transformer:
    model = Transformer(SHAPE)
    initialize(model, seed)
    return model


@pytest.mark.parametrize("changed", [0, 1, 5, 11])
def test_a_later_token_changes_no_earlier_logit(changed: int) -> None:
    model = _model().eval()
    tokens = torch.randint(37, (3, 12), generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % 37
    with torch.no_grad():
        before, after = model(tokens), model(other)
    assert torch.equal(before[:, :changed], after[:, :changed])
    differs = (before[:, changed:] != after[:, changed:]).any(-1)
    assert differs.all(), "every later position looks back at it"


def test_dropout_is_off_in_evaluation() -> None:
    model = _model()
    tokens = torch.arange(12).unsqueeze(0)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_short_texts_run_through_the_same_model() -> None:
    model = _model().eval()
    tokens = torch.arange(12).unsqueeze(0)
    assert torch.allclose(model(tokens[:, :5]), model(tokens)[:, :5], atol=1e-6)


def test_initial_values_depend_on_seed_and_name_alone() -> None:
    torch.manual_seed(1)
    one = _model().state_dict()
    torch.manual_seed(2)
    torch.randn(100)
    two = _model().state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = _model(seed=1).state_dict()
    weights = [name for name in one if one[name].dim() == 2]
    assert not any(torch.equal(one[name], other[name]) for name in weights)
    assert len({round(float(one[name].sum()), 6) for name in weights}) == len(weights)


def test_initial_deviations_are_those_of_the_model_file() -> None:
    large = Shape(vocab_size=500, seq_len=64, layers=2, dim=64, heads=4, dropout=0.0)
    model = Transformer(large)
    initialize(model, 0)
    for name, parameter in model.state_dict().items():
        if parameter.dim() == 1:
            assert set(parameter.tolist()) <= {0.0, 1.0}
        else:  # what adds to the residual stream, twice in each of two layers, by half
            adds = name.endswith(("output.weight", "down.weight"))
            assert float(parameter.std()) == pytest.approx(0.01 if adds else 0.02, rel=0.1)


def test_a_short_micro_batch_is_no_other_graph(
    small_text: TextFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be compiled anew on the one rank that has it, while the others wait."""
    import torch._dynamo

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    options = _options(small_text)
    options.prepare(tmp_path)
    task = LanguageModel(replace(options, compile=True, dropout=0.0), tmp_path / TOKENS)
    plain = LanguageModel(replace(options, dropout=0.0), tmp_path / TOKENS)
    model = task.build_model()
    compiled = copy.deepcopy(model)
    compiled.compile(backend="eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for samples in (torch.arange(8), torch.arange(3)):
            loss = task.loss(compiled, task.train.batch(samples))
            loss.backward()
            torch.testing.assert_close(loss, plain.loss(model, task.train.batch(samples)))
    torch._dynamo.reset()


def _options(text: TextFiles) -> LanguageModelOptions:
    return LanguageModelOptions(
        16, 8, 30, train=str(text.train), valid=str(text.valid), test=str(text.test),
        seq_len=16, layers=1, dim=32, heads=2, lr=1e-2,
    )  # fmt: skip


def test_it_learns_in_thirty_steps(ranks: RankPool, tmp_path: Path, small_text: TextFiles) -> None:
    options = _options(small_text)
    options.prepare(tmp_path)
    ranks.run(2, train_text, tmp_path / "run", options, tmp_path / "tokens")
    found = losses(tmp_path / "run")
    assert np.mean(found[-5:]) < 0.93 * found[0]


def test_flops_are_those_of_the_matrices_and_of_attention(
    tmp_path: Path, small_text: TextFiles
) -> None:
    options = _options(small_text)
    options.prepare(tmp_path)
    task = LanguageModel(options, tmp_path / "tokens")
    model = task.build_model()
    vocabulary = model.get_parameter("head.weight").shape[0]
    weights = 4 * 32 * 32 + 2 * 32 * 128 + 32 * vocabulary
    assert task.flops_per_unit(model) == 6 * weights + 12 * 1 * 32 * 16


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_a_sequence_longer_than_the_text_is_refused(
    tmp_path: Path, small_text: TextFiles, part: str
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("just five words of text")
    options = replace(_options(small_text), seq_len=5, **{part: str(short)})
    with pytest.raises(UserError, match=f"--seq-len 5 is longer than the {part} text"):
        options.prepare(tmp_path)
    replace(options, seq_len=4).prepare(tmp_path)


@pytest.mark.parametrize(
    ("train", "size", "counts"),
    [
        ([1, 1, 2, 3], 4, [2, 2, 1, 1]),  # two words once: as much is expected of unknown ones
        ([1, 1, 2], 5, [1 / 3, 2, 1, 1 / 3, 1 / 3]),
        ([1, 1], 2, [1, 2]),
        ([0, 1, 1], 2, [1, 2]),
    ],
)
def test_what_a_text_does_not_have_gets_the_share_of_what_it_has_once(
    train: list[int], size: int, counts: list[float]
) -> None:
    tokens = np.array(train, np.uint16)
    found = log_frequencies(TokenFile(size, {"train": tokens}))
    assert np.exp(found) == pytest.approx(np.array(counts) / sum(counts))


class _Largest(TorchDispatchMode):
    """Attributes: `numel`, of the largest float32 tensor that was made."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(one, torch.Tensor) and one.dtype == torch.float32:
                self.numel = max(self.numel, one.numel())
        return result


def test_logits_of_a_large_vocabulary_are_never_all_in_float32() -> None:
    rows, vocabulary = 1500, 50_000
    logits = torch.randn(2, rows // 2, vocabulary, dtype=torch.bfloat16)
    targets = torch.randint(vocabulary, (2, rows // 2))
    targets[0, :100] = IGNORED
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    with _Largest() as largest:
        loss = cross_entropy(ours, targets)
        (loss * 0.5).backward()
    assert largest.numel < rows * vocabulary / 2
    expected = F.cross_entropy(theirs.flatten(0, 1).float(), targets.flatten(), reduction="sum")
    (expected * 0.5).backward()
    torch.testing.assert_close(loss, expected)
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_several_validation_texts_have_a_loss_each_and_one_in_common(
    ranks: RankPool, tmp_path: Path, small_text: TextFiles
) -> None:
    """Each as if it were alone; together they are the mean over all their tokens."""
    web, code = small_text.valid, small_text.test
    found: dict[str, list[dict[str, Any]]] = {}
    for valid in (str(web), str(code), f"web:{web}, code:{code}"):
        words = ["--tiny", "--steps", "2", "--valid-every", "1", "--dropout", "0", "--ema", "0.5"]
        words += ["--vocab", "byte", "--train", str(small_text.train), "--valid", valid]
        options = find("language-model").parse([*words, "--test", str(web)])
        run = tmp_path / str(len(found))
        options.prepare(run)
        ranks.run(2 if "," in valid else 1, train_text, run, options, run / TOKENS)
        found[valid] = records(run)
    first, second, both = found.values()
    sizes = [path.stat().st_size - 1 for path in (web, code)]
    for one, other, line in zip(first, second, both, strict=True):
        for end in ("", "_ema"):
            each = one[f"valid_loss{end}"], other[f"valid_loss{end}"]
            assert line[f"valid_loss_web{end}"] == pytest.approx(each[0], rel=1e-5)
            assert line[f"valid_loss_code{end}"] == pytest.approx(each[1], rel=1e-5)
            mean = sum(map(operator.mul, each, sizes)) / sum(sizes)
            assert line[f"valid_loss{end}"] == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize(
    ("valid", "said"),
    [
        ("web:a,b", "'b' is no NAME:FILE"),
        ("web:a,web:b", "with a name of its own"),
        ("web:a,web_ema:b", "not ending with ema"),
    ],
)
def test_validation_texts_without_names_of_their_own_are_refused(valid: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        find("language-model").parse(["--valid", valid, "--train", "t.txt"])


def test_a_named_validation_text_that_is_not_there_is_named(
    tmp_path: Path, small_text: TextFiles
) -> None:
    words = ["--train", str(small_text.train), "--valid", f"web:{small_text.valid},code:/no.txt"]
    with pytest.raises(UserError, match=r"--valid code:/no\.txt does not exist"):
        find("language-model").parse(words).prepare(tmp_path)


def test_a_parameter_that_is_not_there_is_named_before_a_rank_is_started(
    tmp_path: Path,
) -> None:
    words = ["--tiny", "--freeze", "tokns.*,stm.*"]
    with pytest.raises(UserError, match=r"--freeze 'tokns\.\*' matches no parameter"):
        find("language-model").prepare(words, {}, tmp_path)


def _kernels(world: World, directory: Path, words: list[str]) -> tuple[list[str], int]:
    """Kernels of attention in the order in which the loop tries them, and graphs of attention."""
    options = find("language-model").parse(words)
    assert isinstance(options, LanguageModelOptions)
    order: list[str] = []

    class Seen(LanguageModel):
        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
            if not order:
                order.extend(one.name for one in _cur_sdpa_kernel_backends(with_priority=True))
                attend = torch.compile(WholeSequence().attend, backend="aot_eager", fullgraph=True)
                attend(*torch.randn(3, 1, 2, 8, 8, requires_grad=True), None).sum().backward()
            return super().loss(model, batch)

    torch._dynamo.reset()
    counters.clear()
    assert train_task(world, Seen(options, directory / TOKENS), options, directory, False).outcome
    return order, counters["stats"]["unique_graphs"]


def test_a_run_tries_the_fastest_attention_first(ranks: RankPool, tmp_path: Path) -> None:
    words = ["--tiny", "--vocab", "byte", "--steps", "2"]
    find("language-model").prepare(words, {}, tmp_path)
    [(order, graphs)] = ranks.run(1, _kernels, tmp_path, words)
    assert order == ["CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]
    assert graphs == 1
