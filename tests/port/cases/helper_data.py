"""Loaders in a file of their own, which a port leaves as it is."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def get_loaders(batch_size):
    x = torch.randn(22, 5, generator=torch.Generator().manual_seed(1))
    y = (x.sum(1) > 0).long()
    train = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
    test = DataLoader(TensorDataset(x[:7], y[:7]), batch_size=3)
    return train, test
