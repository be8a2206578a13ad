"""What a folder holds comes back out of every container, byte for byte, and out of theirs too."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rankup
from rankup.data.errors import BadContainer
from rankup.data.inspect import show

from ..conftest import RunRankup
from .containers.squashfs_made import unmounted as unmounted
from .pack.made import ALL, files, request, run, small_units, tree


@pytest.mark.usefixtures("unmounted")
@pytest.mark.parametrize("container", ALL)
def test_photos_come_back(
    tmp_path: Path, data_root: Path | None, container: str, rankup_here: RunRankup
) -> None:
    """Through the verbs; and without its index a container says the same, or what is missing."""
    source = tmp_path / "source"
    if data_root is None:
        tree(source, 60, largest=100_000)
    else:
        for number, photo in enumerate(sorted((data_root / "caltech10").rglob("*.jpg"))[::20]):
            path = source / ("val" if number % 5 == 4 else "train") / photo.parent.name / photo.name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(photo, path)
    name, to = ALL[container]
    for words in (
        ["pack", source, name, *(["--to", to] if to else [])],
        ["inspect", name, "--verify"],
        ["inspect", name, "--extract", "back"],
    ):
        done = rankup_here(words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert files(tmp_path / "back") == files(source)
    out = tmp_path / name
    with_index, classes = _samples(out)
    (out / "index.npz" if out.is_dir() else out.with_name(f"{name}.index.npz")).unlink()
    if container == "hdf5":  # whose data sets are bytes and places, as no others have them
        with pytest.raises(BadContainer, match=r"index .* is missing"):
            _samples(out)
        return
    without, again = _samples(out)
    assert (sorted(without), again) == (with_index, classes)


def _samples(out: Path) -> tuple[list[tuple[str, int | None, bytes]], tuple[str, ...]]:
    with rankup.data.open(out) as samples:
        rows = range(len(samples))
        found = [(samples.path(row), samples.label(row), bytes(samples.read(row))) for row in rows]
        return found, samples.classes


# Names as file systems have them, unicode, dots and blanks in odd places; without the backslash,
# since a name that is a path elsewhere on Windows is refused.
_NAMES = st.text(
    st.characters(exclude_characters="/\\\0", exclude_categories=("Cs",)), min_size=1, max_size=30
).filter(lambda name: not name.startswith(".") and len(name.encode()) < 200)
_SIZES = st.sampled_from([0, 1, 511, 512, 513, 70_000])
_MEMBERS = st.lists(st.tuples(_NAMES, _NAMES, _SIZES), min_size=1, max_size=12)


@pytest.mark.slow
@settings(max_examples=30)
@given(container=st.sampled_from(sorted(ALL)), members=_MEMBERS)
def test_any_names_and_sizes(container: str, members: list[tuple[str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source"
        for number, (parent, leaf, size) in enumerate(members):
            path = source / parent / leaf
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes([number]) * size)
        asked = request(source, folder, container, workers=1)
        with small_units():
            assert run(asked) == 0
        assert show(asked.out, verify=True) == 0
        assert show(asked.out, extract=str(folder / "back")) == 0
        assert files(folder / "back") == files(source)
