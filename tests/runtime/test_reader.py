"""The unpickler of DCP's metadata; what attacks it is in tests/train/test_unpickle.py."""

from __future__ import annotations

import io
import pickle

import pytest
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from rankup.runtime.folder import MetadataUnpickler


def test_the_metadata_may_not_name_bytes() -> None:
    with pytest.raises(pickle.UnpicklingError, match="BytesStorageMetadata"):
        MetadataUnpickler(io.BytesIO(pickle.dumps(BytesStorageMetadata()))).load()
