import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
import rankup


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def configure_optimizers(self, lr):
        groups = [p for name, p in self.named_parameters() if not name.endswith("bias")]
        rest = [p for name, p in self.named_parameters() if name.endswith("bias")]
        return torch.optim.AdamW([{"params": groups}, {"params": rest, "weight_decay": 0}], lr=lr)

    def forward(self, x, targets):
        # rankup: a mean over valid targets only: ranks have different numbers of them; rankup.count(int((targets != ignored).sum())) before backward()
        return F.cross_entropy(self.layer(x), targets, ignore_index=-1)


def main():
    targets = torch.randint(-1, 4, (64,), generator=torch.Generator().manual_seed(0))
    loader = rankup.shard(DataLoader(TensorDataset(torch.randn(64, 8), targets), batch_size=8, shuffle=True))
    model = Net()
    model.to("cuda")
    model = rankup.wrap(model)
    optimizer = model.configure_optimizers(0.1)
    batches = iter(loader)
    while True:
        try:
            x, y = next(batches)
        except StopIteration:
            break
        loss = model(x, y)
        model.zero_grad(set_to_none=True)
        # rankup: the loss divides by what counts in a batch, of which ranks have different numbers: call rankup.count(number of these targets, or sum of their weights) before this
        rankup.backward(loss)
        optimizer.step()


if __name__ == "__main__":
    rankup.setup()
    rankup.quiet()
    main()
