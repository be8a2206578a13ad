"""Weights of a Llama from and to a Hugging Face folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ..base.errors import UserError
from .llama import LlamaShape, theirs
from .model_config import CONFIG


def refuse_other(tensors: Mapping[str, torch.Tensor], folder: Path) -> HuggingFaceStorageReader:
    """Return the reader of a folder's safetensors files, whose headers alone are read.

    Args:
        tensors: of the names in `models.llama.Llama`; they may be on meta.

    Raises:
        UserError: the folder lacks a weight, or has it in another shape.
    """
    files = list(folder.glob("*.safetensors"))
    if not files or not all(file.is_file() for file in files):
        raise UserError(
            f"--init {folder} has no *.safetensors that are files; give the folder of a model"
        )
    reader = HuggingFaceStorageReader(str(folder))
    try:
        known = reader.read_metadata().state_dict_metadata
    except Exception as error:  # a damaged header shows in many ways
        raise UserError(f"--init {folder} cannot be read: {error}") from None
    for own, tensor in tensors.items():
        name = theirs(own)
        if name not in known:
            raise UserError(
                f"--init {folder} lacks {name}: one of its files is missing, or its weights are of "
                "another model; copy it again, or give another folder"
            )
        found = known[name]
        assert isinstance(found, TensorStorageMetadata)
        kind = found.properties.dtype
        if kind not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            raise UserError(
                f"--init {folder}: {name} is quantised ({kind}); give the model's own weights, in "
                "16 or 32 bits"
            )
        there = tuple(found.size)
        if there != tuple(tensor.shape):
            raise UserError(
                f"--init {folder}: {name} is of shape {there} there and {tuple(tensor.shape)} in "
                "the model that its config.json describes"
            )
    return reader


def load(tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Read the weights of a rank's parameters out of a folder's safetensors files, in place.

    Of each file the rank reads the slices alone that it holds; numbers of 16 bits become those of
    the parameter. Nothing is unpickled. Call on all ranks; nothing is sent.

    Args:
        tensors: by their names in `models.llama.Llama`; DTensors, or whole.

    Raises:
        UserError: as `refuse_other`.
    """
    reader = refuse_other(tensors, folder)
    wanted = {theirs(name): tensor for name, tensor in tensors.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no process group is asked is as it should be
            dcp.load(wanted, storage_reader=reader, no_dist=True)
    except (CheckpointException, OSError) as error:
        raise UserError(f"--init {folder} cannot be read: {error}") from None


def save(tensors: Mapping[str, torch.Tensor], shape: LlamaShape, folder: Path) -> None:
    """Write a folder that `transformers.AutoModelForCausalLM.from_pretrained` loads.

    Args:
        tensors: the whole model's, by their names in `models.llama.Llama`.
        folder: an empty one.

    Raises:
        OSError: it could not be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    kept = {
        theirs(name): value.contiguous()
        for name, value in tensors.items()
        if not (shape.tied and name == "head.weight")
    }
    try:
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # so it says that the disk is full
        raise OSError(f"{folder.name} could not be written: {error}") from None
    config: dict[str, Any] = shape.config()
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
