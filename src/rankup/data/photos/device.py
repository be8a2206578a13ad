"""Normalisation of a batch of photos, on the device where it is trained on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...base.errors import UserError

# Of ImageNet's training photos, as parts of 1, red, green, blue.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def normalize(
    images: torch.Tensor,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """(images / 255 - mean) / std, on the device: a quarter of the bytes of float32 travel there.

    Reckoned in float32 (in float64 for a float64) and rounded once; on a GPU in one pass.

    Args:
        images: uint8 (n, channels, height, width), or (channels, height, width).
        mean, std: of each channel, as parts of 1.
        dtype: of the result: float32, bfloat16, float16.
        device: to copy the bytes to before, without waiting where they are pinned; by default they
            stay where they are.

    Returns:
        of the same shape, in the same memory format.

    Raises:
        UserError: the images are not uint8, `dtype` is no float, or mean and std do not fit.
    """
    if images.dtype != torch.uint8:
        raise UserError(f"normalize takes uint8 images of 0 to 255, and was given {images.dtype}")
    if not dtype.is_floating_point:
        raise UserError(f"normalize makes floats, and was asked for {dtype}")
    channels = images.shape[-3] if images.dim() >= 3 else 0
    if not len(mean) == len(std) == channels:
        raise UserError(
            f"a mean and a std for each channel: the images are {tuple(images.shape)}, with "
            f"{len(mean)} means and {len(std)} stds"
        )
    if min(std) <= 0:
        raise UserError(f"std={tuple(std)}: each is above 0")
    if device is not None:
        images = images.to(device, non_blocking=True)
    both = [[1 / (255 * one) for one in std], [-m / s for m, s in zip(mean, std, strict=True)]]
    wide = torch.promote_types(dtype, torch.float32)
    # Not made on the device, for that waits until it has done all that it was given before.
    constants = torch.tensor(both, dtype=wide, device="cpu")
    scale, shift = constants.to(images.device, non_blocking=True)[..., None, None]
    # A GPU converts on the way. A CPU would do so in small pieces, slower than at once.
    source = images.to(wide) if images.device.type == "cpu" else images
    out = source if source.dtype == dtype else torch.empty_like(images, dtype=dtype)
    return torch.addcmul(shift, source, scale, out=out)
