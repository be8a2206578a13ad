"""The recipe `summarization`: the same run on any ranks, exact sums, and what it writes down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")
pytest.importorskip("rouge_score")

from rankup.base.errors import UserError
from rankup.recipes import Asked, articles, find, summarization
from rankup.recipes.article_options import ARTICLES, SummarizationOptions
from rankup.recipes.summarization import ROUGE, Summarization, rouge
from rankup.runtime.world import World
from rankup.site import rundir
from tests.conftest import RunRankup
from tests.gallery import Gallery
from tests.pool import RankPool
from tests.train.runs import Report, assert_same_run, train_task

SMALL = SummarizationOptions(
    global_batch=12, micro_batch=4, steps=7, optimizer="sgd", lr=0.05, momentum=0.0,
    weight_decay=0.0, valid_every=7, checkpoint_every=4, model="new", vocab_size=400, layers=1,
    dim=16, heads=2, source_len=24, target_len=8, summaries=5, beams=2,
)  # fmt: skip

# The sizes are the model's own.
OF_FOLDER = replace(SMALL, vocab_size=8000, layers=4, dim=256, heads=4)


def train_articles(
    world: World, directory: Path, options: SummarizationOptions, prepared: Path,
    resume: bool = False,
) -> Report:  # fmt: skip
    """Train on what `options.prepare(prepared)` has made."""
    task = Summarization(options, prepared / ARTICLES)
    return train_task(world, task, options, directory, resume)


def summarise(world: World, directory: Path, options: SummarizationOptions, prepared: Path) -> None:
    summarization.summarise(Summarization(options, prepared / ARTICLES), world, directory)


@pytest.mark.slow
def test_the_same_run_on_one_rank_and_two(
    ranks: RankPool, gallery: Gallery, tmp_path: Path
) -> None:
    """Invariant 1, with dropout on: ddp and fsdp (the embedding is shared)."""
    two, one, parts = gallery.run("summaries"), tmp_path / "1", tmp_path / "fsdp"
    options = find("summarization").parse(rundir.read(two).args)
    ranks.run(1, train_articles, one, options, two)
    assert_same_run(two, one)
    ranks.run(2, train_articles, parts, replace(options, strategy="fsdp"), two)
    assert_same_run(parts, one)
    # The summaries do not depend on who makes them.
    ranks.run(1, summarise, one, options, two)
    found = json.loads((one / "summaries.json").read_text())
    ranks.run(2, summarise, one, options, two)
    assert json.loads((one / "summaries.json").read_text()) == found
    assert [len(found[name]["summaries"]) for name in ("valid", "test")] == [5, 5]
    for part in found.values():
        pairs = [(row["written"], row["found"]) for row in part["summaries"]]
        assert {kind: part[kind] for kind in ROUGE} == rouge(pairs)


@pytest.mark.slow
def test_it_learns_fifty_articles_by_heart(
    ranks: RankPool, tmp_path: Path, data_root: Path | None
) -> None:
    """Data, training, the written model, beam search and ROUGE: what was learnt comes out."""
    fifty = tmp_path / "fifty.jsonl"
    real = data_root and data_root / "xsum" / "train.jsonl"
    some = list(articles.read(real, "") if real and real.is_file() else articles.python_topics())
    fifty.write_text("\n".join(json.dumps(one._asdict()) for one in some[:50]))
    same = str(fifty)
    options = replace(
        SMALL, train=same, valid=same, test=same, vocab_size=1500, dim=128, heads=4, dropout=0.0,
        source_len=48, target_len=64, global_batch=10, micro_batch=10, steps=220, warmup=20,
        optimizer="adamw", lr=3e-3, valid_every=220, checkpoint_every=220, summaries=50,
    )  # fmt: skip
    options.prepare(tmp_path)
    ranks.run(1, train_articles, tmp_path / "run", options, tmp_path)
    ranks.run(1, summarise, tmp_path / "run", options, tmp_path)
    found = json.loads((tmp_path / "run" / "summaries.json").read_text())
    assert len(found["test"]["summaries"]) == 50
    assert found["test"]["rougeL"] >= 0.8


@pytest.mark.slow
def test_tiny_from_the_command_to_a_summary(run_rankup: RunRankup, tmp_path: Path) -> None:
    words = ["run", "--local", "--nproc", "2", "--out", tmp_path / "run", "summarization", "--tiny"]
    done = run_rankup(words, timeout=280)
    assert done.returncode == 0, done.stderr
    for line in ("padding: ", "valid loss ", "test loss ", "valid rouge1 ", "test rouge1 "):
        assert f"\n{line}" in f"\n{done.stdout}"
    assert done.stdout.count("  written ") == 3
    (tmp_path / "article.txt").write_text("The with statement wraps the execution of a block.")
    asked = ["generate", tmp_path / "run", "--file", "article.txt"]
    made = run_rankup(asked, timeout=280)
    assert made.returncode == 0, made.stderr
    assert "summarization, step 20 of run" in made.stderr


@pytest.fixture
def task(tmp_path: Path) -> Summarization:
    SMALL.prepare(tmp_path)
    return Summarization(SMALL, tmp_path / ARTICLES)


def test_the_loss_is_that_of_transformers_and_blind_to_what_fills_up(task: Summarization) -> None:
    torch.manual_seed(1)
    model = task.build_model().eval()
    samples = torch.tensor([3, 40, 7, 21])
    source, target = task.train.batch(samples)
    source = nn.functional.pad(source, (0, 3), value=0)
    target = nn.functional.pad(target, (0, 2), value=-100)
    found = task.loss(model, (source, target)).detach()
    theirs = model(input_ids=source, attention_mask=source != 0, labels=target).loss
    assert found.item() == pytest.approx(theirs.item() * task.train.count(samples), rel=1e-5)
    alone = sum(task.loss(model, task.train.batch(one)).item() for one in samples.split(1))
    assert found.item() == pytest.approx(alone, rel=1e-5)


def test_flops_are_of_each_weight_for_the_tokens_it_sees(task: Summarization) -> None:
    sources, targets = task.train.split.lengths.sum(axis=0)
    square, wide, head = 16 * 16, 2 * 16 * 64, 16 * 400
    encoder, asked = 4 * square + wide, 2 * square
    decoder = 4 * square + 2 * square + wide + head
    expected = 6 * (decoder + (encoder + asked) * sources / targets)
    assert task.flops_per_unit(task.build_model()) == pytest.approx(expected)


def _pretrained(folder: Path, task: Summarization, **config: Any) -> torch.nn.Module:
    """A T5 as the hub has it."""
    from safetensors.torch import save_file

    torch.manual_seed(5)
    model = task.build_model()
    save_file({n: p.detach() for n, p in model.named_parameters()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**task.config, **config}))
    task.tokenizer.write(folder)
    return model


@pytest.mark.slow
def test_it_goes_on_with_the_weights_of_a_folder_on_any_layout(
    ranks: RankPool, tmp_path: Path, task: Summarization
) -> None:
    theirs = tmp_path / "t5"
    theirs.mkdir()
    model = _pretrained(theirs, task)
    options = replace(OF_FOLDER, model=str(theirs), steps=1, lr=0.0, summaries=0, valid_every=1)
    options.prepare(tmp_path / "run")
    here = Summarization(options, tmp_path / "run" / ARTICLES)
    text = here.text(here.train.split.source(0))
    assert text.startswith("summarize: "), "what this T5 was taught to do"
    ranks.run(
        2, train_articles, tmp_path / "out", replace(options, strategy="fsdp"), tmp_path / "run"
    )
    ours = torch.load(tmp_path / "out" / "model-final.pt", weights_only=True)
    expected = model.state_dict()
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


def test_a_folder_that_is_no_such_t5_is_refused(tmp_path: Path, task: Summarization) -> None:
    theirs = tmp_path / "t5"
    theirs.mkdir()
    options = replace(OF_FOLDER, model=str(theirs))

    def refused(match: str) -> None:
        with pytest.raises(UserError, match=match):
            options.prepare(tmp_path / "run")

    refused(r"--model .*tokenizer\.json is no file of the package tokenizers")
    _pretrained(theirs, task)
    (theirs / "config.json").write_text('{"model_type": "bert", "vocab_size": 4}')
    refused("no configuration of a T5")
    _pretrained(theirs, task, model_type="bert")
    refused("no T5 that this recipe knows")
    _pretrained(theirs, task, tie_word_embeddings=False)
    refused("not tied")
    _pretrained(theirs, task)
    (theirs / "model.safetensors").rename(theirs / "pytorch_model.bin")
    refused("no weights in .safetensors")
    _pretrained(theirs, task)
    (theirs / "model.safetensors").write_bytes(b"torn")
    options.prepare(tmp_path / "run")
    with pytest.raises(UserError, match="does not have the weights"):
        Summarization(options, tmp_path / "run" / ARTICLES).build_model()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"strategy": "tp"}, "--strategy ddp, fsdp or hsdp"),
        ({"pp": 2}, "--strategy ddp, fsdp or hsdp"),
        ({"dim": 10, "heads": 3}, "--heads 3"),
        ({"dropout": 1.0}, "drop everything"),
        ({"articles": "1500,300"}, "not three numbers"),
        ({"articles": "1,0,1"}, "not three numbers"),
        ({"dataset": "cnn"}, "give xsum"),
        ({"dataset": "xsum", "train": "x"}, "give one of them"),
        ({"valid": "x"}, "need a --train file"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        replace(SMALL, **wrong)


def test_a_data_set_or_model_that_was_not_fetched_is_named_with_what_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="rankup fetch --dataset xsum"):
        replace(SMALL, dataset="xsum").prepare(tmp_path / "run")
    with pytest.raises(UserError, match="rankup fetch --model t5-large"):
        replace(OF_FOLDER, model="t5-large").prepare(tmp_path / "run")
    with pytest.raises(UserError, match="--vocab-size is of a new model"):
        replace(SMALL, model="t5-large").prepare(tmp_path / "run")


def test_rouge_of_pairs_counted_by_hand() -> None:
    """The pairs of Lin (2004), section 3, with a verb whose forms have no stem in common."""
    written = "police shot the gunman"
    values = {
        "police shoot the gunman": (3 / 4, 1 / 3, 3 / 4),  # one of three pairs of words
        "the gunman shoot police": (3 / 4, 1 / 3, 2 / 4),  # the same words, another order
        "Police SHOT the gunman!": (1, 1, 1),
        "shot": (2 / 5, 0, 2 / 5),  # precision 1, recall 1/4
        "": (0, 0, 0),
    }
    for found, expected in values.items():
        scores = rouge([(written, found)])
        assert [scores[kind] for kind in ROUGE] == pytest.approx(expected)
    # Words count by their stems.
    scores = rouge([("police killed the gunman", "police kill the gunmen")])
    assert [scores[kind] for kind in ROUGE] == pytest.approx([3 / 4, 2 / 3, 3 / 4])
    both = rouge([(written, "shot"), (written, written)])
    assert both["rouge1"] == pytest.approx((2 / 5 + 1) / 2)


@pytest.mark.slow
def test_a_text_of_ones_own_is_summarised(tmp_path: Path, task: Summarization) -> None:
    torch.manual_seed(2)
    tensors = task.build_model().state_dict()
    recipe = find("summarization")
    args = ["--tiny", "--source-len", "24", "--target-len", "8"]
    article = tmp_path / "article.txt"
    article.write_text("The cat sat on the mat, and the dog looked at it for a long time. " * 4)

    def made(asked: Asked) -> list[str]:
        return list(recipe.generate(args, tmp_path, tensors, asked))

    note, *lines = made(Asked(file=article))
    assert note.startswith("note: read up to “…")
    assert note.endswith(", 23 of its 128 tokens")
    assert lines == made(Asked(prompt=article.read_text()))[1:]
    assert made(Asked(prompt="A cat.")) == made(Asked(prompt=" A  cat.\n")), "and without a note"
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    for asked, why in {
        Asked(): "give a PROMPT or --file FILE; neither was given",
        Asked("x", article): "both were given",
        Asked(file=tmp_path / "empty.txt"): "nothing in the text",
        Asked(file=tmp_path / "binary"): "not UTF-8",
        Asked(file=tmp_path / "gone"): "does not exist",
        Asked(file=tmp_path): "is no regular file",
        Asked("x", temperature=1.0): "--temperature means nothing",
    }.items():
        with pytest.raises(UserError, match=why):
            made(asked)
