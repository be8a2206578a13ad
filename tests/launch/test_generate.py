"""`rankup generate`: what a run's model makes of a prompt, from any of its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rankup.base.errors import UserError
from rankup.launch.generate import generate
from rankup.recipes import find
from rankup.recipes.asked import Asked
from rankup.runtime.world import World
from rankup.site import rundir
from tests.conftest import RunRankup, TextFiles
from tests.launch.handmade import make_run
from tests.pool import RankPool

WORDS = "--tiny --steps 4 --checkpoint-every 2 --dim 32 --seq-len 8 --vocab bpe --vocab-size 300"


def _train(world: World, directory: Path, words: list[str]) -> None:
    find("language-model").run(words, directory, resume=False)


def _run(ranks: RankPool, root: Path, text: TextFiles, *more: str) -> Path:
    words = [*WORDS.split(), "--prior", "--train", str(text.train), *more]
    run = make_run(root / "runs", kind="recipe", target="language-model", args=words, cwd=str(root))
    find("language-model").parse(words).prepare(run)
    ranks.run(2, _train, run, words)
    return run


def _made(
    capsys: pytest.CaptureFixture[str], run: Path | str, *, step: Any = None, **a: Any
) -> str:
    assert generate(str(run), Asked(**a), step) == 0
    return capsys.readouterr().out


def test_a_prompt_is_gone_on_from(
    ranks: RankPool,
    tmp_path: Path,
    small_text: TextFiles,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    run_rankup: RunRankup,
) -> None:
    run = _run(ranks, tmp_path, small_text, "--strategy", "fsdp")
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    # Named by a path from here, while the run was started elsewhere.
    rundir.write(run, rundir.Job(**{**vars(rundir.read(run)), "cwd": str(tmp_path / "runs")}))
    here = os.path.relpath(run)
    first = _made(capsys, here, prompt="The ", max_tokens=30)
    monkeypatch.chdir(tmp_path)
    assert first.startswith("The ")
    assert first == _made(capsys, run, prompt="The ", max_tokens=30, seed=0)
    assert first != _made(capsys, run, prompt="The ", max_tokens=30, seed=1)
    likeliest = _made(capsys, run, prompt="The ", max_tokens=30, temperature=0.0)
    assert likeliest == _made(capsys, run, prompt="The ", max_tokens=30, top_k=1, seed=5)
    assert likeliest == _made(capsys, run, prompt="The ", max_tokens=30, temperature=1e-9, top_k=9)
    file = tmp_path / "prompt.txt"
    file.write_text("The ")
    assert first == _made(capsys, run, file=file, max_tokens=30)
    assert first != _made(capsys, run, prompt="The ", max_tokens=30, step=2)
    done = run_rankup(["generate", run, "The ", "--max-tokens", "30"])
    assert (done.returncode, done.stdout) == (0, first)
    assert "step 4 of run" in done.stderr
    for asked, said in (
        (Asked(), "give a PROMPT or --file FILE; neither was given"),
        (Asked("a", file), "both were given"),
        (Asked(""), "the prompt is empty"),
        (Asked(file=tmp_path), "is no regular file; give a text"),
        (Asked("a", beams=2), "--beams means nothing to a run of language-model; it takes PROMPT"),
    ):
        with pytest.raises(UserError, match=said):
            generate(str(run), asked)
    with pytest.raises(UserError, match=r"no complete checkpoint of step 3 .*there are: 4, 2"):
        generate(str(run), Asked("a"), 3)


def test_a_run_of_a_script_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(UserError, match=r"is of a script, train\.py, and only recipes \(language"):
        generate(str(run), Asked("a"))
