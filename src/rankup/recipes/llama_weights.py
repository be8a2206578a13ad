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

from ..base.errors import UserError
from .llama import CONFIG, LlamaShape, theirs


def load(tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Read the weights of a rank's parameters out of a folder's safetensors files, in place.

    Of each file the rank reads the slices alone that it holds; numbers of 16 bits become those of
    the parameter. Nothing is unpickled. Call on all ranks; nothing is sent.

    Args:
        tensors: by their names in `models.llama.Llama`; DTensors, or whole.

    Raises:
        UserError: the folder lacks a weight, or has it in another shape.
    """
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"--init {folder} has no *.safetensors; give the folder of a model")
    wanted = {theirs(name): tensor for name, tensor in tensors.items()}
    reader = HuggingFaceStorageReader(str(folder))
    try:
        known = reader.read_metadata().state_dict_metadata
    except Exception as error:  # a damaged header shows in many ways
        raise UserError(f"--init {folder} cannot be read: {error}") from None
    for name, tensor in wanted.items():
        if name not in known:
            raise UserError(f"--init {folder} lacks {name}; its weights are of another model")
        there = tuple(getattr(known[name], "size", ()))
        if there != tuple(tensor.shape):
            raise UserError(
                f"--init {folder}: {name} is of shape {there} there and {tuple(tensor.shape)} in "
                "the model that its config.json describes"
            )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no process group is asked is as it should be
            dcp.load(dict(wanted), storage_reader=reader, no_dist=True)
    except (CheckpointException, OSError) as error:
        raise UserError(f"--init {folder} cannot be read: {error}") from None


def save(tensors: Mapping[str, torch.Tensor], shape: LlamaShape, folder: Path) -> None:
    """Write a folder that `transformers.AutoModelForCausalLM.from_pretrained` loads.

    Args:
        tensors: the whole model's, by their names in `models.llama.Llama`.
        folder: an empty one.
    """
    from safetensors.torch import save_file

    kept = {
        theirs(name): value.contiguous()
        for name, value in tensors.items()
        if not (shape.tied and name == "head.weight")
    }
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    config: dict[str, Any] = shape.config()
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
