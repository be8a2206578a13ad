"""Files that scripts of the tests load."""

from __future__ import annotations

import io
import tarfile

SAMPLES = bytes(range(256))


def weights(inputs: int, outputs: int) -> bytes:
    """Of a linear layer, as `torch.save` writes them."""
    import torch

    file = io.BytesIO()
    torch.save(torch.nn.Linear(inputs, outputs).state_dict(), file)
    return file.getvalue()


def archive(files: dict[str, bytes]) -> bytes:
    """A tar.gz of files."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return target.getvalue()
