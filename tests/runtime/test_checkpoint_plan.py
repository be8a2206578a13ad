"""What a checkpoint costs rank 0 beside the writing, on many ranks."""

from __future__ import annotations

import time

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from rankup.runtime.checkpoint import Planner

TENSORS = 3 * 291  # of a model of 8 B and its AdamW
ROWS = 4


def _plan(rank: int, ranks: int) -> SavePlan:
    """What a rank of a sharded run would write."""
    properties = TensorProperties.create_from_tensor(torch.empty(0))
    offset, size = torch.Size([rank * ROWS, 0]), torch.Size([ROWS, 8])
    data = TensorWriteData(
        ChunkStorageMetadata(offset, size), properties, torch.Size([ranks * ROWS, 8])
    )
    return SavePlan(
        [
            WriteItem(MetadataIndex(f"model.{number}", offset), WriteItemType.SHARD, None, data)
            for number in range(TENSORS)
        ]
    )


@pytest.mark.parametrize(
    ("ranks", "seconds"),
    [(64, 2.0), (256, 8.0), pytest.param(1024, 32.0, marks=pytest.mark.slow)],
)
def test_the_global_plan_grows_with_the_ranks_and_no_faster(ranks: int, seconds: float) -> None:
    """CPU seconds: comparing each part with all others would take some hundred for 1,024 ranks."""
    plans = [_plan(rank, ranks) for rank in range(ranks)]
    began = time.process_time()
    planned, metadata = Planner({}).create_global_plan(plans)
    assert time.process_time() - began < seconds
    assert [len(plan.items) for plan in planned] == [TENSORS] * ranks
    entry = metadata.state_dict_metadata["model.7"]
    assert isinstance(entry, TensorStorageMetadata)
    assert [chunk.offsets[0] for chunk in entry.chunks] == [rank * ROWS for rank in range(ranks)]
