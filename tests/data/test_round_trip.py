"""What a folder holds comes back out of every container, byte for byte, and out of theirs too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rankup
from rankup.data.inspect import show
from rankup.data.pack.command import pack

from ..conftest import RunRankup
from .pack.made import ALL, files, request, run, tree


@pytest.fixture(params=["caltech10", pytest.param("imagenet-sample", marks=pytest.mark.slow)])
def photos(request: pytest.FixtureRequest, data_root: Path | None, tmp_path: Path) -> Path:
    """A folder of real photos; generated files where there are none."""
    if data_root is not None:
        return data_root / str(request.param)
    return tree(tmp_path / "generated", 400, largest=150_000)


@pytest.mark.parametrize("container", ALL)
def test_photos_come_back(
    tmp_path: Path,
    photos: Path,
    container: str,
    run_rankup: RunRankup,
    rankup_here: RunRankup,
) -> None:
    name, to = ALL[container]
    words = ["pack", photos, name, *(["--to", to] if to else [])]
    done = run_rankup(words)
    assert done.returncode == 0, done.stderr
    done = rankup_here(["inspect", name, "--verify"])
    assert done.returncode == 0, done.stdout + done.stderr
    done = rankup_here(["inspect", name, "--extract", "back"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert files(tmp_path / "back") == files(photos)


@pytest.mark.parametrize("container", ALL)
def test_without_its_index_a_container_says_the_same(tmp_path: Path, container: str) -> None:
    source = tree(tmp_path / "source", 80)
    asked = request(source, tmp_path, container)
    assert run(asked) == 0
    out = Path(asked.out)
    with rankup.data.open(out) as samples:
        with_index = [
            (samples.path(i), samples.label(i), bytes(samples.read(i))) for i in range(80)
        ]
        classes = samples.classes
    (out / "index.npz" if out.is_dir() else out.with_name(f"{out.name}.index.npz")).unlink()
    with rankup.data.open(out) as samples:
        without = [(samples.path(i), samples.label(i), bytes(samples.read(i))) for i in range(80)]
        assert samples.classes == classes
    assert sorted(without) == with_index


# Names as file systems have them, unicode, dots and blanks in odd places; without the backslash,
# since a name that is a path elsewhere on Windows is refused.
_NAMES = st.text(
    st.characters(exclude_characters="/\\\0", exclude_categories=("Cs",)), min_size=1, max_size=30
).filter(lambda name: not name.startswith(".") and len(name.encode()) < 200)
_SIZES = st.sampled_from([0, 1, 511, 512, 513, 70_000])


@pytest.mark.parametrize("container", ALL)
@settings(
    deadline=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(names=st.lists(st.tuples(_NAMES, _NAMES, _SIZES), min_size=1, max_size=12))
def test_any_names_and_sizes(
    container: str, names: list[tuple[str, str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    source = folder / "source"
    for number, (parent, name, size) in enumerate(names):
        path = source / parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * size)
    asked = request(source, folder, container)
    assert run(asked) == 0
    assert show(asked.out, verify=True) == 0
    assert show(asked.out, extract=str(folder / "back")) == 0
    assert files(folder / "back") == files(source)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_classes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(100_000):
        folder = f"{source}/class{number:06d}"
        os.mkdir(folder)
        with open(f"{folder}/x", "wb", buffering=0) as file:
            file.write(b"%d" % number)
    for container in ("hdf5", "arrow"):
        asked = request(source, tmp_path, container)
        assert run(asked) == 0
        with rankup.data.open(asked.out) as samples:
            assert len(samples) == len(samples.classes) == 100_000
            assert bytes(samples.read(77_777)) == b"77777"
            assert samples.class_name(77_777) == "class077777"
        assert show(asked.out, verify=True) == 0
    # pytest would take most of a minute for it.
    subprocess.run(["rm", "-r", source], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("container", ALL)
def test_more_than_4_gib(tmp_path: Path, container: str) -> None:
    """One sample over 4 GiB, with others behind it; holes in the source take no space."""
    source = tmp_path / "source"
    source.mkdir()
    large = source / "b-large"
    with large.open("wb") as file:
        file.truncate((4 << 30) + 12345)
        file.seek((4 << 30) + 99)
        file.write(b"near the end")
    (source / "a-small").write_bytes(b"small")
    (source / "c-small").write_bytes(b"small too")
    asked = request(source, tmp_path, container)
    assert run(asked) == 0
    with rankup.data.open(asked.out) as samples:
        assert bytes(samples.read(0)) == b"small"
        assert bytes(samples.read(2)) == b"small too"
        view = samples.read(1)
        assert len(view) == (4 << 30) + 12345
        assert bytes(view[(4 << 30) + 99 :][:12]) == b"near the end"
        del view
    assert show(asked.out, verify=True) == 0


@pytest.mark.parametrize("container", ["hdf5"])
def test_old_or_new(tmp_path: Path, container: str) -> None:
    """A pack is never overwritten, and a refused one changes nothing."""
    source = tree(tmp_path / "source", 10)
    asked = request(source, tmp_path, container)
    assert run(asked) == 0
    before = files(tmp_path)
    assert pack(asked) == 2
    assert files(tmp_path) == before


def test_gnu_tar_restores_the_tree(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 60)
    asked = request(source, tmp_path, "tar")
    assert run(asked) == 0
    back = tmp_path / "back"
    back.mkdir()
    for shard in sorted(Path(asked.out).glob("train-*.tar")):
        subprocess.run(["tar", "xf", shard, "-C", back], check=True, timeout=60)
    found = {name: data for name, data in files(back).items() if not name.endswith(".cls")}
    assert found == files(source / "train")
