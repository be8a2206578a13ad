"""Draws between its passes what has to be alike on all ranks: negatives and a split per epoch."""

import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset


class Negatives(Dataset):
    def __init__(self, size):
        self.size = size

    def draw(self):
        self.negatives = [random.randrange(50) for _ in range(self.size)]

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        x = torch.full((6,), index / self.size)
        x[0] = self.negatives[index] / 50
        return x + 0.01 * random.random(), index % 3


data = Negatives(120)
real = TensorDataset(torch.randn(90, 4))
generator = nn.Linear(5, 4)
critic = nn.Linear(4, 1)
classifier = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
of_generator = torch.optim.Adam(generator.parameters(), 1e-2)
of_critic = torch.optim.Adam(critic.parameters(), 1e-2)
of_classifier = torch.optim.SGD(classifier.parameters(), 0.1)
loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2)
real_loader = DataLoader(real, batch_size=16, shuffle=True, drop_last=True)
bce = F.binary_cross_entropy_with_logits
for epoch in range(2):
    data.draw()
    for (x, y), (r,) in zip(loader, real_loader, strict=False):
        of_classifier.zero_grad()
        F.cross_entropy(classifier(x), y).backward()
        of_classifier.step()
        fake = generator(torch.randn(len(r), 5))
        ones, zeros = torch.ones(len(r), 1), torch.zeros(len(r), 1)
        of_critic.zero_grad()
        (bce(critic(r), ones) + bce(critic(fake.detach()), zeros)).backward()
        of_critic.step()
        of_generator.zero_grad()
        bce(critic(fake), ones).backward()
        of_generator.step()
    order = np.random.permutation(60)
    train_loader = DataLoader(Subset(data, order[:40].tolist()), batch_size=8, shuffle=True)
    valid_loader = DataLoader(Subset(data, order[40:].tolist()), batch_size=8)
    for x, y in train_loader:
        of_classifier.zero_grad()
        F.cross_entropy(classifier(x), y).backward()
        of_classifier.step()
    total = 0.0
    with torch.no_grad():
        for x, y in valid_loader:
            x = x + 0.1 * torch.randn_like(x)
            total += F.cross_entropy(classifier(x), y, reduction="sum").item()
        for x, y in train_loader:
            total += F.cross_entropy(classifier(x), y, reduction="sum").item()
    drawn = f"{random.random():.5f} {np.random.rand():.5f} {torch.rand(1).item():.5f}"
    print(f"epoch {epoch} valid {total:.4f} next draws {drawn}")
