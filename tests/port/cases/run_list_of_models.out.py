import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(0)
x = torch.randn(26, 4)
loader = rankup.shard(DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=6, shuffle=True))
nets = [torch.nn.Linear(4, 2) for _ in range(2)]
nets = [rankup.wrap(one) for one in nets]
optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]

for epoch in range(2):
    losses = [0.0, 0.0]
    for x, y in loader:
        for i, (net, optimizer) in enumerate(zip(nets, optimizers)):
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            rankup.backward(loss)
            optimizer.step()
            losses[i] += loss.item()
    print(f"epoch {epoch}: {losses[0]:.6f} {losses[1]:.6f}")
print([sum(p.sum().item() for p in net.parameters()) for net in nets])
