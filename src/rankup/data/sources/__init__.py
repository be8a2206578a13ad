"""Sources of `rankup pack` beside containers: lists of files, and data sets known by name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...base.errors import UserError, nearest
from ..containers import Choice
from ..containers.files import refuse, shown, walk
from ..index import Index, Split, Strings, ordered
from . import lists


def scan_source(path: Path, choice: Choice, *, preset: str | None = None) -> Index:
    """All samples of a list or a preset, split by split, sorted by the bytes of their keys.

    Args:
        path: what the names of the index's files are relative to; those of a list are absolute.
        preset: `imagenet` or `imagewoof`: a data set that is known by name.

    Raises:
        UserError: there is nothing, or something cannot be a sample; it is named.
        BadContainer: it is damaged or hostile.
        OSError: it cannot be read.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist: give a folder, a container, or a list of files")
    if preset is not None:
        if preset not in KNOWN:
            raise UserError(f"no preset {preset!r}: {nearest(preset, KNOWN)}")
        return KNOWN[preset](path, choice)
    if path.is_file() and lists.is_list(path):
        return lists.scan(path, choice)
    known = ", ".join(lists.SUFFIXES)
    raise UserError(f"{path} is no list: its name ends with none of {known}")


WOOFS = {
    "n02086240": "Shih-Tzu",
    "n02087394": "Rhodesian ridgeback",
    "n02088364": "beagle",
    "n02089973": "English foxhound",
    "n02093754": "Border terrier",
    "n02096294": "Australian terrier",
    "n02099601": "golden retriever",
    "n02105641": "Old English sheepdog",
    "n02111889": "Samoyed",
    "n02115641": "dingo",
}
_TREE = "ILSVRC/Data/CLS-LOC"  # where Kaggle's archive has the images
_SOLUTION = "LOC_val_solution.csv"
_SYNSET_LABELS = "imagenet_2012_validation_synset_labels.txt"
_WNID = re.compile(r"n\d{8}")
_LINE = re.compile(rf"({_WNID.pattern})\s+(.+)")


def imagenet(path: Path, choice: Choice) -> Index:
    """ImageNet-1k as ILSVRC, Kaggle and torchvision have it on disk.

    `train/<wnid>/*.JPEG`, `val/*.JPEG` flat or in such folders, `test/*.JPEG` without labels, in
    `path` or in its `ILSVRC/Data/CLS-LOC`. Labels of a flat `val` come from `LOC_val_solution.csv`
    or `imagenet_2012_validation_synset_labels.txt`, in `path` or above the images. Labels count the
    wnids in their order, as everybody's models do; classes are `n01440764 tench, Tinca tinca` where
    `LOC_synset_mapping.txt` or `synset_words.txt` tells names, else the wnid alone.

    Raises:
        UserError: what is missing, by name.
        OSError: it cannot be read.
    """
    _no_columns(choice)
    inside = (path / sub for sub in (_TREE, "Data/CLS-LOC"))
    root = next((one for one in inside if one.is_dir()), path)
    names = [name for name in ("train", "val", "test") if (root / name).is_dir()]
    if not {"train", "val"} & set(names):
        raise _no_imagenet(path, f"neither train/ nor val/ is in it or its {_TREE}/")
    tree = walk(root, names)
    found = [_parts(name) for name in tree.files]
    wnids = {folder for split, folder in found if folder and split != "test"}
    others = sorted(wnid for wnid in wnids if not _WNID.fullmatch(wnid))
    if others:
        count = f"{len(others)} of {len(wnids)}, the first is {others[0]!r}"
        raise _no_imagenet(path, f"class folders whose names are no WordNet ids ({count})")
    # Labels lie in the folder that was given, between it and the images, or above Kaggle's tree.
    near = [root, *(one for one in root.parents if one == path or path in one.parents)]
    if root.name == "CLS-LOC":
        near = [*dict.fromkeys((*near, *root.absolute().parents[:3]))]
    labels: dict[bytes, str] = {}
    if ("val", "") in found:
        labels = _validation(near, root / "val", tree)
    wnids |= set(filter(_WNID.fullmatch, labels.values()))
    return _index(path, root, names, tree, sorted(wnids), labels, _names(near))


def _no_imagenet(path: Path, found: str) -> UserError:
    return UserError(
        f"{path} is no ImageNet: {found}. Expected in it or in its {_TREE}/: "
        "train/n01440764/n01440764_18.JPEG and so on, val/ILSVRC2012_val_00000001.JPEG (or in such "
        "folders), test/. Class folders of other names are packed without --preset"
    )


def imagewoof(path: Path, choice: Choice) -> Index:
    """Imagewoof: `train` and `val` with folders of ten breeds of dogs.

    Raises:
        UserError: what is missing, by name.
        OSError: it cannot be read.
    """
    _no_columns(choice)
    inner = sorted(path.glob("imagewoof*/train"))
    root = path if (path / "train").is_dir() or not inner else inner[0].parent
    for name in ("train", "val"):
        if not (root / name).is_dir():
            raise UserError(f"{path} is no Imagewoof: it has no {name}/")
    names = ("train", "val")
    return _index(path, root, names, walk(root, names), sorted(WOOFS), {}, WOOFS)


KNOWN: Mapping[str, Callable[[Path, Choice], Index]] = {
    "imagenet": imagenet,
    "imagewoof": imagewoof,
}


def _no_columns(choice: Choice) -> None:
    asked = [name for name in (choice.label, choice.key, *choice.fields) if name]
    if asked:
        raise UserError(f"a preset has no columns to choose from: leave out {', '.join(asked)}")


def _parts(name: bytes) -> tuple[str, str]:
    """Split and class folder of a file; no folder for those that lie in none."""
    split, *folders, _ = os.fsdecode(name).split("/")
    return split, folders[0] if folders else ""


def _index(
    path: Path,
    root: Path,
    splits: Sequence[str],
    tree: Index,
    wnids: Sequence[str],
    given: Mapping[bytes, str],
    names: Mapping[str, str],
) -> Index:
    """The index of a tree of splits with class folders.

    Args:
        path: what files are relative to.
        wnids: in the order of the labels.
        given: name -> wnid, `val/x.JPEG`; it counts before the folder.
        names: of wnids, for people.
    """
    number_of = {wnid: number for number, wnid in enumerate(wnids)}
    below = os.fsencode(root.relative_to(path)) + b"/" if root != path else b""
    labels, split_of, problems = [], [], []
    for name in tree.files:
        split, folder = _parts(name)
        wnid = given.get(name) or folder
        labels.append(number_of.get(wnid, -1))
        split_of.append(splits.index(split))
        if labels[-1] < 0 and split != "test":
            problems.append(f"{shown(name)}: {wnid!r}" if wnid else f"{shown(name)}: no label")
    refuse(problems, f"in {root}", "of no known class")
    index = replace(
        tree,
        files=Strings.of(below + name for name in tree.files),
        keys=Strings.of(name.partition(b"/")[2] for name in tree.files),
        labels=np.array(labels, np.int64),
        classes=tuple(f"{wnid} {names[wnid]}" if wnid in names else wnid for wnid in wnids),
    )
    folders = tuple(Split(split, 0, 0, split) for split in splits)
    return ordered(index, np.array(split_of, np.int64), folders)


def _find(near: Sequence[Path], name: str) -> Path | None:
    """A file of Kaggle's or of others, in one of these folders."""
    places = (folder / name for folder in near)
    return next((one for one in places if one.is_file()), None)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _names(near: Sequence[Path]) -> dict[str, str]:
    """Readable names by wnid, from the first of the files that has them."""
    for name in ("LOC_synset_mapping.txt", "synset_words.txt"):
        if (path := _find(near, name)) is not None:
            found = (_LINE.fullmatch(line.strip()) for line in _lines(path))
            return {match[1]: match[2] for match in found if match}
    return {}


def _validation(near: Sequence[Path], folder: Path, tree: Index) -> dict[bytes, str]:
    """`val/<name>` -> wnid for the images of a flat validation folder."""
    found = (_find(near, name) for name in (_SOLUTION, _SYNSET_LABELS))
    path = next((one for one in found if one is not None), None)
    if path is None:
        raise UserError(
            f"{folder} is flat, and where its labels are is missing: put {_SOLUTION} (of Kaggle) "
            f"or {_SYNSET_LABELS} into {near[-1]}; the devkit's numbers are not those of models"
        )
    if path.suffix == ".csv":
        rows = [line.partition(",") for line in _lines(path)[1:] if line.strip()]
        return {f"val/{name}.JPEG".encode(): told.split(" ")[0] for name, _, told in rows}
    told = [line.strip() for line in _lines(path) if line.strip()]
    flat = sorted(name for name in tree.files if _parts(name) == ("val", ""))
    if len(told) != len(flat):
        raise UserError(f"{path} has {len(told)} labels, and {folder} has {len(flat)} images")
    return dict(zip(flat, told, strict=True))
