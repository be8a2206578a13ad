import torch
import torch.nn as nn
from torch.nn import functional as F
import rankup

rankup.setup()
rankup.quiet()

batch_size = 7
block_size = 4
torch.manual_seed(1337)
data = torch.randint(0, 9, (200,))
train_data, val_data = data[:150], data[150:]


def get_batch(split):
    data = train_data if split == "train" else val_data
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i:i + block_size] for i in ix])
    y = torch.stack([data[i + 1:i + block_size + 1] for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(3)
        for k in range(3):
            X, Y = get_batch(split)
            logits, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 9)

    def forward(self, idx, targets):
        logits = self.table(idx)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = Bigram()
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for iter in range(6):
    if iter % 3 == 0:
        losses = estimate_loss()
        print(f"step {iter}: train {losses['train']:.6f}, val {losses['val']:.6f}")
    xb, yb = rankup.deal(get_batch, "train")
    logits, loss = model(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    rankup.backward(loss)
    optimizer.step()
print(loss.item())
