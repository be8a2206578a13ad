"""Which files of a model's repository a PyTorch job needs: not each format of the same weights."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

# Weights of other frameworks and runtimes.
_FOREIGN = re.compile(
    r".*\.(h5|msgpack|ot|onnx|onnx_data|tflite|mlmodel|gguf|llamafile)|model\.ckpt\.(index|meta|data.*)"
)
_FOREIGN_FOLDERS = frozenset(("onnx", "openvino", "coreml", "tflite", "flax", "metal"))
# How pickled weights are called; other .bin files may be anything.
_PICKLED = re.compile(
    r"(pytorch_model|diffusion_pytorch_model|adapter_model|model)[.-].*bin(\.index\.json)?"
)
_SHARDED = re.compile(r"model(-\d+-of-\d+)?\.safetensors")


def needed(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The files of a repository that are needed, and those that are passed over, sorted.

    Pickled weights are passed over where safetensors lie beside them, so are the checkpoints of a
    maker's own format. A repository that has only weights of other frameworks is needed as it is.
    """
    paths = [PurePosixPath(name) for name in sorted(set(names))]
    safe = {path.parent for path in paths if path.suffix == ".safetensors"}
    pickled = {path.parent for path in paths if _PICKLED.fullmatch(path.name)}
    sharded = {path.parent for path in paths if _SHARDED.fullmatch(path.name)}

    def passed_over(path: PurePosixPath) -> bool:
        if path.parent in sharded and path.name.startswith("consolidated"):
            return True
        if path.parent in safe and _PICKLED.fullmatch(path.name):
            return True
        if safe and path.parts[0] == "original" and path.suffix in (".pth", ".safetensors"):
            return True
        if not (safe or pickled):
            return False
        return bool(_FOREIGN.fullmatch(path.name)) or path.parts[0] in _FOREIGN_FOLDERS

    kept = [str(path) for path in paths if not passed_over(path)]
    return kept, [str(path) for path in paths if passed_over(path)]
