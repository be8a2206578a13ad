"""An average of the model, a clipped gradient, decisions and numbers beyond the first steps."""

import json
import logging

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("train")


class D(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 6, generator=g)
        self.y = torch.randint(0, 3, (n,), generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


torch.manual_seed(0)
train, valid = D(150, 1), D(40, 2)
loader = DataLoader(train, batch_size=12, shuffle=True)
valid_loader = DataLoader(valid, batch_size=12)
model, average = nn.Linear(6, 3), nn.Linear(6, 3)
average.load_state_dict(model.state_dict())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=300)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
history = []
for epoch in range(10):
    model.train()
    for x, y in loader:
        loss = 50 * F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for a, b in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(b, 0.01)
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for x, y in valid_loader:
            total += F.cross_entropy(model(x), y, reduction="sum").item()
            count += len(y)
    plateau.step(total / count)
    print(f"epoch {epoch}: {total / count:.5f}")
    log.info("validation %.5f", total / count)
    history.append(total / count)
np.save("history.npy", np.array(history))
with open("history.json", "w") as file:
    json.dump(history, file)
torch.save({"model": model.state_dict(), "best": min(history)}, "model.pt")
