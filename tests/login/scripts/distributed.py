"""As torchrun would start it: NCCL, DDP, torch.compile, a sampler of its own."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    local = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(local)
    if rank == 0:
        url = os.environ["DATA_SERVER"] + "/weights.pt?token=not-for-logs"
        weights = torch.hub.load_state_dict_from_url(url, map_location="cpu")
    dist.barrier()
    model = nn.Linear(8, 2)
    model.load_state_dict(weights)
    model = DistributedDataParallel(model.cuda(local), device_ids=[local])
    model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.rand(64, 8))
    sampler = DistributedSampler(data)
    for epoch in range(100_000):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, batch_size=8, sampler=sampler):
            loss = model(x.cuda(local, non_blocking=True)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
