"""A split that is drawn as this file is imported."""

import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

x = torch.arange(40.0).reshape(20, 2) / 40
train_set, test_set = random_split(TensorDataset(x, x.sum(1)), [14, 6])
train_loader = DataLoader(train_set, batch_size=4, shuffle=True)
test_loader = DataLoader(test_set, batch_size=2)
