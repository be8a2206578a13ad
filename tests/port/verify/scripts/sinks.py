"""What is made of the last batch of an epoch goes everywhere behind the loop."""

import pickle

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def draw(model, n):
    with torch.no_grad():
        return model(torch.ones(n, 4))


def tell(name, value):
    print(name, value)


torch.manual_seed(0)
data = TensorDataset(torch.rand(40, 4), torch.arange(40) % 3)
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history, means = [], []
for epoch in range(2):
    for x, y in loader:
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    acc = (out.argmax(1) == y).sum().item() / len(y)
    print(f"epoch {epoch}: acc {acc:.4f}")
    tell("pictures", len(draw(model, n=x.shape[0])))
    history.append(out.detach().numpy()[-2:])
    means.append(x.mean().item())
np.save("history.npy", np.stack(history))
torch.save({"shown": x, "made": out.detach(), "epoch": epoch}, "shown.pt")
torch.save(draw(model, n=x.shape[0]), "made.pt")
with open("means.pkl", "wb") as file:
    pickle.dump({"means": means, "epochs": 2}, file)
with open("means.csv", "w") as table:
    table.write(f"{means[-1]:.4f}\n")
Image.fromarray((255 * x[-2:].numpy()).astype("uint8")).save("picture.png")
plt.plot(means)
plt.savefig("means.pdf")
torch.save(model.state_dict(), "model.pt")
