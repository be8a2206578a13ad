"""Data sets that are known by name: their folders, and labels which stand elsewhere."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import UserError
from ..containers import Choice
from ..containers.files import Tree, lone, refuse, walk
from ..containers.outside import shown
from ..index import Index, Split, ordered
from ..strings import Strings
from . import matlab

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
_GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_META = "meta.mat"
_DEVKIT = ("", "ILSVRC2012_devkit_t12/data", "data")
_WNID = re.compile(r"n\d{8}")
_LINE = re.compile(rf"({_WNID.pattern})\s+(.+)")


def imagenet(path: Path, choice: Choice, labels_file: Path | None) -> Index:
    """ImageNet-1k as ILSVRC, Kaggle and torchvision have it on disk.

    `train/<wnid>/*.JPEG`, `val/*.JPEG` flat or in such folders, `test/*.JPEG` without labels, in
    `path` or in its `ILSVRC/Data/CLS-LOC`. Labels of a flat `val` come from `LOC_val_solution.csv`,
    from `imagenet_2012_validation_synset_labels.txt`, or from the devkit's
    `ILSVRC2012_validation_ground_truth.txt` with `meta.mat`; they lie in `path` or above the
    images. Labels count the wnids in their order, as everybody's models do; classes are
    `n01440764 tench, Tinca tinca` where `LOC_synset_mapping.txt`, `synset_words.txt`,
    `imagenet_class_index.json` or `meta.mat` tells names, else the wnid alone.

    Raises:
        UserError: what is missing, by name.
        BadContainer: a `meta.mat` that is damaged.
        OSError: it cannot be read.
    """
    _no_columns(choice.label, choice)
    inside = (path / sub for sub in (_TREE, "Data/CLS-LOC"))
    root = next((one for one in inside if one.is_dir()), path)
    names = [name for name in ("train", "val", "test") if (root / name).is_dir()]
    trees = {name: walk(root / name, path) for name in names}
    if not {"train", "val"} & set(trees):
        raise _no_imagenet(path, f"neither train/ nor val/ is in it or its {_TREE}/")
    wnids = {one for split in ("train", "val") if split in trees for one in _folders(trees[split])}
    others = sorted(wnid for wnid in wnids if not _WNID.fullmatch(wnid))
    if others:
        count = f"{len(others)} of {len(wnids)}, the first is {others[0]!r}"
        raise _no_imagenet(path, f"class folders whose names are no WordNet ids ({count})")
    # Labels lie in the folder that was given, between it and the images, or above Kaggle's tree.
    near = [root, *(one for one in root.parents if one == path or path in one.parents)]
    if root.name == "CLS-LOC":
        near = [*dict.fromkeys((*near, *root.absolute().parents[:3]))]
    words = _names(near)
    labels: dict[bytes, str] = {}
    if "val" in trees and any(b"/" not in name for name in trees["val"].names):
        labels = _validation(near, labels_file, root / "val", trees["val"])
    elif labels_file is not None:
        raise UserError(f"{labels_file} is not needed: {root}/val tells labels by its folders")
    wnids |= set(filter(_WNID.fullmatch, labels.values()))
    return _index(path, root, trees, sorted(wnids), labels, words)


def _no_imagenet(path: Path, found: str) -> UserError:
    return UserError(
        f"{path} is no ImageNet: {found}. Expected in it or in its {_TREE}/: "
        "train/n01440764/n01440764_18.JPEG and so on, val/ILSVRC2012_val_00000001.JPEG (or in such "
        "folders), test/. Class folders of other names are packed without --preset"
    )


def imagewoof(path: Path, choice: Choice, labels_file: Path | None) -> Index:
    """Imagewoof: `train` and `val` with folders of ten breeds of dogs.

    Args:
        choice: `label` names a column of `noisy_imagewoof.csv`, as `noisy_labels_5`.

    Raises:
        UserError: what is missing, by name.
        OSError: it cannot be read.
    """
    _no_columns(None, choice)
    inner = sorted(path.glob("imagewoof*/train"))
    root = path if (path / "train").is_dir() or not inner else inner[0].parent
    for name in ("train", "val"):
        if not (root / name).is_dir():
            raise UserError(f"{path} is no Imagewoof: it has no {name}/")
    trees = {name: walk(root / name, path) for name in ("train", "val")}
    given: dict[bytes, str] = {}
    if choice.label is not None:
        given = _noisy(labels_file or root / "noisy_imagewoof.csv", choice.label)
    elif labels_file is not None:
        raise UserError(f"name the column of {labels_file}: `--label noisy_labels_5`")
    return _index(path, root, trees, sorted(WOOFS), given, WOOFS)


KNOWN: Mapping[str, Callable[[Path, Choice, Path | None], Index]] = {
    "imagenet": imagenet,
    "imagewoof": imagewoof,
}


def _no_columns(label: str | None, choice: Choice) -> None:
    asked = [name for name in (label, choice.key, *choice.fields) if name]
    if asked:
        raise UserError(f"a preset has no columns to choose from: leave out {', '.join(asked)}")


def _folders(tree: Tree) -> set[str]:
    return {os.fsdecode(name[: name.find(b"/")]) for name in tree.names if b"/" in name}


def _index(
    path: Path,
    root: Path,
    trees: Mapping[str, Tree],
    wnids: Sequence[str],
    given: Mapping[bytes, str],
    names: Mapping[str, str],
) -> Index:
    """The index of trees of class folders.

    Args:
        path: what files are relative to.
        wnids: in the order of the labels.
        given: split, key -> wnid, `val/x.JPEG`; it counts before the folder.
        names: of wnids, for people.
    """
    number_of = {wnid: number for number, wnid in enumerate(wnids)}
    below = os.fsencode(root.relative_to(path)) + b"/" if root != path else b""
    files, keys, labels, problems = [], [], [], []
    for split, tree in trees.items():
        for key in tree.names:
            name = os.fsencode(split) + b"/" + key
            wnid = given.get(name) or os.fsdecode(key[: max(key.find(b"/"), 0)])
            number = number_of.get(wnid, -1)
            if number < 0 and split != "test":
                problems.append(f"{shown(name)}: {wnid!r}" if wnid else f"{shown(name)}: no label")
            files.append(below + name)
            keys.append(key)
            labels.append(number)
    refuse(problems, f"in {root}", "of no known class")
    sizes = np.concatenate([tree.sizes for tree in trees.values()])
    facts: dict[str, Any] = {}
    if skipped := sum(tree.skipped for tree in trees.values()):
        facts["skipped"] = skipped
    if outside := [(split, tree.outside) for split, tree in trees.items() if tree.outside]:
        split, first = outside[0]
        count = sum(one["files"] for _, one in outside)
        facts["outside"] = {"files": count, "first": f"{split}/{first['first']}"}
    split_of = np.repeat(np.arange(len(trees)), [len(tree.names) for tree in trees.values()])
    index = Index(
        "files",
        Strings.of(files),
        (),
        Strings.of(keys),
        (lone(np.arange(len(files)), sizes),),
        np.array(labels, np.int64),
        tuple(f"{wnid} {names[wnid]}" if wnid in names else wnid for wnid in wnids),
        sizes,
        facts=facts,
        times=np.concatenate([tree.times for tree in trees.values()]),
    )
    folders = tuple(Split(split, 0, 0, split) for split in trees)
    return ordered(index, split_of, folders)


def _find(near: Sequence[Path], name: str) -> Path | None:
    """A file of the devkit or of Kaggle, in one of these folders."""
    places = (folder / sub / name for folder in near for sub in _DEVKIT)
    return next((one for one in places if one.is_file()), None)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _names(near: Sequence[Path]) -> dict[str, str]:
    """Readable names by wnid, from the first of the files that has them."""
    for name in ("LOC_synset_mapping.txt", "synset_words.txt"):
        if (path := _find(near, name)) is not None:
            found = (_LINE.fullmatch(line.strip()) for line in _lines(path))
            return {match[1]: match[2] for match in found if match}
    if (path := _find(near, "imagenet_class_index.json")) is not None:
        try:
            pairs = json.loads(path.read_text(encoding="utf-8")).values()
            return {str(wnid): str(name).replace("_", " ") for wnid, name in pairs}
        except (ValueError, AttributeError, TypeError):
            raise UserError(
                f'{path} is not as expected: {{"0": ["n01440764", "tench"], …}}'
            ) from None
    if (path := _find(near, _META)) is not None:
        return {wnid: words for wnid, words in _synsets(path).values() if words}
    return {}


def _synsets(path: Path) -> dict[int, tuple[str, str]]:
    """ILSVRC's own number of a class -> its wnid and words."""
    found = {}
    for row in matlab.table(path, "synsets"):
        number, wnid, words = row.get("ILSVRC2012_ID"), row.get("WNID"), row.get("words", "")
        if isinstance(number, list) and len(number) == 1 and isinstance(wnid, str):
            found[int(number[0])] = (wnid, words if isinstance(words, str) else "")
    return found


def _validation(
    near: Sequence[Path], labels_file: Path | None, folder: Path, tree: Tree
) -> dict[bytes, str]:
    """`val/<name>` -> wnid for the images of a flat validation folder."""
    names = (_SOLUTION, _SYNSET_LABELS, _GROUND_TRUTH)
    places = [labels_file] if labels_file is not None else [_find(near, name) for name in names]
    path = next((place for place in places if place is not None), None)
    if path is None:
        raise UserError(
            f"{folder} is flat, and where its labels are is missing: put {_SOLUTION} (of Kaggle), "
            f"{_SYNSET_LABELS}, or {_GROUND_TRUTH} with {_META} (of the devkit) into {near[-1]}"
        )
    if path.suffix == ".csv":
        rows = [line.partition(",") for line in _lines(path)[1:] if line.strip()]
        return {f"val/{name}.JPEG".encode(): told.split(" ")[0] for name, _, told in rows}
    told = [line.strip() for line in _lines(path) if line.strip()]
    flat = sorted(name for name in tree.names if b"/" not in name)
    if len(told) != len(flat):
        raise UserError(f"{path} has {len(told)} labels, and {folder} has {len(flat)} images")
    if all(line.isdecimal() for line in told):
        # These numbers are not in the order of the wnids: 1 is a kit fox, n02119789.
        meta = _find([path.parent, *near], _META)
        if meta is None:
            raise UserError(
                f"{path} has ILSVRC's own numbers of the classes, and {_META} of the devkit, which "
                f"says what they mean, is missing: put it beside"
            )
        synsets = _synsets(meta)
        told = [synsets.get(int(line), ("", ""))[0] or line for line in told]
    return {b"val/" + name: wnid for name, wnid in zip(flat, told, strict=True)}


def _noisy(path: Path, column: str) -> dict[bytes, str]:
    """`train/n02086240/x.JPEG` -> wnid, as a column of Imagewoof's table has it."""
    if not path.is_file():
        raise UserError(f"{path} is missing, which has the labels {column!r}")
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if column not in (reader.fieldnames or ()) or "path" not in (reader.fieldnames or ()):
            has = ", ".join(reader.fieldnames or ())
            raise UserError(f"{path} has no columns 'path' and {column!r}; it has {has}")
        return {os.fsencode(row["path"]): str(row[column]) for row in reader}
