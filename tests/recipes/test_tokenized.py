"""Training on folders of `rankup tokenize`: one, several by weight, documents apart."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped]
from typing import Any

import numpy as np
import pytest
import torch

from rankup.base.errors import UserError
from rankup.data.errors import BadContainer
from rankup.data.stage.command import Request as Words
from rankup.data.stage.command import stage as stage_as_typed
from rankup.data.stage.staging import release, stage
from rankup.data.tokenize.command import Request, tokenize
from rankup.data.tokens import Tokens
from rankup.parallel.initial import initialize
from rankup.recipes import find
from rankup.recipes.language_model import IGNORED, LanguageModel, Mix, Several, Windows
from rankup.recipes.llama import LlamaShape
from rankup.recipes.models.llama import Llama
from rankup.recipes.models.transformer import Shape, Transformer
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.recipes.tokenized import BLOCK, counts, parse
from rankup.recipes.vocabulary import Pieces
from rankup.train.task import Named

from ..conftest import RunRankup
from ..gallery import run_by_pool
from ..pool import RankPool
from ..train.runs import losses, train_text

TEXTS = [str(topics[name]) for name in sorted(topics)]
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of one tokenizer, `web` and `code`, and `other` of another one."""
    root = tmp_path_factory.mktemp("corpus")
    for size, names in ((400, ("web", "code")), (300, ("other",))):
        own = root / f"pieces-{size}"
        own.mkdir()
        Pieces.trained(TEXTS[:20], size, (END,)).write(own)
        for name in names:
            (root / f"{name}.jsonl").write_text(
                "".join(
                    json.dumps({"text": text[:3000]}) + "\n"
                    for text in (TEXTS[:12] if name == "web" else TEXTS[12:16])
                )
            )
            source = (str(root / f"{name}.jsonl"),)
            file = str(own / "tokenizer.json")
            tokenize(Request(source, str(root / name), file, workers=1, shard_tokens=3000))
    return root


def options(*words: Any) -> LanguageModelOptions:
    parsed = find("language-model").parse(["--tiny", *map(str, words)])
    assert isinstance(parsed, LanguageModelOptions)
    return parsed


def task(folder: Path, *words: Any) -> LanguageModel:
    own = options(*words)
    own.prepare(folder)
    return LanguageModel(own, folder / TOKENS)


def test_each_token_of_a_folder_is_a_target_once(corpus: Path, tmp_path: Path) -> None:
    whole = np.concatenate([np.fromfile(f, "<u2") for f in sorted(corpus.glob("web/tokens-*.bin"))])
    found = task(tmp_path / "one", "--train", corpus / "web", "--seq-len", 50)
    part = len(whole) // 20
    at = 0
    assert isinstance(found.valid, Windows)
    for split, length in (
        (found.train, len(whole) - 2 * part),
        (found.valid, part),
        (found.test, part),
    ):
        tokens, targets = split.batch(torch.arange(len(split)))
        assert targets[targets != IGNORED].tolist() == whole[at + 1 : at + length].tolist()
        assert tokens[0, 0] == whole[at]
        at += length
    # Folders of their own for valid and test: nothing is held out.
    words = ("--train", corpus / "web", "--valid", corpus / "code", "--test", corpus / "code")
    found = task(tmp_path / "two", *words)
    # Several for valid, each by its name.
    named = f"web:{corpus / 'web'},code:{corpus / 'code'}"
    several = task(tmp_path / "three", "--train", corpus / "web", "--valid", named).valid
    assert isinstance(several, Named)
    assert len(several.parts["code"]) == len(found.test)
    assert several.parts["web"].count(torch.arange(len(several.parts["web"]))) == len(whole) - 1
    assert found.train.count(torch.arange(len(found.train))) == len(whole) - 1
    assert (tmp_path / "two" / TOKENS / "tokenizer.json").is_file()


def test_a_staged_copy_is_compared_and_read(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANKUP_STAGE_DIR", str(tmp_path))
    folder, words = shutil.copytree(corpus / "web", tmp_path / "web"), ("--seq-len", 50)
    whole = (folder / "tokens-00001.bin").read_bytes()
    (folder / "tokens-00001.bin").write_bytes(whole[:100] + b"\0\0" + whole[102:])
    with pytest.raises(BadContainer, match=r"tokens-00001\.bin does not have the hash"):
        stage(folder, reserve=0)
    (folder / "tokens-00001.bin").write_bytes(whole)
    with pytest.raises(UserError, match=r"folders of tokens; stage each .*code .*other .*web$"):
        stage(corpus, reserve=0)
    assert stage_as_typed(Words((str(folder),), reserve="1kB")) == 0
    assert "each shard has the tokens that were written: " in capsys.readouterr().out
    done = stage(folder, reserve=0)
    assert (done.checked, done.shared) == (True, True)
    (done.root / "tokens-00000.bin").write_bytes(bytes(6000))  # to see whose bytes are read
    train = task(tmp_path / "run", "--train", folder, *words).train
    assert not train.batch(torch.arange(50))[0].any()
    assert train.batch(torch.arange(70, 80))[0].any()
    tokens = Tokens(folder, 10)
    assert (tokens.staged, tokens[0][0].tolist()) == (done.root, [0] * 10)
    release()
    assert task(tmp_path / "run", "--train", folder, *words).train.batch(torch.arange(9))[0].any()


class _Text:
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


def test_a_mix_has_its_weights_and_each_window_once_per_pass() -> None:
    mix, sizes = "web:0.7,code:0.25,rare:0.05", (2500, 90, 4000)
    assert sum(counts("a:1,b:1,c:1")) == BLOCK
    assert counts(mix) == [7000, 2500, 500]
    assert list(parse("web:7,code:3").values()) == [0.7, 0.3]
    texts = Several([Windows(_Text(4 * size + 1), 4) for size in sizes])  # type: ignore[arg-type]
    n = 3 * BLOCK + 77
    order = Mix(n, texts, mix, seed=3)
    drawn = order.slice(0, 0, n)
    source = np.searchsorted(texts.firsts, drawn, side="right") - 1
    for block in range(3):
        own = source[block * BLOCK : (block + 1) * BLOCK]
        assert np.bincount(own).tolist() == counts(mix)
        # Not only over a block: a thousand samples are nearly as the weights say.
        assert abs(int((own[:1000] == 0).sum()) - 700) < 100
    for text, size in enumerate(sizes):
        numbers = Counter(drawn[source == text].tolist())
        passes, rest = divmod(int((source == text)[: 3 * BLOCK].sum()), size)
        assert min(numbers.values()) >= passes if passes else len(numbers) >= rest
        assert max(numbers.values()) <= passes + 2
    # The same at any position, whatever was asked for before; another seed is another order.
    fresh = Mix(n, texts, mix, seed=3)
    assert fresh.slice(0, n - 200, n).tolist() == drawn[-200:].tolist()
    assert fresh.slice(0, BLOCK - 5, BLOCK + 5).tolist() == drawn[BLOCK - 5 : BLOCK + 5].tolist()
    longer = Mix(10 * n, texts, mix, seed=3)
    assert longer.slice(0, 0, n).tolist() == drawn.tolist()
    assert Mix(n, texts, mix, seed=4).slice(0, 0, n).tolist() != drawn.tolist()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mix", "web"], "no name with a weight"),
        (["--mix", "web:0.5,code:-1"], "'code:-1' is no name with a weight"),
        (["--mix", "web:1,web:2"], "names web twice"),
        (["--mix", "web:1,code:0.00001"], "code has less than one sample of 10,000"),
        (["--mix", "web:1,text:1"], "holds no folder 'text'"),
        (["--mix", "web:1,other:1"], "by different tokenizers"),
        (["--mix", "web:1,code:1", "--epochs", 1], "give --steps"),
        (["--vocab", "byte", "--mix", "web:1,code:1"], "leave --vocab and --vocab-size away"),
        ([], r"is no folder of tokens; .* --mix code:1,other:1,web:1"),
        (
            ["--valid", "web.jsonl", "--mix", "web:1,code:1"],
            "--valid web.jsonl is no folder of tok",
        ),
        (["--tokenizer", "pieces-300/tokenizer.json", "--mix", "web:1"], "by another tokenizer"),
        (["--mix", "web:1,code:1", "--seq-len", 5000], "--seq-len 5000 is longer than the"),
    ],
)
def test_what_cannot_be_mixed_is_refused(
    corpus: Path, tmp_path: Path, words: list[Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus)
    with pytest.raises(UserError, match=said):
        options("--train", str(corpus), *words).prepare(tmp_path)


def test_a_replaced_tokenizer_is_refused(corpus: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(corpus / "web", tmp_path / "web")
    shutil.copy(corpus / "other" / "tokenizer.json", folder)
    with pytest.raises(UserError, match=r"tokenizer.json is not the tokenizer .* was made"):
        options("--train", folder).prepare(tmp_path / "run")


@pytest.mark.slow
def test_a_mix_is_the_same_run_and_goes_on_anywhere(
    corpus: Path,
    tmp_path: Path,
    ranks: RankPool,
    run_rankup: RunRankup,
    rankup_here: RunRankup,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Half of it on one rank and the rest on two."""
    corpus = shutil.copytree(corpus, tmp_path / "corpus")
    trace = tmp_path / "trace.jsonl"
    words = ["--tiny", "--dropout", "0", "--train", str(corpus), "--schedule", "constant"]
    words += ["--mix", "web:0.7,code:0.3", "--optimizer", "sgd", "--lr", "0.1", "--steps"]
    one, two = tmp_path / "one", tmp_path / "two"
    traced = [*words, "6", "--trace-samples", str(trace)]
    run_by_pool(ranks, 1, "language-model", traced, one)
    assert "--mix: web is 0.7 of the samples" in capfd.readouterr().err
    drawn = [n for line in trace.read_text().splitlines() for n in json.loads(line)["samples"]]
    own = task(tmp_path / "task", "--train", corpus, "--mix", "web:0.7,code:0.3", "--steps", 6)
    order = own.order()
    assert order is not None
    assert drawn == order.slice(0, 0, 6 * 16).tolist()
    run_by_pool(ranks, 1, "language-model", [*words, "3"], two)
    go_on = ["run", "--local", "--nproc", "2", "--resume", two, "language-model", "--steps", "6"]
    done = run_rankup(go_on)
    assert done.returncode == 0, done.stderr
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    last = json.loads((two / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"valid_loss", "valid_loss_web", "valid_loss_code"} <= last.keys()
    # A prompt needs none of the tokens; a run that would go on does, and the same ones.
    os.truncate(corpus / "web" / "tokens-00000.bin", 4000)
    done = rankup_here(["generate", two, "the", "--max-tokens", "3"])
    assert done.returncode == 0, done.stderr
    (corpus / "web" / "tokens.json").write_text("{}")
    done = rankup_here(["run", "--local", "--resume", two, "language-model"])
    assert "holds no complete tokens.json" in done.stderr


def _models(end: int | None) -> list[torch.nn.Module]:
    gpt = Transformer(Shape(50, 24, 2, 16, 2, dropout=0.0), end=end)
    llama = Llama(LlamaShape(2, 16, 4, 2, 32, vocab_size=50), end=end)
    for model in (gpt, llama):
        initialize(model, 1)
    return [gpt, llama]


def test_masked_documents_are_as_if_they_were_alone() -> None:
    end = 7
    documents = [[1, 2, 3, end], [end], [4, 5, end], [6, 8, 9, 10, 11]]
    packed = torch.tensor([[token for one in documents for token in one], [9, 3] * 6 + [end]])
    for masked, plain in zip(_models(end), _models(None), strict=True):
        with torch.no_grad():
            logits = masked(packed)
            alone = [plain(torch.tensor([one])) for one in documents]
        torch.testing.assert_close(logits[:1], torch.cat(alone, 1), rtol=0, atol=1e-5)
        torch.testing.assert_close(logits[1:], plain(packed[1:]), rtol=0, atol=1e-5)
        assert not torch.allclose(logits[0], plain(packed)[0], atol=1e-3)


def test_masked_documents_need_their_ends(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs the ends of documents"):
        options("--documents", "mask").prepare(tmp_path / "text")
    own = options("--documents", "mask", "--train", corpus / "web")
    assert own.layout(2, 2).dp_replicate == 2
    with pytest.raises(UserError, match="the first stage alone of --pp 2 sees"):
        options("--documents", "mask", "--train", corpus / "web", "--pp", 2).layout(2, 2)
    found = task(tmp_path / "web", "--train", corpus / "web", "--documents", "mask")
    about = json.loads((corpus / "web" / "tokens.json").read_text())
    assert found.build_model().end == about["end"]


@pytest.mark.slow
def test_masked_documents_are_the_same_run_under_every_layout(
    corpus: Path, tmp_path: Path, ranks: RankPool
) -> None:
    for model in ("gpt", "llama-160m"):
        words = [
            *("--model", model, "--train", str(corpus / "web"), "--documents", "mask"),
            *("--dropout", "0", "--heads", "2", "--optimizer", "sgd", "--lr", "0.1"),
            *("--steps", "3", "--activation-checkpointing", "selective"),
            *(() if model == "gpt" else ("--kv-heads", "2")),
        ]
        options(*words).prepare(tmp_path / model)
        tokens = tmp_path / model / TOKENS
        ranks.run(1, train_text, tmp_path / model / "one", options(*words), tokens)
        for strategy in ("tp", "fsdp"):
            own, out = options(*words, "--strategy", strategy), tmp_path / model / strategy
            reports = ranks.run(2, train_text, out, own, tokens)
            assert not reports[0].error
            assert losses(out) == pytest.approx(losses(tmp_path / model / "one"), rel=1e-5)
