"""A variational autoencoder: a summed loss, noise drawn for each batch, a method of its model."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.outer = nn.Linear(2, 6)

    def forward(self, x):
        mean, spread = self.inner(x).chunk(2, 1)
        std = torch.exp(0.5 * spread)
        return self.outer(mean + torch.randn_like(std) * std), mean, spread


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.rand(100, 6)), batch_size=16, shuffle=True)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(10):
    for (x,) in loader:
        noisy = x + 0.1 * torch.rand(len(x), 6)
        level = torch.randint(0, 3, (x.shape[0],)).unsqueeze(1)
        optimizer.zero_grad()
        out, mean, spread = model(noisy)
        loss = F.mse_loss(out, x * level, reduction="sum")
        loss = loss - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "vae.pt")
