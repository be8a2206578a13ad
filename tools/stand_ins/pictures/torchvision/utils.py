"""Pictures to a file."""

from __future__ import annotations

import os
from typing import Any

import torch
from PIL import Image


def save_image(tensor: torch.Tensor, fp: str | os.PathLike[str], nrow: int = 8, **_: Any) -> None:
    """The pictures of a batch beside each other."""
    pictures = tensor.detach().cpu()
    pictures = pictures if pictures.dim() == 4 else pictures[None]
    row = torch.cat(list(pictures), dim=2).clamp(0, 1).mul(255).to(torch.uint8)
    values = row.permute(1, 2, 0).numpy()
    Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values).save(fp)
