"""Photos of one size, written where they belong in the batch, and normalised on the device."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ...base.errors import UserError
from ..errors import BadContainer, require_positive
from .decoding import MAX_PIXELS, Bytes, Pixels, factor_for, measure, pixels

# torch works on more values than this with several threads: of the training loop's cores.
_ALONE = 32_768
# (top, left, height, width) in pixels.
Part = tuple[int, int, int, int]
_TRIES = 10
# Of ImageNet's training photos, as parts of 1, red, green, blue.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class View(NamedTuple):
    """The part of a photo that is taken, and its size.

    Attributes:
        part: (top, left, height, width) of the photo, in pixels.
        size: (height, width) that the part is resized to.
        corner: (top, left) of the result in that.
        flip: left and right change places.
    """

    part: Part
    size: tuple[int, int]
    corner: tuple[int, int] = (0, 0)
    flip: bool = False


class Photo(ABC):
    """A `Shaped` transform: decode, take a part, resize it, maybe flip it.

    Resized by torch where it has a fast way for bytes (x86 with AVX2), elsewhere by Pillow, whose
    values are at most one level apart.
    """

    scaled: bool
    dtype: npt.DTypeLike = np.uint8
    channels_last = True
    releases_gil = True

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]: ...

    @abstractmethod
    def view(self, height: int, width: int, rng: np.random.Generator) -> View:
        """Return the part of a photo of this size that is taken; DALI asks, too."""

    def into(self, data: Bytes, rng: np.random.Generator, out: npt.NDArray[Any]) -> None:
        """Make a sample in `out`, uint8 of `shape`.

        Raises:
            BadContainer: it is no photo, is damaged, or is too large.
        """
        full = measure(data)
        view = self.view(full.height, full.width, rng)
        top, left, height, width = view.part
        factor = factor_for(height, width, *view.size) if self.scaled and full.jpeg else 1
        # Its edges are at the nearest pixels of what is decoded at 1 / factor.
        edges = (top, top + height, left, left + width)
        first, last, start, stop = ((2 * edge + factor) // (2 * factor) for edge in edges)
        part = pixels(data, full, factor)[first:last, start:stop]
        if view.size == out.shape[:2] and not view.flip and out.flags.c_contiguous:
            _resize(part, out)
            return
        small = np.empty((*view.size, 3), np.uint8)
        _resize(part, small)
        row, column = view.corner
        small = small[row : row + out.shape[0], column : column + out.shape[1]]
        if view.flip:
            _flip(small, out)
        else:
            np.copyto(out, small)

    def __call__(self, data: Bytes, rng: np.random.Generator) -> Pixels:
        """A sample as an array of its own: uint8 of `shape`."""
        out = np.empty(self.shape, np.uint8)
        self.into(data, rng, out)
        return out


@dataclass(frozen=True)
class RandomResizedCrop(Photo):
    """A random part of a photo, resized to a square, flipped at random: for training.

    The same as torchvision's, uint8 and antialiased, but for the source of its random numbers.
    What is read, and that EXIF does not turn it, see `decode`.

    Args:
        size: side of the result, in pixels.
        scale: least and largest area of the part, of the photo's.
        ratio: least and largest width / height of the part.
        flip: how often left and right change places, 0 to 1.
        scaled: decode a JPEG at 1/2, 1/4 or 1/8 where the part is not smaller than the result even
            so: faster, a little softer, and the part's edges lie on every 2nd, 4th or 8th pixel.

    Raises:
        UserError: values that no photo can be cut to.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    scaled: bool = True

    def __post_init__(self) -> None:
        require_positive(size=self.size)
        _range("scale", self.scale, 1.0)
        _range("ratio", self.ratio, 1e9)
        if not 0 <= self.flip <= 1:
            raise UserError(f"flip={self.flip}: it is a probability, from 0 to 1")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.size, self.size, 3

    def view(self, height: int, width: int, rng: np.random.Generator) -> View:
        part = self._part(height, width, rng)
        return View(part, (self.size, self.size), flip=rng.random() < self.flip)

    def _part(self, height: int, width: int, rng: np.random.Generator) -> Part:
        """Return a part of random area and shape at a random place.

        Drawn as in Szegedy et al., "Going deeper with convolutions" (CVPR 2015), with the bounds
        that torchvision has: ten tries, then the largest part of an allowed shape in the middle.
        """
        scale, ratio = self.scale, self.ratio
        least, most = math.log(ratio[0]), math.log(ratio[1])
        for _ in range(_TRIES):
            area = height * width * (scale[0] + (scale[1] - scale[0]) * rng.random())
            shape = math.exp(least + (most - least) * rng.random())
            across, down = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < across <= width and 0 < down <= height:
                top = int((height - down + 1) * rng.random())
                left = int((width - across + 1) * rng.random())
                return top, left, down, across
        across, down = width, height
        if width < ratio[0] * height:
            down = max(1, min(height, round(width / ratio[0])))
        elif width > ratio[1] * height:
            across = max(1, min(width, round(height * ratio[1])))
        return (height - down) // 2, (width - across) // 2, down, across


@dataclass(frozen=True)
class CenterCrop(Photo):
    """The shorter side resized, then the square in the middle: for evaluation.

    The same as torchvision's Resize and CenterCrop, uint8 and antialiased. What is read, and that
    EXIF does not turn it, see `decode`.

    Args:
        size: side of the result, in pixels.
        resize: what the shorter side becomes, at least `size`; by default `round(size * 256/224)`.
        scaled: as of `RandomResizedCrop`; not by default, so that results compare with others'.

    Raises:
        UserError: `resize` is less than `size`, or one is not positive.
    """

    size: int
    resize: int | None = None
    scaled: bool = False

    def __post_init__(self) -> None:
        require_positive(size=self.size, resize=self.resize)
        if self.resize is not None and self.resize < self.size:
            raise UserError(
                f"resize={self.resize} is less than size={self.size}: there would be nothing at "
                f"the edges of the square"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.size, self.size, 3

    def view(self, height: int, width: int, rng: np.random.Generator) -> View:
        shorter = round(self.size * 256 / 224) if self.resize is None else self.resize
        if height <= width:
            down, across = shorter, int(shorter * width / height)
        else:
            down, across = int(shorter * height / width), shorter
        if down * across > MAX_PIXELS:
            raise BadContainer(
                f"this photo, of {width} x {height} pixels, is too narrow: with a shorter side of "
                f"{min(down, across)} it would have {across} x {down}, and {MAX_PIXELS:,} is most"
            )
        # Rounded as torchvision does.
        corner = round((down - self.size) / 2), round((across - self.size) / 2)
        return View((0, 0, height, width), (down, across), corner)


@dataclass(frozen=True)
class Resize(Photo):
    """The whole photo, in a size that does not keep its shape.

    What is read, and that EXIF does not turn it, see `decode`.

    Args:
        height, width: of the result in pixels; without a width, a square.
        scaled: as of `RandomResizedCrop`; not by default, so that results compare with others'.

    Raises:
        UserError: one is not positive.
    """

    height: int
    width: int | None = None
    scaled: bool = False

    def __post_init__(self) -> None:
        require_positive(height=self.height, width=self.width)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.height if self.width is None else self.width, 3

    def view(self, height: int, width: int, rng: np.random.Generator) -> View:
        return View((0, 0, height, width), self.shape[:2])


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


def _range(name: str, given: tuple[float, float], limit: float) -> None:
    try:
        least, most = given
        sound = 0 < least <= most <= limit
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise UserError(f"{name}={given!r}: it is (least, largest), above 0 and at most {limit:g}")


def _resize(source: Pixels, out: npt.NDArray[Any]) -> None:
    """Bilinear and antialiased, written where it belongs."""
    if source.shape == out.shape:
        np.copyto(out, source)
        return
    if TORCH_IS_FAST:
        # It is fast where the bytes lie together.
        before = torch.from_numpy(np.ascontiguousarray(source)).permute(2, 0, 1)[None]
        after = torch.from_numpy(out).permute(2, 0, 1)[None]
        _RESIZE(before, out.shape[:2], False, None, None, out=after)
        return
    try:
        from PIL import Image
    except ImportError:
        raise UserError(
            "on this processor Pillow resizes photos: pip install 'rankup[train]'"
        ) from None
    size = out.shape[1], out.shape[0]
    np.copyto(out, np.asarray(Image.fromarray(source).resize(size, Image.Resampling.BILINEAR)))


def _flip(source: Pixels, out: npt.NDArray[Any]) -> None:
    """A few rows at a time: of more values torch makes threads, beside those of the loop.

    Copies of three bytes each are seven times as slow in numpy.
    """
    rows = max(1, _ALONE // (3 * source.shape[1]) - 1)
    before, after = torch.from_numpy(source), torch.from_numpy(out)
    for some, there in zip(before.split(rows), after.split(rows), strict=True):
        there.copy_(some.flip(1))


# As F.interpolate(mode="bilinear", antialias=True), which cannot write where it is asked to.
_RESIZE = torch.ops.aten._upsample_bilinear2d_aa.out
# Elsewhere it takes twice as long as Pillow, and starts threads of its own in each worker.
TORCH_IS_FAST = torch.backends.cpu.get_cpu_capability().startswith("AVX")
