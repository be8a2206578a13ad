"""The pages on containers say what is true: their commands and Python snippets run as they stand.

What a snippet prints is compared with the text below it.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ..conftest import RunRankup
from ..slurm.fixtures import require

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted((DOCS / "containers").glob("*.md"))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# An image of 8 x 8 pixels, of one colour.
_PHOTO = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4"
    "UG1RV19iZ2hnPk1xeXBkeFxlZ2P/2wBDARESEhgVGC8aGi9jQjhCY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2Nj"
    "Y2NjY2NjY2NjY2NjY2NjY2NjY2P/wAARCAAIAAgDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAX/xAAUEAEA"
    "AAAAAAAAAAAAAAAAAAAA/8QAFAEBAAAAAAAAAAAAAAAAAAAABP/EABQRAQAAAAAAAAAAAAAAAAAAAAD/2gAMAwEAAhED"
    "EQA/AJ4AxD//2Q=="
)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with `photos/{train,val}/{beagle,dingo}/0001.jpg`, no two of the same bytes."""
    for split, count in (("train", 4), ("val", 2)):
        for number in range(2 * count):
            name = f"{split}/{('beagle', 'dingo')[number % 2]}/{number // 2:04d}.jpg"
            said = f"{name}, no. {number}".encode()
            comment = b"\xff\xfe" + (len(said) + 2).to_bytes(2, "big") + said
            path = tmp_path / "photos" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_PHOTO[:2] + comment + _PHOTO[2:])
    return tmp_path


def test_there_is_a_page_for_each_container() -> None:
    assert {path.stem for path in PAGES} == {"hdf5", "arrow", "tar", "squashfs", "files"}


# These import Hugging Face datasets and webdataset, and one shows what the others show.
_LONG = ("arrow", "squashfs", "tar")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in _LONG else [])
        for page in PAGES
    ],
)
def test_what_a_page_shows_runs_and_prints_what_it_says(page: Path, photos: Path) -> None:
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    snippets = 0
    for place, (kind, text) in enumerate(blocks):
        if kind == "console":
            for line in re.findall(r"^\$ ([^#\n]*)", text, re.MULTILINE):
                _run(["bash", "-c", line], photos)
        elif kind == "python":
            snippets += 1
            printed = _run([sys.executable, "-c", text], photos)
            following = blocks[place + 1] if place + 1 < len(blocks) else ("", "")
            assert following[0] == "text", f"{page.name}: nothing says what this prints:\n{text}"
            assert printed == following[1]
    assert snippets >= 1


_FEEDING = [DOCS / "feeding.md", DOCS / "data-sets.md", DOCS / "resume-anywhere.md"]
_OF_DALI = [DOCS / "where-to-keep-data.md", DOCS / "dali.md"]


@pytest.mark.parametrize(
    "pages", [[DOCS / "pack.md", *_FEEDING], pytest.param(_OF_DALI, marks=pytest.mark.slow)]
)
def test_the_snippets_of_the_pages_run_one_after_another(
    pages: list[Path], photos: Path, rankup_here: RunRankup
) -> None:
    known = [one for one in ("nvidia", "nvidia.dali") if pages is _OF_DALI]
    if not all(map(importlib.util.find_spec, known)):
        require("no DALI: pip install 'rankup[dali]'", os.environ)
    assert rankup_here(["pack", "photos", "photos.h5"]).returncode == 0
    blocks = [block for page in pages for block in _BLOCK.findall(page.read_text("utf-8"))]
    snippets = [text for kind, text in blocks if kind == "python"]
    printed = "".join(text for kind, text in blocks if kind == "text")
    said = [text for kind, text in blocks if kind == "stderr"]
    assert _run([sys.executable, "-c", "".join(snippets)], photos, said) == printed


def test_options_that_the_pages_name_are_there(rankup_here: RunRankup) -> None:
    known = {
        verb: set(re.findall(r"--[a-z-]+", rankup_here([verb, "--help"]).stdout))
        for verb in ("bench-data", "inspect", "stage", "run", "pack")
    }
    srun = {"--nodes", "--cpus-per-task", "--pty"}
    every = set().union(*known.values()) | srun
    for page in (DOCS / "pack.md", *_FEEDING, *_OF_DALI):
        text = page.read_text("utf-8")
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= every
        for verb, line in re.findall(r"^\$ rankup ([a-z-]+) ?(.*)", text, re.MULTILINE):
            named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)
            assert set(named) <= known[verb], line


def test_links_lead_to_pages() -> None:
    for page in (DOCS / "pack.md", *_FEEDING, *_OF_DALI, *PAGES):
        links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).is_file()] == [], page


def _run(words: list[str], folder: Path, said: Sequence[str] = ()) -> str:
    """What a command prints; each of `said` has to be in its stderr."""
    beside = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{beside}:{os.environ['PATH']}",
        "COLUMNS": "100",
        "HF_HOME": str(folder / "hf"),
        "HF_DATASETS_OFFLINE": "1",
    }
    program = shutil.which(words[0], path=environment["PATH"]) or words[0]
    done = subprocess.run(
        [program, *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    assert [one for one in said if one not in done.stderr] == []
    return done.stdout
