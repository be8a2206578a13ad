"""Which modules bring a torch: one answer for doctor and for env."""

from __future__ import annotations

import pytest

from rankup.login.torch_module import brings_torch, loaded


@pytest.mark.parametrize(
    "name",
    [
        *("PyTorch", "pytorch/2.1.2", "PyTorch-bundle/2.1.0", "pytorch-gpu", "PyTorch-Lightning"),
        *("cray-python/pytorch", "ml-pytorch/2.1", "torchvision", "torchaudio/2.1", "pytorch2.8"),
        *("Horovod/0.28-PyTorch-2.1", "torch", "torch_geometric"),
    ],
)
def test_these_do(name: str) -> None:
    assert brings_torch(name)


@pytest.mark.parametrize("name", ["Python", "TensorFlow", "Stages/2026", "torchbearer", "torque"])
def test_these_do_not(name: str) -> None:
    assert not brings_torch(name)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("module load GCC PyTorch/2.1.2", ["GCC", "PyTorch/2.1.2"]),
        ("module load 'PyTorch' || return", ["PyTorch"]),
        ("ml Python PyTorch -CUDA", ["Python", "PyTorch"]),
        ("ml load PyTorch; ml torchvision", ["PyTorch", "torchvision"]),
        ('if [ -n "$A" ]; then module --quiet load PyTorch; fi', ["PyTorch"]),
        ("module swap CUDA/11 CUDA/12", ["CUDA/11", "CUDA/12"]),
        ("module unload PyTorch", []),
        ("module purge", []),
        ("ml purge", []),
        ("ml unload PyTorch", []),
        ("module use /p/project1/pytorch", []),
        ("export TORCH_HOME=/p/torch", []),
        ("ENV=x; export HTML=pytorch", []),
    ],
)
def test_what_a_line_of_bash_loads(line: str, names: list[str]) -> None:
    assert loaded(line) == names
