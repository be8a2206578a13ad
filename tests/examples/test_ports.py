"""The single-GPU scripts of `examples/`: what `rankup port` makes of each is the same run."""

from __future__ import annotations

import difflib
import os
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rankup.port.check import check
from rankup.port.rewrite.ported import port
from rankup.runtime.world import World
from tests.conftest import RunRankup
from tests.pool import RankPool
from tests.port.running import run_scripts, same_output

from .samples import EXAMPLES, SIZES, beginning, made_up

SCRIPTS = ("language", "summarize", "classify")
SAVED = {
    "language": ("language_best.pt", "language_final.pt", "language_checkpoint.pt"),
    "summarize": ("summarize_best.pt", "summarize_final.pt"),
    "classify": ("classify_best.pt",),
}


def ported(script: str, folder: Path) -> tuple[Path, Path]:
    """A copy of an example, and beside it what `port` makes of it."""
    original = Path(shutil.copy(EXAMPLES / f"{script}.py", folder))
    target = folder / f"{script}_dist.py"
    target.write_text(port(original).text)
    return original, target


def assert_same_files(ours: Path, expected: Path, names: tuple[str, ...]) -> None:
    for name in names:
        found, wanted = (
            torch.load(folder / name, weights_only=True) for folder in (ours, expected)
        )
        _assert_same(found, wanted, name)


def _assert_same(found: Any, wanted: Any, where: str) -> None:
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5, msg=lambda m: where + m)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for name, value in wanted.items():
            _assert_same(found[name], value, f"{where}: {name}")
    elif isinstance(wanted, list):
        for number, pair in enumerate(zip(found, wanted, strict=True)):
            _assert_same(*pair, f"{where}: {number}")
    else:
        assert found == pytest.approx(wanted, rel=1e-4), where


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_port_is_the_same_run(script: str, ranks: RankPool, tmp_path: Path) -> None:
    """Each printed number and each saved tensor, on one rank and on two."""
    original, target = ported(script, tmp_path)
    words = ("--data", str(made_up(script, tmp_path / "data")), *SIZES[script])
    alone = ranks.run(1, run_scripts, [original, target], tmp_path / "on-1", words)[0]
    expected, on_one = alone
    assert expected.count("epoch 2:") >= 1
    assert not same_output(on_one, expected)
    on_two = ranks.run(2, run_scripts, [target], tmp_path / "on-2", words)
    assert not same_output(on_two[0][0], expected)
    assert on_two[1] == [""], "one voice"
    single = tmp_path / "on-1" / script
    assert sorted(path.name for path in single.iterdir()) == sorted(SAVED[script])
    for folder in (tmp_path / "on-1" / target.stem, tmp_path / "on-2" / target.stem):
        assert_same_files(folder, single, SAVED[script])


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_port_has_no_place_left_to_change(script: str, tmp_path: Path) -> None:
    original, target = ported(script, tmp_path)
    text, before = target.read_text(), original.read_text()
    calls = {name: text.count(f"rankup.{name}(") for name in ("setup", "quiet", "wrap", "save0")}
    assert calls == {"setup": 1, "quiet": 1, "wrap": 1, "save0": before.count("torch.save(")}
    assert text.count("rankup.shard(DataLoader(") == 1
    assert "torch.save(" not in text
    assert "cuda:" not in text
    assert {"RK101", "RK111", "RK141", "RK174"} <= {hit.code for hit in check([original], ["RK"])}
    assert not check([target])


def test_the_page_of_the_course_shows_what_port_changes() -> None:
    """`RANKUP_GOLDEN=write` writes the page's diff anew."""
    page = EXAMPLES.parent / "docs" / "eighteen-todos.md"
    made = port(EXAMPLES / "language.py")
    before = (EXAMPLES / "language.py").read_text()
    names = ("examples/language.py", "examples/language_dist.py")
    lines = difflib.unified_diff(
        *(text.splitlines() for text in (before, made.text)), *names, lineterm=""
    )
    shown = page.read_text()
    block = "```diff\n" + "\n".join(lines) + "\n```"
    written = re.sub(r"```diff\n.*?\n```", lambda _: block, shown, count=1, flags=re.DOTALL)
    if os.environ.get("RANKUP_GOLDEN") == "write":
        page.write_text(written)
    else:
        assert shown == written


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_knows_of_one_gpu_and_can_be_read_at_a_sitting(script: str) -> None:
    text = (EXAMPLES / f"{script}.py").read_text()
    assert 100 <= len(text.splitlines()) <= 200
    assert not re.findall(r"distributed|rank\b|world_size", text.lower())
    reads = ["from rankup.data import open as open_photos"] if script == "classify" else []
    assert re.findall(r"^.*import.*rankup.*$|^.*rankup.*import.*$", text, re.MULTILINE) == reads


def test_a_checkpoint_of_one_gpu_goes_on_on_two(ranks: RankPool, tmp_path: Path) -> None:
    original, target = ported("language", tmp_path)
    words = ("--data", str(made_up("language", tmp_path / "data")), *SIZES["language"])
    ranks.run(1, run_scripts, [original], tmp_path / "before", words)
    checkpoint = tmp_path / "before" / "language" / "language_checkpoint.pt"
    more = (*words, "--epochs", "4", "--resume", str(checkpoint))
    [expected] = ranks.run(1, run_scripts, [original], tmp_path / "on-1", more)[0]
    assert re.findall(r"epoch (\d)", expected) == ["3", "4"]
    assert not same_output(
        ranks.run(2, run_scripts, [target], tmp_path / "on-2", more)[0][0], expected
    )
    folders = tmp_path / "on-2" / "language_dist", tmp_path / "on-1" / "language"
    assert_same_files(*folders, ("language_final.pt", "language_checkpoint.pt"))


def test_photos_out_of_a_pack_are_those_of_the_folder(
    rankup_here: RunRankup, ranks: RankPool, tmp_path: Path
) -> None:
    original, _ = ported("classify", tmp_path)
    folder = made_up("classify", tmp_path / "photos")
    assert rankup_here(["pack", "photos", "photos.h5"], cwd=tmp_path).returncode == 0
    printed = [
        ranks.run(
            1, run_scripts, [original], tmp_path / name, ("--data", str(data), *SIZES["classify"])
        )
        for name, data in (("of-folder", folder), ("of-pack", tmp_path / "photos.h5"))
    ]
    assert printed[0] == printed[1]
    assert "33 photos of 3 classes" in printed[0][0][0]


def _rouge(world: World, pairs: list[tuple[str, str]]) -> list[float]:
    rouge = runpy.run_path(str(EXAMPLES / "summarize.py"))["rouge"]
    return [rouge(*pair) for pair in pairs]


def test_rouge_is_what_the_package_rouge_score_says(ranks: RankPool) -> None:
    """Its `rouge1`, without stems, of these texts."""
    expected = "The old king's cat painted 3 apples, and the moon."
    pairs = [(expected, found) for found in ("A cat, the king and the moon", expected, "")]
    assert ranks.run(1, _rouge, pairs)[0] == pytest.approx([2 / 3, 1, 0])


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_port_is_the_same_run_on_real_data(
    script: str, ranks: RankPool, tmp_path: Path, data_root: Path | None
) -> None:
    """Beginnings of WikiText-2 and XSum, some classes of Caltech's photos, on three ranks."""
    if data_root is None:
        pytest.skip("RANKUP_DATA names no folder of real data")
    original, target = ported(script, tmp_path)
    words = ("--data", str(beginning(script, data_root, tmp_path / "data")), *SIZES[script])
    [expected] = ranks.run(1, run_scripts, [original], tmp_path / "on-1", words)[0]
    on_three = ranks.run(3, run_scripts, [target], tmp_path / "on-3", words)
    assert not same_output(on_three[0][0], expected)
    assert_same_files(tmp_path / "on-3" / target.stem, tmp_path / "on-1" / script, SAVED[script])


def test_fastai_needs_two_lines(tmp_path: Path) -> None:
    original, target = ported("one_gpu_fastai", tmp_path)
    notes = [note.text.partition(",")[0] for note in port(original).left]
    assert notes == ["fastai's bs is the batch of each GPU"]
    assert not check([target])
    assert {"RK101"} <= {hit.code for hit in check([original], ["RK"])}


@pytest.mark.slow
def test_the_port_of_fastai_trains_on_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    """As fastai deals data, the same run needs one batch of everything: 36 samples."""
    shutil.copytree(Path(__file__).parent / "stubs" / "fastai", tmp_path / "fastai")
    original, target = ported("one_gpu_fastai", tmp_path)
    words = ("--lr", "0.01", "--bs")
    folder = tmp_path / "original"
    [expected] = ranks.run(1, run_scripts, [original], folder, (*words, "36"))[0]
    assert expected.count("validation") == 2
    for size in (1, 2, 3):
        folder = tmp_path / f"on-{size}"
        printed = ranks.run(size, run_scripts, [target], folder, (*words, str(36 // size)))
        assert not same_output(printed[0][0], expected)
        assert not any(rank[0] for rank in printed[1:]), "one voice"
        for log in ("downloads.log", "exports.log"):
            assert len((folder / target.stem / log).read_text().splitlines()) == 1, "one rank"
