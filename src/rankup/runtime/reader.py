"""Reading DCP checkpoints without unpickling anything but torch's own records."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from .state import Shape


class SafeReader(dcp.FileSystemReader):
    """Reads `.metadata` through an unpickler that knows torch's own record types only."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata = MetadataUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"checkpoint metadata is a {type(metadata).__name__}")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def shapes(self) -> dict[str, Shape]:
        """Shape of each tensor there is."""
        return {
            name: tuple(entry.size)
            for name, entry in self.read_metadata().state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }


class MetadataUnpickler(pickle.Unpickler):
    """Refuses all but torch's records of what lies where."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = (
            (module == "torch.distributed.checkpoint.metadata" and name in _METADATA_TYPES)
            or (module == "torch.distributed.checkpoint.filesystem" and name == "_StorageInfo")
            or (
                module == "torch"
                and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype))
            )
            or (module, name) == ("torch.serialization", "_get_layout")
            or (module, name) == ("collections", "OrderedDict")
            or (module in ("pathlib", "pathlib._local") and name == "PosixPath")
        )
        if not allowed:
            raise pickle.UnpicklingError(f"checkpoint metadata refers to {module}.{name}")
        return super().find_class(module, name)


# Not BytesStorageMetadata: torch reads what that names with an unpickler of its own that refuses
# nothing, and rankup writes tensors alone.
_METADATA_TYPES = {
    "Metadata", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
    "_MEM_FORMAT_ENCODING", "MetadataIndex", "StorageMeta",
}  # fmt: skip
