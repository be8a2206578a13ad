"""Bytes of photos made numbers around zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankup.base.errors import UserError
from rankup.data.photos import IMAGENET_MEAN, IMAGENET_STD, normalize


def batch(*shape: int) -> torch.Tensor:
    """uint8, in memory as the Loader hands batches out."""
    values = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    values.flat[:2] = 0, 255
    return torch.from_numpy(values).to(memory_format=torch.channels_last)


def exact(images: torch.Tensor) -> torch.Tensor:
    shape = (1, 3, 1, 1)
    mean = torch.tensor(IMAGENET_MEAN, dtype=torch.float64).reshape(shape)
    std = torch.tensor(IMAGENET_STD, dtype=torch.float64).reshape(shape)
    return (images.cpu().double() / 255 - mean) / std


@pytest.mark.parametrize(
    ("dtype", "near"),
    [
        (torch.float32, 1e-6),
        (torch.float64, 1e-12),
        (torch.float16, 2e-3),  # half a step between 2 and 4 is 1e-3
        (torch.bfloat16, 1e-2),
    ],
)
def test_as_reckoned_exactly(dtype: torch.dtype, near: float) -> None:
    images = batch(4, 3, 17, 19)
    found = normalize(images, dtype=dtype)
    assert (found.dtype, found.shape) == (dtype, images.shape)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.double(), exact(images), atol=near, rtol=0)
    # Rounded once: bytes that differ stay different where the type has room for them.
    assert torch.equal(found, normalize(images, dtype=torch.float64).to(dtype)) or near < 1e-5


def test_other_layouts_and_numbers_of_channels() -> None:
    images = batch(2, 3, 5, 7).contiguous()
    found = normalize(images)
    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), exact(images), atol=1e-6, rtol=0)
    assert torch.equal(normalize(images[0]), found[0])
    assert torch.equal(normalize(images[:, :, :3, ::2]), found[:, :, :3, ::2])
    grey = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 1, 1, 3)
    assert normalize(grey, (0.2,), (0.4,)).flatten().tolist() == pytest.approx(
        [-0.5, 0, 2], abs=1e-6
    )
    assert normalize(images[:0]).shape == (0, 3, 5, 7)


def test_images_stay_as_they_are() -> None:
    images = batch(2, 3, 5, 7)
    before = images.clone()
    normalize(images)
    assert torch.equal(images, before)
    assert torch.equal(normalize(images, device="cpu"), normalize(images))


def test_what_cannot_be_normalised() -> None:
    images = batch(2, 3, 5, 7)
    with pytest.raises(UserError, match=r"uint8 images.*given torch.float32"):
        normalize(images.float())
    with pytest.raises(UserError, match=r"makes floats.*torch.int32"):
        normalize(images, dtype=torch.int32)
    with pytest.raises(UserError, match=r"\(2, 3, 5, 7\), with 1 means and 3 stds"):
        normalize(images, mean=(0.5,))
    with pytest.raises(UserError, match="a mean and a std for each channel"):
        normalize(images.permute(0, 2, 3, 1))
    with pytest.raises(UserError, match="each is above 0"):
        normalize(images, std=(0.2, 0.0, 0.2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_gpu(dtype: torch.dtype) -> None:
    images = batch(8, 3, 64, 48)
    expected = normalize(images, dtype=dtype)
    for given in (images, images.pin_memory(), images.cuda()):
        found = normalize(given, dtype=dtype, device="cuda")
        assert found.device.type == "cuda"
        assert found.is_contiguous(memory_format=torch.channels_last)
        near = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
        torch.testing.assert_close(found.cpu().double(), expected.double(), atol=near, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_is_not_waited_for() -> None:
    images = batch(8, 3, 64, 48).pin_memory()
    normalize(images, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second of the GPU's time
    normalize(images, device="cuda")
    assert not torch.cuda.current_stream().query()  # it sleeps, and we are here
    torch.cuda.synchronize()
