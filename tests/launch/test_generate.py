"""`rankup generate`: what a run's model makes of a prompt, from any of its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rankup.base.errors import UserError
from rankup.launch.weights import generate
from rankup.recipes import Asked
from rankup.site import rundir
from tests.gallery import Gallery
from tests.launch.handmade import make_run


def _made(
    capsys: pytest.CaptureFixture[str], run: Path | str, *, step: Any = None, **a: Any
) -> str:
    assert generate(str(run), Asked(**a), step) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("ranks")
def test_a_prompt_is_gone_on_from(
    gallery: Gallery,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = gallery.copy("fsdp", tmp_path)
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
    assert generate(str(run), Asked("The ", max_tokens=30), 40) == 0
    said = capsys.readouterr()
    assert said.out.startswith("The ")
    assert "step 40 of run" in said.err
    for asked, said in (
        (Asked(), "give a PROMPT or --file FILE; neither was given"),
        (Asked("a", file), "both were given"),
        (Asked(""), "the prompt is empty"),
        (Asked(file=tmp_path), "is no regular file; give a text"),
    ):
        with pytest.raises(UserError, match=said):
            generate(str(run), asked)
    with pytest.raises(UserError, match="has no moving average of the weights"):
        generate(str(run), Asked("a"), ema=True)
    with pytest.raises(UserError, match=r"no complete checkpoint of step 3 .*there are: 50, 40"):
        generate(str(run), Asked("a"), 3)


def test_a_run_of_a_script_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(UserError, match=r"is of a script, train\.py, and only recipes \(language"):
        generate(str(run), Asked("a"))
