"""The single-GPU scripts of `examples/` and their ports beside them, which `rankup port` wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankup.port.check import check
from rankup.port.rewrite.ported import port
from tests.pool import RankPool
from tests.port.running import compare, run_scripts, same_output

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(one for one in EXAMPLES.glob("one_gpu_*.py") if not one.stem.endswith("_dist"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_port_is_what_port_makes_of_its_original(script: Path) -> None:
    ported = port(script)
    assert ported.text == ported.target.read_text(encoding="utf-8")
    said = ["fastai's bs is the batch of each GPU"] if "fastai" in script.stem else []
    left = [note.text.partition(",")[0] for note in ported.left]
    assert [text for text in left if text != "every rank evaluates everything"] == said
    assert not check([ported.target])
    assert {"RK101"} <= {one.code for one in check([script])}


@pytest.mark.slow
def test_the_ports_print_the_losses_of_their_originals(ranks: RankPool, tmp_path: Path) -> None:
    names = ("one_gpu_summarization", "one_gpu_images")
    compare(ranks, [EXAMPLES / f"{name}.py" for name in names], tmp_path, (2, 3))


@pytest.mark.slow
def test_the_port_of_fastai_trains_on_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    """As fastai deals data, the same run needs one batch of everything: 36 samples."""
    shutil.copytree(Path(__file__).parent / "stubs" / "fastai", tmp_path / "fastai")
    original, ported = (
        Path(shutil.copy(EXAMPLES / name, tmp_path))
        for name in ("one_gpu_fastai.py", "one_gpu_fastai_dist.py")
    )
    asked = ("--lr", "0.01", "--bs")
    folder = tmp_path / "original"
    [expected] = ranks.run(1, run_scripts, [original], folder, (*asked, "36"))[0]
    assert expected.count("validation") == 2
    for size in (1, 2, 3):
        folder = tmp_path / f"on-{size}"
        printed = ranks.run(size, run_scripts, [ported], folder, (*asked, str(36 // size)))
        assert not same_output(printed[0][0], expected)
        assert not any(rank[0] for rank in printed[1:]), "one voice"
        for log in ("downloads.log", "exports.log"):
            assert len((folder / ported.stem / log).read_text().splitlines()) == 1, "one rank"
